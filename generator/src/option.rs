//! The options of a template and the answers to them.

use std::{
    fmt::{self, Write as _},
    ops::Range,
};

use indexmap::IndexMap;
use regex::Regex;

use crate::{
    config::Config,
    error::{Error, Result, suggest},
    name::Name,
    template::Template,
};

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

    pub(crate) fn check_default(&self, config: &Config) -> Result<()> {
        let Some(default) = &self.default else {
            return Ok(());
        };
        self.parse(&default.to_string()).map(drop).map_err(|error| {
            let said = config.error_at(
                self.span.clone(),
                format!("the default of `{}` is refused: {error}", self.name),
                "this option",
            );
            said.help(error.way_out().unwrap_or("give it another `default`"))
        })
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

/// Values of some options, by name.
pub type Values = IndexMap<String, Value>;

/// A name and a value for every option, in the order of the template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answers {
    name: Name,
    values: Values,
}

impl Answers {
    /// The defaults of a template.
    ///
    /// # Errors
    /// An option has no default.
    pub fn defaults(template: &Template, name: Name) -> Result<Self> {
        Self::complete(template, name, IndexMap::new())
    }

    /// The given values, and the defaults of the other options.
    ///
    /// # Errors
    /// A key is no option, or an option has neither a value nor a default.
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

    /// The same answers, but for one.
    ///
    /// # Errors
    /// There is no such option, or it does not take this value.
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

/// These options have neither a value nor a default.
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

/// `key` is not an option of `template`.
pub(crate) fn unknown_option(template: &Template, key: &str) -> Error {
    let error = Error::input(if key.is_empty() {
        "no option is named before the `=`".to_owned()
    } else {
        format!("there is no option `{key}`")
    });
    if crate::variables::BUILT_IN.contains(&key) {
        return error.help(format!(
            "`{key}` follows from the name and place of the project"
        ));
    }
    let names: Vec<_> = template
        .options()
        .iter()
        .map(|option| option.name.as_str())
        .collect();
    error.help(suggest(key, names, "the options"))
}
