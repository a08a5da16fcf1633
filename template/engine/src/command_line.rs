//! The command line of this process, parsed with the file of `--config`: all options with their effective values.

use std::{any::Any, env, path::PathBuf, sync::OnceLock};

use clap::{
    Arg, ArgAction, ArgMatches, Command, Parser, error::ErrorKind::ArgumentConflict,
    parser::ValueSource,
};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{configuration, options::OF_A_PROCESS};

/// Options by name, in the order of definition: `--epochs`, `test --checkpoint` for an option of a
/// subcommand, `infer files` for a positional argument.
pub type Options = IndexMap<String, OptionRecord>;

/// An option of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OptionRecord {
    /// A number, flag or text; a list for a repeatable option; null for an option without value and
    /// default.
    pub value: Value,
    /// Source of the value.
    pub source: Source,
}

/// Source of an option's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// Given on the command line.
    CommandLine,
    /// Taken from an environment variable.
    Environment,
    /// Taken from the file of `--config`.
    File,
    /// The default of the option.
    #[default]
    Default,
}

/// The crate of a program, from [`package!`](crate::package).
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// Package name.
    pub name: &'static str,
    /// Package version.
    pub version: &'static str,
    /// Folder of the sources at build time.
    pub folder: &'static str,
    /// `debug` or `release`.
    pub profile: &'static str,
}

/// The [`Package`] of the calling crate, for the run metadata.
#[macro_export]
macro_rules! package {
    () => {
        $crate::command_line::Package {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            folder: env!("CARGO_MANIFEST_DIR"),
            profile: if cfg!(debug_assertions) {
                "debug"
            } else {
                "release"
            },
        }
    };
}

/// The parsed command line of this process.
struct Parsed {
    package: Package,
    /// The options that the program has.
    program: Command,
    /// The subcommands.
    command: String,
    options: Options,
    matches: ArgMatches,
}

static PARSED: OnceLock<Parsed> = OnceLock::new();

/// Parses the command line as `Args::parse` does, with the options of the file of `--config`, and stores all
/// options and `package` for the run metadata.
pub fn parse<A: Parser>(package: Package) -> A {
    let command = A::command();
    let words: Vec<_> = env::args_os().collect();
    let given = configuration::parse(&command, &words).unwrap_or_else(|refusal| refusal.exit());
    let matches = given.matches;
    refuse_initial_weights(&matches)
        .unwrap_or_else(|refusal| A::command().error(ArgumentConflict, refusal).exit());
    let args = A::from_arg_matches(&matches)
        .unwrap_or_else(|error| error.format(&mut A::command()).exit());
    PARSED.get_or_init(|| {
        let options = options(&command, &matches, &given.from_file);
        Parsed {
            package,
            command: subcommands(&matches),
            program: command,
            options,
            matches,
        }
    });
    args
}

/// The values parsed by [`parse`], of which those of a configuration file count as given on the command line;
/// `None` if it was not called, as in tests.
pub(crate) fn matches() -> Option<&'static ArgMatches> {
    PARSED.get().map(|parsed| &parsed.matches)
}

/// The options that this program has, built, and the values parsed by [`parse`]; `None` if it was not called, as
/// in tests.
pub(crate) fn program() -> Option<(&'static Command, &'static ArgMatches)> {
    let parsed = PARSED.get()?;
    Some((&parsed.program, &parsed.matches))
}

/// The options parsed by [`parse`]; `None` if it was not called, as in tests.
pub fn parsed() -> Option<Options> {
    PARSED.get().map(|parsed| parsed.options.clone())
}

/// The crate of this program; the engine if [`parse`] was not called, as in tests.
pub(crate) fn package() -> Package {
    PARSED.get().map_or(package!(), |parsed| parsed.package)
}

/// The settings that must be equal in all processes of a job: the command and all options but the engine's
/// per-process ones. Empty if [`parse`] was not called, as in tests.
pub fn settings_of_job() -> Vec<(String, String)> {
    let Some(parsed) = PARSED.get() else {
        return Vec::new();
    };
    let of_job = parsed.options.iter();
    let of_job = of_job.filter(|(name, _)| !OF_A_PROCESS.contains(&name.as_str()));
    let of_job = of_job.map(|(name, option)| (name.clone(), shown(&option.value)));
    let command = ("the command".to_owned(), parsed.command.clone());
    [command].into_iter().chain(of_job).collect()
}

/// Commands that train.
const TRAINING: [&str; 4] = ["train", "launch", "sweep", "find-lr"];

/// Refuses `--init-from` where nothing would start from it.
fn refuse_initial_weights(matches: &ArgMatches) -> Result<(), String> {
    let given = matches.try_get_one::<PathBuf>("init_from").ok().flatten();
    match matches.subcommand_name() {
        Some(name) if given.is_some() && !TRAINING.contains(&name) => Err(format!(
            "--init-from is for a training, and `{name}` does not train"
        )),
        _ => Ok(()),
    }
}

fn subcommands(matches: &ArgMatches) -> String {
    let (mut names, mut level) = (Vec::new(), matches.subcommand());
    while let Some((name, matches)) = level {
        names.push(name);
        level = matches.subcommand();
    }
    names.join(" ")
}

/// The options of `matches`, of which those with an id in `from_file` are from a configuration file.
pub(crate) fn options(command: &Command, matches: &ArgMatches, from_file: &[String]) -> Options {
    let mut options = Options::new();
    let (mut prefix, mut level) = (String::new(), Some((command, matches)));
    while let Some((command, matches)) = level {
        for argument in command.get_arguments().filter(|one| has_value(one)) {
            options.insert(
                format!("{prefix}{}", name(argument)),
                OptionRecord {
                    value: value(argument, matches),
                    source: source(argument, matches, from_file),
                },
            );
        }
        level = matches.subcommand().and_then(|(name, matches)| {
            prefix += &format!("{name} ");
            Some((command.find_subcommand(name)?, matches))
        });
    }
    options
}

fn has_value(argument: &Arg) -> bool {
    use ArgAction::{Help, HelpLong, HelpShort, Version};
    !matches!(argument.get_action(), Help | HelpLong | HelpShort | Version)
}

fn name(argument: &Arg) -> String {
    match (argument.get_long(), argument.get_short()) {
        (Some(long), _) => format!("--{long}"),
        (None, Some(short)) => format!("-{short}"),
        (None, None) => argument.get_id().to_string(),
    }
}

fn source(argument: &Arg, matches: &ArgMatches, from_file: &[String]) -> Source {
    if from_file.iter().any(|id| argument.get_id() == id.as_str()) {
        return Source::File;
    }
    match matches.value_source(argument.get_id().as_str()) {
        Some(ValueSource::CommandLine) => Source::CommandLine,
        Some(ValueSource::EnvVariable) => Source::Environment,
        _ => Source::Default,
    }
}

fn value(argument: &Arg, matches: &ArgMatches) -> Value {
    let id = argument.get_id().as_str();
    // By type rather than text: `2e-3` and `0.002` are the same number.
    let mut values = numbers::<bool>(id, matches)
        .or_else(|| numbers::<f64>(id, matches))
        .or_else(|| numbers::<f32>(id, matches))
        .or_else(|| numbers::<usize>(id, matches))
        .or_else(|| numbers::<u64>(id, matches))
        .or_else(|| numbers::<u32>(id, matches))
        .or_else(|| numbers::<u16>(id, matches))
        .or_else(|| numbers::<u8>(id, matches))
        .or_else(|| numbers::<i64>(id, matches))
        .or_else(|| numbers::<i32>(id, matches))
        .unwrap_or_else(|| words(id, matches));
    match argument.get_action() {
        ArgAction::Append => Value::Array(values),
        _ if values.len() > 1 => Value::Array(values),
        _ => values.pop().unwrap_or_default(),
    }
}

/// The values of an option of type `T`; `None` for another type, or a number that JSON cannot represent.
fn numbers<T: Any + Clone + Send + Sync + Serialize>(
    id: &str,
    matches: &ArgMatches,
) -> Option<Vec<Value>> {
    let values = matches.try_get_many::<T>(id).ok()??;
    let values: Vec<Value> = values.map(|value| json!(value)).collect();
    values
        .iter()
        .all(|value| !value.is_null())
        .then_some(values)
}

/// The values of an option as typed, or the text of its default.
fn words(id: &str, matches: &ArgMatches) -> Vec<Value> {
    let words = matches.get_raw(id).into_iter().flatten();
    words.map(|word| word.to_string_lossy().into()).collect()
}

/// A value as on a command line.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => "none".to_owned(),
        Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Subcommand};

    use super::*;
    use crate::test_task::Cli;

    /// Kinds of options beyond those of this program.
    #[derive(Parser)]
    struct Other {
        #[arg(long, global = true, default_value_t = 2e-3)]
        rate: f64,
        #[arg(short, action = ArgAction::Count)]
        verbose: u8,
        #[arg(long, value_delimiter = ',', global = true)]
        sizes: Vec<u32>,
        #[arg(long)]
        limit: Option<i64>,
        #[arg(long, default_value = "1.10")]
        tag: String,
        #[command(subcommand)]
        command: Option<Sub>,
    }

    #[derive(Subcommand)]
    enum Sub {
        Show {
            #[arg(long)]
            all: bool,
            files: Vec<std::path::PathBuf>,
        },
    }

    fn other(words: &[&str]) -> Options {
        let command = Other::command();
        let words = [&["program"], words].concat();
        options(&command, &command.clone().get_matches_from(words), &[])
    }

    fn values(options: &Options) -> Value {
        let values = options.iter();
        values
            .map(|(name, option)| (name.clone(), option.value.clone()))
            .collect()
    }

    #[test]
    fn every_option_is_there_with_its_default() {
        let options = other(&[]);
        let expected = json!({
            "--rate": 0.002, "-v": 0, "--sizes": [], "--limit": null, "--tag": "1.10"
        });
        assert_eq!(values(&options), expected);
        assert!(options.values().all(|one| one.source == Source::Default));
    }

    #[test]
    fn options_before_and_after_a_subcommand_count() {
        let words = [
            "-vv",
            "--limit=-5",
            "show",
            "--rate",
            "1e-3",
            "--sizes=3,4",
            "--all",
            "a b",
        ];
        let options = other(&words);
        let expected = json!({
            "--rate": 0.001, "-v": 2, "--sizes": [3, 4], "--limit": -5, "--tag": "1.10",
            "show --all": true, "show files": ["a b"]
        });
        assert_eq!(values(&options), expected);
        let is_default = |one: &&str| options[*one].source == Source::Default;
        let names: Vec<&str> = options.keys().map(String::as_str).collect();
        let defaults: Vec<&str> = names.into_iter().filter(is_default).collect();
        assert_eq!(defaults, ["--tag"]);
    }

    #[test]
    fn initial_weights_are_refused_where_nothing_trains() {
        let refusal = |words: &[&str]| {
            let words = [&["program", "--init-from", "a.pt"], words].concat();
            refuse_initial_weights(&Cli::command().get_matches_from(words)).err()
        };
        assert_eq!(refusal(&[]), None);
        assert_eq!(refusal(&["train"]), None);
        let refused = refusal(&["test"]).unwrap();
        assert!(refused.ends_with("`test` does not train"), "{refused}");
    }

    #[test]
    fn the_options_of_this_program_are_all_there() {
        let command = Cli::command();
        let matches = command
            .clone()
            .get_matches_from(["program", "train", "--epochs", "3"]);
        let options = options(&command, &matches, &[]);
        assert_eq!(options["--epochs"].value, json!(3));
        assert_eq!(options["--epochs"].source, Source::CommandLine);
        assert_eq!(options["--resume"].value, json!(false));
        assert!(options["--strategy"].value.is_string());
        let longs = command.get_arguments().filter_map(Arg::get_long);
        for long in longs {
            assert!(options.contains_key(&format!("--{long}")), "{long}");
        }
    }
}
