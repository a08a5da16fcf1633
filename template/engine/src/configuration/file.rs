//! Reads a configuration file, and finds the place of each error.

use std::{ffi::OsString, fmt, fs::File, io::Read, ops::Range, path::Path};

use clap::{
    Arg, ArgAction, Command,
    error::{ContextKind, ContextValue, ErrorKind},
};
use toml::{
    Spanned,
    de::{DeString, DeTable, DeValue},
};

use super::{
    CONFIG,
    kind::{Kind, is_list},
};
use crate::similar::nearest;

/// Maximum size of a configuration file, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// The errors of clap that are of a value, and of the file if the value is.
const OF_A_VALUE: [ErrorKind; 8] = [
    ErrorKind::InvalidUtf8,
    ErrorKind::InvalidValue,
    ErrorKind::NoEquals,
    ErrorKind::TooFewValues,
    ErrorKind::TooManyValues,
    ErrorKind::UnknownArgument,
    ErrorKind::ValueValidation,
    ErrorKind::WrongNumberOfValues,
];

/// An option of a configuration file.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The id of the option.
    pub id: String,
    /// Its long name.
    pub long: String,
    /// The option as on the command line; empty for a flag that is not set.
    pub words: Vec<OsString>,
    /// Whether it is also accepted after a subcommand.
    pub is_global: bool,
    /// File, line and column of its key.
    pub place: String,
}

/// The options in a configuration file, each with a valid value.
///
/// # Errors
/// One text per error: the file cannot be read, or it has a syntax error, an unknown key or a wrong value.
pub fn read(path: &Path, command: &Command) -> Result<Vec<Setting>, Vec<String>> {
    let shown = path.display().to_string();
    let text = contents(path).map_err(|reason| vec![format!("cannot read {shown}: {reason}")])?;
    parse(&shown, &text, command)
}

/// The text of a configuration file.
///
/// # Errors
/// It is a folder, larger than 1 MiB, no UTF-8, or cannot be read.
pub fn contents(path: &Path) -> Result<String, String> {
    if path.is_dir() {
        return Err(
            "it is a folder, and no configuration file such as the run.toml of a run".to_owned(),
        );
    }
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
    read.map_err(|error| error.to_string())?;
    match text.len() as u64 > MAX_BYTES {
        true => Err("it is larger than 1 MiB, and so no configuration file".to_owned()),
        false => Ok(text),
    }
}

/// As [`read`], of the text of the file `path`.
fn parse(path: &str, text: &str, command: &Command) -> Result<Vec<Setting>, Vec<String>> {
    let source = Source { path, text };
    let entries = source.entries()?;
    // The number of values of each option is known once the command is built.
    let mut command = command.clone();
    command.build();
    let (mut settings, mut errors) = (Vec::<Setting>::new(), Vec::new());
    for (key, value) in entries {
        match setting(&source, &command, &key, &value) {
            Ok(setting) => match settings.iter().find(|other| other.id == setting.id) {
                None => settings.push(setting),
                Some(other) => errors.push(source.error(
                    key.span(),
                    format!("`{}` is set twice: first in {}", key.get_ref(), other.place),
                )),
            },
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() {
        Ok(settings)
    } else {
        Err(errors)
    }
}

/// A key of a table, and its value.
pub type Entry<'a> = (Spanned<DeString<'a>>, Spanned<DeValue<'a>>);

/// The entries of a table, in the order of the file.
pub fn in_order(table: DeTable) -> Vec<Entry> {
    let mut entries: Vec<_> = table.into_iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// A file with its text.
pub struct Source<'a> {
    /// The path, as in messages.
    pub path: &'a str,
    /// The whole text.
    pub text: &'a str,
}

impl<'a> Source<'a> {
    /// The entries at the top of the file, in its order.
    ///
    /// # Errors
    /// A text per syntax error.
    pub fn entries(&self) -> Result<Vec<Entry<'a>>, Vec<String>> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        if errors.is_empty() {
            return Ok(in_order(table.into_inner()));
        }
        let of =
            |error: &toml::de::Error| self.error(error.span().unwrap_or(0..0), error.message());
        Err(errors.iter().map(of).collect())
    }

    /// Line and column of a byte, both from 1; a column is a character.
    fn line_and_column(&self, byte: usize) -> (usize, usize) {
        let before = &self.text[..self.text.floor_char_boundary(byte)];
        let line = before.rsplit('\n').next().unwrap_or_default();
        (before.matches('\n').count() + 1, line.chars().count() + 1)
    }

    /// `FILE:LINE:COLUMN`.
    pub fn place(&self, byte: usize) -> String {
        let (line, column) = self.line_and_column(byte);
        format!("{}:{line}:{column}", self.path)
    }

    /// A message with its place, and the line with the place underlined.
    pub fn error(&self, span: Range<usize>, message: impl fmt::Display) -> String {
        let (number, column) = self.line_and_column(span.start);
        let line = self.text.lines().nth(number - 1).unwrap_or_default();
        // Tabs and control characters would shift the underline or act on the terminal.
        let line: String = line
            .chars()
            .map(|one| if one.is_control() { ' ' } else { one })
            .collect();
        let marked = self
            .text
            .get(span)
            .unwrap_or_default()
            .lines()
            .next()
            .unwrap_or_default();
        let underline = "^".repeat(marked.chars().count().max(1));
        let (margin, space) = (" ".repeat(number.to_string().len()), " ".repeat(column - 1));
        let place = format!("{}:{number}:{column}", self.path);
        format!("{place}: {message}\n{margin} |\n{number} | {line}\n{margin} | {space}{underline}")
    }
}

/// An option of the file from its key and value; `command` is built.
///
/// # Errors
/// The key is no option, or the value is not one of it.
pub fn setting(
    source: &Source,
    command: &Command,
    key: &Spanned<impl AsRef<str>>,
    value: &Spanned<DeValue>,
) -> Result<Setting, String> {
    let name = key.get_ref().as_ref();
    let Some((argument, long)) = option(command, name) else {
        let message = unknown(command, name, value.get_ref());
        return Err(source.error(key.span(), message));
    };
    let words = words(argument, long, name, value)
        .map_err(|(span, message)| source.error(span, message))?;
    check(command, long, &words).map_err(|message| source.error(value.span(), message))?;
    Ok(Setting {
        id: argument.get_id().to_string(),
        long: long.to_owned(),
        words,
        is_global: argument.is_global_set(),
        place: source.place(key.span().start),
    })
}

/// The option of a key, with its long name, whose hyphens may be underscores in the key.
pub fn option<'a>(command: &'a Command, key: &str) -> Option<(&'a Arg, &'a str)> {
    let is_key = |name: &str| name == key || key_of(name) == key;
    options(command).find(|(argument, long)| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        is_key(long) || aliases.into_iter().any(is_key)
    })
}

/// The options that a file may set.
pub fn options(command: &Command) -> impl Iterator<Item = (&Arg, &str)> {
    let options = command
        .get_arguments()
        .filter_map(|one| Some((one, one.get_long()?)));
    options.filter(|(argument, _)| !prints(argument) && argument.get_id() != CONFIG)
}

/// Whether an argument prints something instead of having a value.
fn prints(argument: &Arg) -> bool {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    matches!(argument.get_action(), Help | HelpLong | HelpShort | Version)
}

/// The key of an option in a file.
pub fn key_of(long: &str) -> String {
    long.replace('-', "_")
}

/// The error of a key that is no option.
fn unknown(command: &Command, key: &str, value: &DeValue) -> String {
    if key == CONFIG {
        return "`config` is an option of the command line alone: a file cannot name another"
            .to_owned();
    }
    let is_key = |argument: &&Arg| {
        let name = argument.get_long().unwrap_or(argument.get_id().as_str());
        key_of(name) == key_of(key) && !argument.is_global_set() && !prints(argument)
    };
    let owners = command
        .get_subcommands()
        .filter(|one| one.get_name() != "help");
    let owners = owners.filter(|one| one.get_arguments().any(|argument| is_key(&argument)));
    let owners: Vec<String> = owners.map(|one| format!("`{}`", one.get_name())).collect();
    if !owners.is_empty() {
        let owners = listed(&owners);
        return format!(
            "`{key}` belongs to {owners}, and not to training: give it on the command line"
        );
    }
    let what = match value {
        DeValue::Table(_) => format!("unknown table `{key}`: options stand in no table"),
        _ => format!("unknown option `{key}`"),
    };
    match nearest(&key_of(key), options(command).map(|(_, long)| key_of(long))) {
        Some((_, key)) => format!("{what}; the nearest option is `{key}`"),
        None => format!("{what}; --help lists all options"),
    }
}

/// `a`, `b` and `c`.
pub fn listed(names: &[String]) -> String {
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

type Misfit = (Range<usize>, String);

/// The option as on the command line.
fn words(
    argument: &Arg,
    long: &str,
    key: &str,
    value: &Spanned<DeValue>,
) -> Result<Vec<OsString>, Misfit> {
    let (kind, option) = (Kind::of(argument), format!("--{long}"));
    match kind {
        Kind::Flag => {
            let is_set = scalar(kind, key, value)? == "true";
            return Ok(if is_set {
                vec![option.into()]
            } else {
                Vec::new()
            });
        }
        Kind::Count => {
            let count = scalar(kind, key, value)?;
            let count: u8 = count.parse().map_err(|_| {
                (
                    value.span(),
                    format!("`{key}` is {count}, and must be between 0 and 255"),
                )
            })?;
            return Ok(vec![option.into(); count.into()]);
        }
        _ => {}
    }
    let values = match value.get_ref() {
        DeValue::Array(values) if is_list(argument) => {
            let values = values
                .iter()
                .map(|value| element(argument, kind, key, value));
            values.collect::<Result<Vec<_>, _>>()?
        }
        DeValue::Array(_) => {
            let message = format!(
                "`{key}` takes one value, {}, and this is an array",
                kind.name()
            );
            return Err((value.span(), message));
        }
        _ => vec![element(argument, kind, key, value)?],
    };
    Ok(
        match (argument.get_value_delimiter(), argument.get_action()) {
            _ if values.is_empty() => Vec::new(),
            (Some(delimiter), _) => {
                vec![format!("{option}={}", values.join(&delimiter.to_string())).into()]
            }
            (None, ArgAction::Append) if !takes_several(argument) => values
                .iter()
                .map(|value| format!("{option}={value}").into())
                .collect(),
            (None, _) if values.len() == 1 => vec![format!("{option}={}", values[0]).into()],
            (None, _) => [option]
                .into_iter()
                .chain(values)
                .map(OsString::from)
                .collect(),
        },
    )
}

/// Whether an option takes several values after its name.
fn takes_several(argument: &Arg) -> bool {
    argument
        .get_num_args()
        .is_some_and(|range| range.max_values() > 1)
}

/// A value, or one of a list, which must not hold the delimiter.
fn element(
    argument: &Arg,
    kind: Kind,
    key: &str,
    value: &Spanned<DeValue>,
) -> Result<String, Misfit> {
    let text = scalar(kind, key, value)?;
    match argument
        .get_value_delimiter()
        .filter(|delimiter| text.contains(*delimiter))
    {
        Some(delimiter) => {
            let message =
                format!("a value of `{key}` must not hold a `{delimiter}`: write an array");
            Err((value.span(), message))
        }
        None => Ok(text),
    }
}

/// The text of a value of this kind.
fn scalar(kind: Kind, key: &str, value: &Spanned<DeValue>) -> Result<String, Misfit> {
    let text = match (value.get_ref(), kind) {
        (DeValue::Boolean(flag), Kind::Flag | Kind::Boolean) => Some(flag.to_string()),
        (DeValue::String(text), Kind::Text | Kind::Other) => Some(text.to_string()),
        (DeValue::Float(number), Kind::Float | Kind::Other) => Some(number.as_str().to_owned()),
        (DeValue::Integer(number), Kind::Count | Kind::Integer | Kind::Float | Kind::Other) => {
            i128::from_str_radix(number.as_str(), number.radix())
                .ok()
                .map(|one| one.to_string())
        }
        _ => None,
    };
    text.ok_or_else(|| {
        let this = match value.get_ref() {
            DeValue::Integer(_) if matches!(kind, Kind::Integer | Kind::Float) => "beyond 128 bits",
            value => type_of(value),
        };
        (
            value.span(),
            format!("`{key}` takes {}, and this is {this}", kind.name()),
        )
    })
}

/// Checks a value with the parser of the option.
fn check(command: &Command, long: &str, words: &[OsString]) -> Result<(), String> {
    let program = OsString::from(command.get_name());
    let parsed = command
        .clone()
        .try_get_matches_from([&[program], words].concat());
    let Err(error) = parsed else { return Ok(()) };
    let is_of_this = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(name)) => name.starts_with(&format!("--{long}")),
        _ => false,
    };
    if !is_of_this || !OF_A_VALUE.contains(&error.kind()) {
        return Ok(());
    }
    Err(in_a_line(&error))
}

/// The message of an error of clap, without the usage.
pub fn in_a_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end =
        ["\n\nFor more information", "\n\nUsage:"].map(|end| text.find(end).unwrap_or(text.len()));
    let text = &text[..end[0].min(end[1])];
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The type of a value as a noun with an article.
pub fn type_of(value: &DeValue) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "an integer",
        DeValue::Float(_) => "a float",
        DeValue::Boolean(_) => "a boolean",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}
