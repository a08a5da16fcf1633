//! The file `run.toml`: the options of a run, as `--config` reads them.

use std::{fs, path::Path};

use anyhow::Result;
use clap::{Arg, ArgAction, ArgMatches, Command};
use serde_json::Value;

use super::RunRecord;
use crate::{
    command_line::Options,
    configuration::{
        CONFIG,
        file::{key_of, options},
        kind::Kind,
    },
    console::terminal,
    files::{set_aside, whole_file},
};

/// Options of one start or one machine, which do not change the results: they stand in `run.toml` as comments.
const NOT_REPEATED: [&str; 8] = [
    "resume",
    "output-dir",
    "devices",
    "hosts",
    "kernel-cache",
    "kernels",
    "mlflow",
    "mlflow-experiment",
];

/// The option whose default depends on the machine and changes the results.
const REPLICAS: &str = "replicas";

/// The options of a run for `run.toml`, in the order of definition.
#[derive(Clone, Debug)]
pub struct RunFile(Vec<Entry>);

#[derive(Clone, Debug)]
struct Entry {
    long: String,
    key: String,
    value: Written,
}

/// A value in the file.
#[derive(Clone, Debug, PartialEq)]
enum Written {
    /// A TOML value.
    Value(String),
    /// The option has no value.
    Unset,
    /// The value is not UTF-8, which a TOML file is.
    NotText,
}

impl RunFile {
    /// The options of `command`, with the values in `recorded`.
    pub(crate) fn new(command: &Command, matches: &ArgMatches, recorded: &Options) -> Self {
        let entries = options(command).filter_map(|(argument, long)| {
            let value = &recorded.get(&format!("--{long}"))?.value;
            Some(Entry {
                long: long.to_owned(),
                key: key_of(long),
                value: written(argument, matches, value),
            })
        });
        RunFile(entries.collect())
    }

    /// Writes `run.toml` atomically. A file with other options is renamed and kept.
    ///
    /// # Errors
    /// The file cannot be written, or an earlier one cannot be renamed.
    pub fn write(&self, path: &Path, run: &RunRecord) -> Result<()> {
        let text = self.text(run);
        let earlier = fs::read(path).ok();
        let is_other =
            |earlier: Vec<u8>| options_in(&String::from_utf8_lossy(&earlier)) != options_in(&text);
        if earlier.is_some_and(is_other) {
            for (from, to) in set_aside(&[path.to_owned()])? {
                terminal::print(format_args!(
                    "{} with other options is kept as {}",
                    from.display(),
                    to.display()
                ));
            }
        }
        whole_file::write(path, text)
    }

    /// The text of `run.toml`: comments on the run, the options that repeat it, and those that are not
    /// repeated as comments.
    pub fn text(&self, run: &RunRecord) -> String {
        let mut text = head(run);
        let mut unset = Vec::new();
        let (start, repeated): (Vec<_>, Vec<_>) = self
            .0
            .iter()
            .partition(|entry| NOT_REPEATED.contains(&entry.long.as_str()));
        for entry in repeated {
            match &entry.value {
                Written::Value(value) => text += &format!("{} = {value}\n", entry.key),
                Written::Unset => match replicas(entry, run) {
                    Some(replicas) => text += &format!("{} = {replicas}\n", entry.key),
                    None => unset.push(entry.key.as_str()),
                },
                Written::NotText => {
                    text += &format!("# {} is not UTF-8: give --{}\n", entry.key, entry.long);
                }
            }
        }
        let start: Vec<String> = start.into_iter().filter_map(comment).collect();
        if !start.is_empty() {
            text += &format!(
                "\n# Of this start and machine, and not repeated:\n{}",
                start.concat()
            );
        }
        if !unset.is_empty() {
            text += &format!("\n# Not set: {}\n", unset.join(", "));
        }
        text
    }
}

/// The lines of a configuration file that are no comments.
fn options_in(text: &str) -> Vec<&str> {
    text.lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect()
}

/// The comment on an option that is not repeated.
fn comment(entry: &Entry) -> Option<String> {
    match &entry.value {
        // A string may have several lines.
        Written::Value(value) => {
            let line = format!("{} = {value}", entry.key).replace('\n', "\n# ");
            Some(format!("# {line}\n"))
        }
        Written::Unset | Written::NotText => None,
    }
}

/// The replicas per process of the run, where the option was left to the machine.
fn replicas(entry: &Entry, run: &RunRecord) -> Option<usize> {
    let (replicas, processes) = (run.replicas?, run.processes?);
    let is_even = processes > 0 && replicas > 0 && replicas.is_multiple_of(processes);
    (entry.long == REPLICAS && is_even).then(|| replicas / processes)
}

/// The comments at the start of the file.
fn head(run: &RunRecord) -> String {
    let (program, git) = (&run.program, run.git.as_ref());
    let commit = git.map_or(String::new(), |git| {
        let state = if git.dirty { " with changes" } else { "" };
        format!(", commit {}{state}", git.commit)
    });
    format!(
        "# {} {} with Burn {}{commit}: the options of a run, which --{CONFIG} repeats.\n\
         # The command line precedes environment variables, which precede this file.\n\n",
        program.name, program.version, program.burn
    )
}

/// The value of an option as TOML.
fn written(argument: &Arg, matches: &ArgMatches, value: &Value) -> Written {
    let raw = matches.get_raw(argument.get_id().as_str());
    if raw
        .into_iter()
        .flatten()
        .any(|word| word.to_str().is_none())
    {
        return Written::NotText;
    }
    let kind = Kind::of(argument);
    match value {
        Value::Null => Written::Unset,
        Value::Bool(value) => {
            // A flag of this action is false when given.
            let is_inverse = matches!(argument.get_action(), ArgAction::SetFalse);
            Written::Value((*value != is_inverse).to_string())
        }
        Value::Array(values) if values.is_empty() => Written::Unset,
        Value::Array(values) => {
            let values: Vec<String> = values.iter().map(|value| scalar(kind, value)).collect();
            Written::Value(format!("[{}]", values.join(", ")))
        }
        value => Written::Value(scalar(kind, value)),
    }
}

/// A single value as TOML, of a type that its option takes.
fn scalar(kind: Kind, value: &Value) -> String {
    match (kind, value) {
        // With all digits that the number needs to be read back.
        (_, Value::Number(number)) if number.is_f64() => {
            number.as_f64().map_or_else(String::new, float)
        }
        // JSON has no infinity.
        (Kind::Float, Value::String(text)) => text.parse().map_or_else(|_| quoted(text), float),
        (Kind::Other, Value::String(text)) if is_integer(text) => text.clone(),
        (_, Value::String(text)) => quoted(text),
        (_, other) => other.to_string(),
    }
}

fn float(number: f64) -> String {
    // Rust writes NaN with capitals.
    format!("{number:?}").to_lowercase()
}

fn is_integer(text: &str) -> bool {
    text.parse::<i64>()
        .is_ok_and(|number| number.to_string() == text)
}

fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}
