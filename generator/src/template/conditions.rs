//! Conditional rules of a template, whose conditions are Rhai expressions.

use std::rc::Rc;

use rhai::{Dynamic, Engine, EvalAltResult};
use toml::Spanned;

use super::{
    config::{Conditional, Config, Rules},
    variables::Variables,
};
use crate::{
    error::{Error, Result, nearest},
    quiet,
};

/// The rules that apply for these variables.
pub(crate) fn rules(config: &Config, variables: &Rc<Variables>) -> Result<Rules> {
    let mut rules = config.rules.clone();
    if config.conditionals.is_empty() {
        return Ok(rules);
    }
    let engine = engine(variables);
    for conditional in &config.conditionals {
        if holds(&engine, config, conditional, variables)? {
            rules.merge(&conditional.rules);
        }
    }
    Ok(rules)
}

/// Whether a condition holds for these variables. As in cargo-generate, it does not if it needs an
/// option that does not apply.
///
/// # Errors
/// The condition is invalid.
pub(crate) fn holds(
    engine: &Engine,
    config: &Config,
    conditional: &Conditional,
    variables: &Rc<Variables>,
) -> Result<bool> {
    let expression = conditional.expression.get_ref();
    let truth = quiet::catch(|| engine.eval_expression::<bool>(expression))
        .unwrap_or_else(|why| Err(why.into()));
    truth.or_else(|error| match &*error {
        EvalAltResult::ErrorVariableNotFound(name, _)
            if config.conditional_options().any(|(_, it)| it.name == *name) =>
        {
            Ok(false)
        }
        error => Err(expression_error(
            config,
            &conditional.expression,
            error,
            variables,
        )),
    })
}

/// An engine whose expressions see these variables.
pub(crate) fn engine(variables: &Rc<Variables>) -> Engine {
    let mut engine = Engine::new();
    let variables = Rc::clone(variables);
    #[allow(
        deprecated,
        reason = "the function is not deprecated but marked as volatile"
    )]
    engine.on_var(move |name, _, _| variables.value(name).map(to_rhai).transpose());
    engine
}

/// The value of a variable in a script.
pub(crate) fn to_rhai(
    value: &liquid::model::Value,
) -> std::result::Result<Dynamic, Box<EvalAltResult>> {
    use liquid::{ValueView, model::Value};
    match value {
        Value::Scalar(scalar) => Ok(match scalar.to_bool() {
            Some(flag) => flag.into(),
            None => scalar.to_kstr().into_string().into(),
        }),
        Value::Array(items) => {
            let items = items
                .iter()
                .map(to_rhai)
                .collect::<std::result::Result<_, _>>();
            Ok(Dynamic::from_array(items?))
        }
        other => Err(format!("{} is not allowed in a condition", other.type_name()).into()),
    }
}

fn expression_error(
    config: &Config,
    expression: &Spanned<String>,
    error: &EvalAltResult,
    variables: &Variables,
) -> Error {
    let text = expression.get_ref();
    let column = error.position().position().unwrap_or(1) - 1;
    let at = text
        .char_indices()
        .nth(column)
        .map_or(text.len(), |(at, _)| at);
    let message = match error {
        EvalAltResult::ErrorMismatchOutputType(_, actual, _) => {
            format!("the result is `{actual}`, not true or false")
        }
        EvalAltResult::ErrorVariableNotFound(name, _) => {
            let near = nearest(name, variables.names());
            let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
            format!("there is no variable `{name}`{near}")
        }
        other => other.to_string(),
    };
    let span = config.inside(expression, at.min(text.len().saturating_sub(1)));
    config
        .error_at(span, format!("the condition `{text}` is invalid"), &message)
        .help("a condition is a Rhai expression over the options, such as `ci == \"none\"`")
}
