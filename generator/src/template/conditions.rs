//! Conditional rules of a template, whose conditions are Rhai expressions.

use std::{cell::OnceCell, rc::Rc};

use rhai::{Dynamic, Engine, EvalAltResult, Position};
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
    let evaluator = Evaluator::new(variables);
    for conditional in &config.conditionals {
        if evaluator.holds(config, conditional)? {
            rules.merge(&conditional.rules);
        }
    }
    Ok(rules)
}

/// Evaluates conditions over the variables of a project.
pub(crate) struct Evaluator<'v> {
    variables: &'v Rc<Variables>,
    /// An engine with Rhai's operators and without its functions, of which most conditions use none.
    plain: Engine,
    /// An engine with all functions. To register them takes longer than all conditions do.
    full: OnceCell<Engine>,
}

impl<'v> Evaluator<'v> {
    pub fn new(variables: &'v Rc<Variables>) -> Self {
        let mut plain = Engine::new_raw();
        // A script in a text could catch that a function is missing.
        plain.disable_symbol("eval");
        Self {
            variables,
            plain: with_variables(plain, variables),
            full: OnceCell::new(),
        }
    }

    /// Whether a condition holds. As in cargo-generate, it does not if it needs an option that does
    /// not apply.
    ///
    /// # Errors
    /// The condition is invalid.
    pub fn holds(&self, config: &Config, conditional: &Conditional) -> Result<bool> {
        let truth = self.truth(conditional.expression.get_ref());
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
                self.variables,
            )),
        })
    }

    fn truth(&self, expression: &str) -> Truth {
        evaluate(&self.plain, expression).or_else(|_| {
            let full = || with_variables(Engine::new(), self.variables);
            evaluate(self.full.get_or_init(full), expression)
        })
    }
}

type Truth = std::result::Result<bool, Box<EvalAltResult>>;

fn evaluate(engine: &Engine, expression: &str) -> Truth {
    quiet::catch(|| engine.eval_expression(expression)).unwrap_or_else(|why| Err(why.into()))
}

/// The engine, whose expressions see these variables.
fn with_variables(mut engine: Engine, variables: &Rc<Variables>) -> Engine {
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
    wrong(config, expression, error.position(), &message)
}

/// The error of a condition that is wrong at `position`, or at its start if that is not known.
pub(super) fn wrong(
    config: &Config,
    expression: &Spanned<String>,
    position: Position,
    message: &str,
) -> Error {
    let text = expression.get_ref();
    let at = text
        .char_indices()
        .nth(position.position().unwrap_or(1) - 1);
    let at = at.map_or(text.len(), |(at, _)| at);
    let span = config.inside(expression, at.min(text.len().saturating_sub(1)));
    config
        .error_at(span, format!("the condition `{text}` is invalid"), message)
        .help("a condition is a Rhai expression over the options, such as `ci == \"none\"`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        name::Name,
        template::{CONFIG_FILE, Template, answers::Answers, embedded::Files},
    };

    const CONFIG: &str = "[placeholders]\n\
        word = { prompt = \"?\", default = \"ab\" }\n\
        flag = { prompt = \"?\", type = \"bool\", default = true }\n\
        list = { prompt = \"?\", type = \"array\", choices = [\"a\", \"b\"], default = [\"a\"] }\n";
    const FILES: Files = &[(CONFIG_FILE, CONFIG.as_bytes(), false)];

    /// The result of an expression, as text; errors are all the same.
    fn shown(truth: Truth) -> String {
        truth.map_or("error".to_owned(), |truth| truth.to_string())
    }

    #[test]
    fn the_plain_engine_gives_the_results_of_the_full_one_or_an_error() {
        let template = Template::from_files("t", FILES).unwrap();
        let answers = Answers::defaults(&template, Name::parse("a").unwrap()).unwrap();
        let variables = Rc::new(Variables::new(&answers, "/a".into()));
        let evaluator = Evaluator::new(&variables);
        let operands = [
            "word",
            "flag",
            "list",
            "crate_type",
            "is_init",
            "nothing",
            "\"ab\"",
            "\"b\"",
            "'a'",
            "''",
            "1",
            "2.5",
            "-1",
            "true",
            "()",
            "[]",
            "[\"a\"]",
            "[1]",
            "#{}",
            "#{a: 1}",
            "word.len()",
            "list.len",
            "word.to_upper()",
            "1..3",
            "list[0]",
            "word[0]",
            "word[9]",
            "!flag",
            "!word",
            "`${word}`",
            "eval(\"try { list.len() > 0 } catch { false }\")",
            "type_of(word)",
        ];
        let operators = [
            "==", "!=", "<", ">=", "&&", "||", "in", "!in", "+", "-", "*", "/", "%", "^", "??",
            "|", "&",
        ];
        let pairs = operands.iter().flat_map(|one| {
            let others = operands.iter();
            others
                .flat_map(move |other| operators.map(|between| format!("{one} {between} {other}")))
        });
        let alone = operands.iter().map(|one| (*one).to_owned());
        let engine = with_variables(Engine::new(), &variables);
        let mut plain_ones = 0;
        for expression in alone.chain(pairs) {
            let full = shown(evaluate(&engine, &expression));
            let plain = evaluate(&evaluator.plain, &expression);
            if let Ok(plain) = &plain {
                plain_ones += 1;
                assert_eq!(plain.to_string(), full, "{expression}");
            }
            assert_eq!(shown(evaluator.truth(&expression)), full, "{expression}");
        }
        assert!(plain_ones > 500, "{plain_ones}");
        let plain = evaluate(
            &evaluator.plain,
            "word == \"ab\" && flag && !(word != \"ab\")",
        );
        assert!(plain.unwrap());
    }
}
