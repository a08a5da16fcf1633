//! The options of a template and their values.

use std::{fmt, ops::Range};

use regex::Regex;

use crate::error::{Error, Result, suggest};

/// The variables of every template. An option cannot have one of these names.
pub(crate) const BUILT_IN: &[&str] = &[
    "project-name",
    "crate_name",
    "crate_type",
    "os-arch",
    "authors",
    "username",
    "within_cargo_project",
    "is_init",
];

/// A choice of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The value in the template.
    pub value: String,
    /// The label in the wizard.
    pub label: String,
    /// A line that explains it.
    pub help: Option<String>,
}

/// The type of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionKind {
    /// A string, optionally restricted to matches of a regular expression.
    Text {
        /// The regular expression.
        regex: Option<String>,
    },
    /// One of several choices.
    Choice(Vec<Choice>),
    /// A boolean.
    Flag,
    /// Any subset of several choices.
    List(Vec<Choice>),
}

/// A value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A string or a choice.
    Text(String),
    /// A boolean.
    Flag(bool),
    /// A list of choices.
    List(Vec<String>),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => f.write_str(text),
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::List(list) => f.write_str(&list.join(",")),
        }
    }
}

/// An option of a template: a placeholder in `cargo-generate.toml`.
#[derive(Debug, Clone)]
pub struct TemplateOption {
    /// The name.
    pub name: String,
    /// The text of the prompt.
    pub prompt: String,
    /// The type.
    pub kind: OptionKind,
    /// A line that explains it; of a text, in words what it may be.
    pub help: Option<String>,
    /// The default value.
    pub default: Option<Value>,
    /// The span of the option in `cargo-generate.toml`.
    pub(crate) span: Range<usize>,
    /// The span of the regular expression in `cargo-generate.toml`.
    pub(crate) regex_span: Option<Range<usize>>,
}

impl TemplateOption {
    /// Parses a value: lists are separated by commas, flags are `true` or `false`.
    ///
    /// # Errors
    /// The value is invalid for this option.
    pub fn parse(&self, given: &str) -> Result<Value> {
        match &self.kind {
            OptionKind::Text { regex } => self.parse_text(given, regex.as_deref()),
            OptionKind::Choice(choices) => {
                self.check_choice(given, choices)?;
                Ok(Value::Text(given.to_owned()))
            }
            OptionKind::Flag => match given.to_lowercase().parse() {
                Ok(flag) => Ok(Value::Flag(flag)),
                Err(_) => Err(self.refuse(given, "its values are `true` and `false`")),
            },
            OptionKind::List(choices) => {
                let items: Vec<_> = given.split(',').filter(|item| !item.is_empty()).collect();
                for item in &items {
                    self.check_choice(item, choices)?;
                }
                Ok(Value::List(items.into_iter().map(str::to_owned).collect()))
            }
        }
    }

    /// All values: each choice, both flags, every subset of a list; of a string, only the default.
    pub fn values(&self) -> Vec<Value> {
        match &self.kind {
            OptionKind::Text { .. } => self.default.clone().into_iter().collect(),
            OptionKind::Flag => vec![Value::Flag(false), Value::Flag(true)],
            OptionKind::Choice(choices) => choices
                .iter()
                .map(|choice| Value::Text(choice.value.clone()))
                .collect(),
            OptionKind::List(choices) => (0..1_usize << choices.len())
                .map(|set| Value::List(subset(choices, set)))
                .collect(),
        }
    }

    fn parse_text(&self, given: &str, regex: Option<&str>) -> Result<Value> {
        if let Some(regex) = regex {
            let compiled = Regex::new(regex).map_err(|error| {
                Error::template(format!("the regex of `{}` is invalid: {error}", self.name))
                    .help("use the syntax of the crate `regex`: https://docs.rs/regex")
            })?;
            if !compiled.is_match(given) {
                return Err(self.refuse(given, &format!("give {}", self.form(regex))));
            }
        }
        Ok(Value::Text(given.to_owned()))
    }

    /// In words, what the regular expression of the option requires.
    pub(crate) fn form(&self, regex: &str) -> String {
        match (&self.help, &self.default) {
            (Some(help), _) => help.clone(),
            (None, Some(example)) if is_match(regex, &example.to_string()) => {
                format!("text in the form of `{example}`, with the regex `{regex}`")
            }
            (None, _) => format!("text in the template's form, with the regex `{regex}`"),
        }
    }

    fn check_choice(&self, given: &str, choices: &[Choice]) -> Result<()> {
        let values = choices.iter().map(|choice| choice.value.as_str());
        if values.clone().any(|value| value == given) {
            return Ok(());
        }
        Err(self.refuse(given, &suggest(given, values, "its values")))
    }

    fn refuse(&self, given: &str, why: &str) -> Error {
        Error::input(format!(
            "{given:?} is not a value of the option `{}`",
            self.name
        ))
        .help(why.to_owned())
    }
}

fn is_match(regex: &str, text: &str) -> bool {
    Regex::new(regex).is_ok_and(|regex| regex.is_match(text))
}

fn subset(choices: &[Choice], set: usize) -> Vec<String> {
    choices
        .iter()
        .enumerate()
        .filter(|(at, _)| set & (1 << at) != 0)
        .map(|(_, choice)| choice.value.clone())
        .collect()
}
