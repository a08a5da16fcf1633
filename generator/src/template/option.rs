//! The options of a template, and the values that they take.

use std::{fmt, ops::Range};

use regex::Regex;

use crate::error::{Error, Result, suggest};

/// The variables that every template has. No option can have one of these names.
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

/// One of the values that an option can take.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// What the template sees.
    pub value: String,
    /// What people see.
    pub label: String,
}

/// What values an option takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionKind {
    /// Any text, or any that this regular expression finds a match in.
    Text {
        /// The regular expression.
        regex: Option<String>,
    },
    /// One of these.
    Choice(Vec<Choice>),
    /// Yes or no.
    Flag,
    /// Any number of these.
    List(Vec<Choice>),
}

/// A value of an option.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Of a text or a choice.
    Text(String),
    /// Of a flag.
    Flag(bool),
    /// Of a list.
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

/// Something that a template asks.
#[derive(Debug, Clone)]
pub struct TemplateOption {
    /// Its key.
    pub name: String,
    /// The question.
    pub prompt: String,
    /// What it takes.
    pub kind: OptionKind,
    /// What it is when nobody says.
    pub default: Option<Value>,
    /// Where it stands in `cargo-generate.toml`.
    pub(crate) span: Range<usize>,
    /// Where its regular expression stands there.
    pub(crate) regex_span: Option<Range<usize>>,
}

impl TemplateOption {
    /// Reads a value as people write it: lists with commas, flags as `true` and `false`.
    ///
    /// # Errors
    /// The option does not take this value.
    pub fn parse(&self, given: &str) -> Result<Value> {
        match &self.kind {
            OptionKind::Text { regex } => self.parse_text(given, regex.as_deref()),
            OptionKind::Choice(choices) => {
                self.check_choice(given, choices)?;
                Ok(Value::Text(given.to_owned()))
            }
            OptionKind::Flag => match given.to_lowercase().parse() {
                Ok(flag) => Ok(Value::Flag(flag)),
                Err(_) => Err(self.refuse(given, "it takes `true` or `false`")),
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

    /// The values that can be enumerated: the choices, both flags, every set; of a text the default.
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
                Error::template(format!("the regex of `{}` is wrong: {error}", self.name))
                    .help("write it as the crate `regex` has it: https://docs.rs/regex")
            })?;
            if !compiled.is_match(given) {
                return Err(self.refuse(given, &format!("it must match the regex `{regex}`")));
            }
        }
        Ok(Value::Text(given.to_owned()))
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

fn subset(choices: &[Choice], set: usize) -> Vec<String> {
    choices
        .iter()
        .enumerate()
        .filter(|(at, _)| set & (1 << at) != 0)
        .map(|(_, choice)| choice.value.clone())
        .collect()
}
