//! Answers: the values of a template's options.

use std::fmt::Write as _;

use indexmap::IndexMap;

use super::{
    Template,
    option::{BUILT_IN, OptionKind, TemplateOption, Value},
};
use crate::{
    error::{Error, Result, suggest},
    name::Name,
};

/// Values of some options, by option name.
pub type Values = IndexMap<String, Value>;

/// A project name and a value for every option, in the order of the template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    name: Name,
    values: Values,
}

impl Answers {
    /// The default values of a template.
    ///
    /// # Errors
    /// An option has no default.
    pub fn defaults(template: &Template, name: Name) -> Result<Self> {
        Self::complete(template, name, IndexMap::new())
    }

    /// The given values, and the defaults of the other options.
    ///
    /// # Errors
    /// A key is not an option of the template, or an option has neither a value nor a default.
    pub fn complete(template: &Template, name: Name, mut given: Values) -> Result<Self> {
        let mut values = IndexMap::new();
        let mut lacking = Vec::new();
        for option in template.options() {
            let value = given.shift_remove(&option.name);
            match value.or_else(|| option.default.clone()) {
                Some(value) => drop(values.insert(option.name.clone(), value)),
                None => lacking.push(option),
            }
        }
        if !lacking.is_empty() {
            return Err(without_default(&lacking));
        }
        match given.keys().next() {
            None => Ok(Self { name, values }),
            Some(key) => Err(unknown_option(template, key)),
        }
    }

    /// The same answers with one value replaced.
    ///
    /// # Errors
    /// The option does not exist or refuses the value.
    pub fn with(mut self, template: &Template, key: &str, given: &str) -> Result<Self> {
        let option = template
            .option(key)
            .ok_or_else(|| unknown_option(template, key))?;
        self.values.insert(key.to_owned(), option.parse(given)?);
        Ok(self)
    }

    /// The name of the project.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// The value of every option.
    pub fn values(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.values.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// The value of one option.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }
}

/// An error for options without value and default.
fn without_default(options: &[&TemplateOption]) -> Error {
    let names: Vec<_> = options.iter().map(|o| format!("`{}`", o.name)).collect();
    let defines = options.iter().map(|o| format!("--define {}=VALUE", o.name));
    let mut help = format!("add `{}`", defines.collect::<Vec<_>>().join(" "));
    for option in options {
        if let OptionKind::Choice(choices) | OptionKind::List(choices) = &option.kind {
            let values: Vec<_> = choices.iter().map(|c| format!("`{}`", c.value)).collect();
            let _ = write!(
                help,
                "\nthe values of `{}` are {}",
                option.name,
                values.join(", ")
            );
        }
    }
    let error = match names.as_slice() {
        [one] => Error::input(format!("the option {one} has no default")),
        all => Error::input(format!("the options {} have no default", all.join(", "))),
    };
    error.help(help)
}

/// An error for a `key` that is not an option of `template`.
pub(crate) fn unknown_option(template: &Template, key: &str) -> Error {
    let error = Error::input(if key.is_empty() {
        "the option name before `=` is empty".to_owned()
    } else {
        format!("there is no option `{key}`")
    });
    if BUILT_IN.contains(&key) {
        return error.help(format!(
            "`{key}` is derived from the project's name and folder"
        ));
    }
    let names: Vec<_> = template
        .options()
        .iter()
        .map(|option| option.name.as_str())
        .collect();
    error.help(suggest(key, names, "the options"))
}
