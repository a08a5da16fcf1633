//! Answers: the values of a template's options.

use std::fmt::Write as _;

use indexmap::IndexMap;

use super::{
    Template,
    applicable::Applicable,
    option::{BUILT_IN, OptionKind, TemplateOption, Value},
    values,
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

    /// The given values, and the defaults of the other options that apply.
    ///
    /// # Errors
    /// A key is not an option of the template or only one under a condition that does not hold, an
    /// option has neither a value nor a default, or a condition is invalid.
    pub fn complete(template: &Template, name: Name, given: Values) -> Result<Self> {
        Self::with_used(Self::resolve(template, name, given)?, |_| true)
    }

    /// Like [`Answers::complete`], but drops values of options that do not apply or that no longer
    /// have this value, and returns their names.
    ///
    /// # Errors
    /// As for [`Answers::complete`], but not for these options.
    pub fn fitting(template: &Template, name: Name, given: Values) -> Result<(Self, Vec<String>)> {
        let (answers, unused) = Self::resolve(template, name, given)?;
        Ok((answers, unused.into_iter().map(|(key, _)| key).collect()))
    }

    /// The answers, and the given options of conditions that are not used, each with the reason.
    fn resolve(
        template: &Template,
        name: Name,
        given: Values,
    ) -> Result<(Self, Vec<(String, Error)>)> {
        let found = Applicable::of(template, &name, &given, true)?;
        if !found.lacking.is_empty() {
            let misfit = found.misfits.into_iter().next();
            return Err(misfit.map_or_else(|| without_default(&found.lacking), |(_, error)| error));
        }
        let values = found.values;
        let mut unused = found.misfits;
        for key in given.into_keys().filter(|key| !values.contains_key(key)) {
            if template.option(&key).is_none() {
                return Err(unknown_option(template, &key));
            }
            let error = does_not_apply(template, &key);
            unused.push((key, error));
        }
        Ok((Self { name, values }, unused))
    }

    /// The answers of [`Answers::resolve`], or the error of the first key that must be used.
    fn with_used(
        (answers, unused): (Self, Vec<(String, Error)>),
        must: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let mut unused = unused.into_iter();
        let error = unused.find(|(key, _)| must(key));
        error.map_or(Ok(answers), |(_, error)| Err(error))
    }

    /// Whether `option` is the definition that applies of the option of its name.
    ///
    /// # Errors
    /// A condition is invalid.
    #[cfg(feature = "snapshot")]
    pub(crate) fn defined_by(&self, template: &Template, option: &TemplateOption) -> Result<bool> {
        let found = Applicable::of(template, &self.name, &self.values, true)?;
        Ok(found.options.iter().any(|one| std::ptr::eq(*one, option)))
    }

    /// Recorded values with new ones. Recorded values of options that do not apply any longer are
    /// dropped; a new one is an error.
    ///
    /// # Errors
    /// As for [`Answers::complete`].
    pub fn renewed(template: &Template, name: Name, all: Values, new: &Values) -> Result<Self> {
        let resolved = Self::resolve(template, name, all)?;
        Self::with_used(resolved, |key| new.contains_key(key))
    }

    /// Values of some of the options.
    pub(crate) fn partial(name: Name, values: Values) -> Self {
        Self { name, values }
    }

    /// The same answers with one value replaced. Options of conditions that then hold have their
    /// defaults.
    ///
    /// # Errors
    /// The option does not exist, does not apply or refuses the value.
    pub fn with(mut self, template: &Template, key: &str, given: &str) -> Result<Self> {
        let value = values::parse(template, key, given)
            .unwrap_or_else(|| Err(unknown_option(template, key)))?;
        self.values.insert(key.to_owned(), value);
        if template.conditional_options().next().is_none() {
            return Ok(self);
        }
        let resolved = Self::resolve(template, self.name, self.values)?;
        Self::with_used(resolved, |unused| unused == key)
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

/// An error for an option whose conditions do not hold.
fn does_not_apply(template: &Template, key: &str) -> Error {
    let all = template.conditional_options();
    let conditions: Vec<_> = all
        .filter(|(_, option)| option.name == key)
        .map(|(condition, _)| format!("`{condition}`"))
        .collect();
    let (conditions, are) = match conditions.as_slice() {
        [one] => (one.clone(), "is"),
        several => (several.join(" or "), "are"),
    };
    Error::input(format!(
        "the option `{key}` only applies if {conditions}, which {are} false here"
    ))
    .help("remove it, or change the options of the condition")
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
    let names: Vec<_> = template.config().all_options().collect();
    let names = names.iter().map(|option| option.name.as_str());
    error.help(suggest(key, names, "the options"))
}
