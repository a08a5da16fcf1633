//! Options from a configuration file (`--config FILE`).
//!
//! The options of the file become words of the command line, unless the command line or an environment
//! variable sets them: conflicts, requirements and values are those of the command line, for the options of
//! the engine and of a task alike.

pub(crate) mod file;
pub(crate) mod kind;

use std::{
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use clap::{Arg, ArgAction, ArgMatches, Command, error::ErrorKind, parser::ValueSource};

use file::Setting;

/// The id of the option `--config`.
pub(crate) const CONFIG: &str = "config";

/// Prefix of the hidden options that unset a flag.
const NO: &str = "no-";

/// A parsed command line with the options of its configuration file.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    /// The values; those of the file count as given on the command line.
    pub matches: ArgMatches,
    /// Ids of the options from the file.
    pub from_file: Vec<String>,
}

/// Why a command line or a configuration file is refused.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The command line, or what `--help` and `--version` print, with notes on options of the file.
    CommandLine(clap::Error, Vec<String>),
    /// The file: a text for each error.
    File(Vec<String>),
}

impl Refusal {
    /// Prints the refusal, and exits: with 2, or with 0 after `--help` and `--version`.
    pub fn exit(self) -> ! {
        use crate::console::terminal::warn;
        match self {
            Refusal::CommandLine(error, notes) if !notes.is_empty() => {
                // A closed standard error cannot be reported.
                let _ = error.print();
                notes
                    .iter()
                    .for_each(|note| warn(format_args!("\nnote: {note}")));
                std::process::exit(error.exit_code())
            }
            Refusal::CommandLine(error, _) => error.exit(),
            Refusal::File(errors) => {
                errors
                    .iter()
                    .for_each(|error| warn(format_args!("error: {error}")));
                std::process::exit(2)
            }
        }
    }
}

/// Parses `words`, the program and its arguments, and the file of `--config`. The command line precedes
/// environment variables, which precede the file, which precedes the defaults of `command`.
///
/// # Errors
/// The command line is refused, the file cannot be read, or it has an unknown option or a wrong value.
pub(crate) fn parse(command: &Command, words: &[OsString]) -> Result<Given, Refusal> {
    let with_negations = with_negations(command.clone());
    let parse = |words: &[OsString]| {
        let matches = with_negations.clone().try_get_matches_from(words)?;
        ensure_no_flag_is_set_and_unset(&with_negations, &matches).map(|()| matches)
    };
    // Errors are those of the second pass, in which the options of the file may satisfy a requirement.
    let first = with_negations.clone().ignore_errors(true);
    let first = first.try_get_matches_from(words).ok();
    let path = first.as_ref().and_then(config);
    let (Some(first), Some(path)) = (first, path) else {
        let matches = parse(words).map_err(|error| Refusal::CommandLine(error, Vec::new()))?;
        return Ok(Given {
            matches,
            from_file: Vec::new(),
        });
    };
    let mut settings = file::read(&path, command).map_err(Refusal::File)?;
    settings.retain(|setting| !is_given(&first, &setting.id));
    let words = merge(words, &settings, first.subcommand_name().is_some());
    let matches = parse(&words).map_err(|error| {
        let notes = notes(&error, &settings);
        Refusal::CommandLine(error, notes)
    })?;
    let from_file = settings.into_iter().map(|setting| setting.id).collect();
    Ok(Given { matches, from_file })
}

/// Parses `settings` together, as a command line without a subcommand.
///
/// # Errors
/// The settings conflict; the message has the line and column of each setting it names.
pub(crate) fn parse_settings(
    command: &Command,
    settings: &[Setting],
) -> Result<ArgMatches, String> {
    let program = OsString::from(command.get_name());
    let words = merge(&[program], settings, false);
    let parsed = command.clone().try_get_matches_from(words);
    parsed.map_err(|error| {
        let notes = notes(&error, settings);
        let message = file::in_a_line(&error);
        [message]
            .into_iter()
            .chain(notes)
            .collect::<Vec<_>>()
            .join("\n")
    })
}

/// The options that the command line and its configuration file set, as settings.
pub(crate) fn given_settings(command: &Command, matches: &ArgMatches) -> Vec<Setting> {
    let given = file::options(command).filter(|(argument, _)| {
        let id = argument.get_id().as_str();
        matches.try_contains_id(id).is_ok()
            && matches.value_source(id) == Some(ValueSource::CommandLine)
    });
    let settings = given.map(|(argument, long)| Setting {
        id: argument.get_id().to_string(),
        long: long.to_owned(),
        words: given_words(argument, long, matches),
        is_global: argument.is_global_set(),
        place: "the command line".to_owned(),
    });
    settings.collect()
}

/// The words of an option that was given.
fn given_words(argument: &Arg, long: &str, matches: &ArgMatches) -> Vec<OsString> {
    let (id, option) = (
        argument.get_id().as_str(),
        OsString::from(format!("--{long}")),
    );
    let joined = |value: &OsStr| {
        let mut word = option.clone();
        word.push("=");
        word.push(value);
        word
    };
    let values = || matches.get_raw(id).into_iter().flatten();
    match argument.get_action() {
        ArgAction::Count => vec![option.clone(); matches.get_count(id).into()],
        action if !action.takes_values() => vec![option],
        _ if argument.get_value_delimiter().is_some() => {
            let values: Vec<&OsStr> = values().collect();
            vec![joined(&values.join(OsStr::new(",")))]
        }
        _ if argument
            .get_num_args()
            .is_some_and(|range| range.max_values() > 1) =>
        {
            [option.clone()]
                .into_iter()
                .chain(values().map(OsString::from))
                .collect()
        }
        _ => values().map(joined).collect(),
    }
}

/// The path of `--config`; `None` without it, or in a program that has no such option.
fn config(matches: &ArgMatches) -> Option<PathBuf> {
    matches.try_get_one::<PathBuf>(CONFIG).ok()?.cloned()
}

/// Adds a hidden option `--no-FLAG` for each flag, to unset those of a configuration file.
fn with_negations(command: Command) -> Command {
    let flags = command.get_arguments().filter(|one| is_flag(one));
    let negations: Vec<Arg> = flags
        .filter_map(|flag| {
            let name = negation(flag.get_long()?);
            let is_free = command
                .get_arguments()
                .all(|one| one.get_long() != Some(&name));
            is_free.then(|| {
                Arg::new(&name)
                    .long(name)
                    .action(ArgAction::SetTrue)
                    .global(flag.is_global_set())
                    .overrides_with(flag.get_id())
                    .hide(true)
            })
        })
        .collect();
    command.args(negations)
}

fn is_flag(argument: &Arg) -> bool {
    matches!(argument.get_action(), ArgAction::SetTrue)
}

fn negation(long: &str) -> String {
    format!("{NO}{long}")
}

/// Refuses `--FLAG` beside `--no-FLAG` where the later one does not override the other, as before and after a
/// subcommand.
fn ensure_no_flag_is_set_and_unset(
    command: &Command,
    matches: &ArgMatches,
) -> Result<(), clap::Error> {
    let is_set = |id: &str| matches!(matches.try_get_one::<bool>(id), Ok(Some(true)));
    let mut longs = command
        .get_arguments()
        .filter_map(|one| Some((one.get_id(), one.get_long()?)));
    let both = longs.find(|(id, long)| is_set(id.as_str()) && is_set(&negation(long)));
    both.map_or(Ok(()), |(_, long)| {
        let text = format!(
            "the argument '--{long}' cannot be used with '--{}'",
            negation(long)
        );
        Err(command.clone().error(ErrorKind::ArgumentConflict, text))
    })
}

/// True if an option or its negation is on the command line or in the environment.
pub(crate) fn is_given(matches: &ArgMatches, id: &str) -> bool {
    let is_given = |id: &str| {
        // An unknown id would panic.
        let is_known = matches.try_contains_id(id).is_ok();
        let source = is_known.then(|| matches.value_source(id)).flatten();
        matches!(
            source,
            Some(ValueSource::CommandLine | ValueSource::EnvVariable)
        )
    };
    is_given(id) || is_given(&negation(&id.replace('_', "-")))
}

/// Inserts the options of a file into a command line: before the subcommand, and global ones after it as well,
/// as conflicts and requirements are checked on each side alone.
fn merge(words: &[OsString], settings: &[Setting], has_subcommand: bool) -> Vec<OsString> {
    let end = words.iter().position(|word| word == OsStr::new("--"));
    let (before, after) = words.split_at(end.unwrap_or(words.len()));
    let (program, before) = before.split_at(before.len().min(1));
    let all = settings.iter();
    let globals = all
        .clone()
        .filter(|setting| has_subcommand && setting.is_global);
    let of = |setting: &Setting| setting.words.clone();
    let mut merged = program.to_vec();
    merged.extend(all.flat_map(of));
    merged.extend_from_slice(before);
    merged.extend(globals.flat_map(of));
    merged.extend_from_slice(after);
    merged
}

/// The places of the options of a file that an error of the command line names.
fn notes(error: &clap::Error, settings: &[Setting]) -> Vec<String> {
    let text = error.render().to_string();
    // The usage names further options.
    let text = text.split("\n\nUsage:").next().unwrap_or_default();
    let is_named = |setting: &&Setting| {
        let option = format!("--{}", setting.long);
        let mut found = text.match_indices(&option);
        found.any(|(start, _)| {
            let next = text[start + option.len()..].chars().next();
            next.is_none_or(|next| !next.is_alphanumeric() && next != '-')
        })
    };
    let named = settings.iter().filter(is_named);
    named
        .map(|setting| format!("--{} is set in {}", setting.long, setting.place))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        command_line::{self, Options, Source},
        run_record::{RunFile, RunRecord},
    };

    /// Kinds of options of tasks, with the conflicts and requirements that clap has.
    #[derive(Parser)]
    struct Cli {
        #[arg(long, global = true)]
        config: Option<PathBuf>,
        #[arg(long, global = true, default_value_t = 3, value_parser = crate::options::at_least_one)]
        epochs: usize,
        #[arg(long, global = true, default_value_t = 2e-3)]
        learning_rate: f64,
        #[arg(long, global = true, default_value_t = 1)]
        seed: u64,
        #[arg(long, global = true, default_value_t = 0.25)]
        momentum: f32,
        #[arg(long, global = true, conflicts_with = "steps")]
        drop_remainder: bool,
        #[arg(long, global = true)]
        steps: Option<usize>,
        #[arg(long, global = true, requires = "init_from")]
        partial: bool,
        #[arg(long, global = true)]
        init_from: Option<PathBuf>,
        #[arg(long, global = true, value_delimiter = ',')]
        devices: Option<Vec<usize>>,
        #[arg(long, global = true)]
        label: Vec<String>,
        #[arg(long, global = true, num_args = 2)]
        betas: Option<Vec<f64>>,
        #[arg(
            long,
            global = true,
            value_enum,
            default_value = "mirrored",
            alias = "how"
        )]
        strategy: Strategy,
        #[arg(long, global = true, default_value = "60", value_parser = seconds)]
        timeout: std::time::Duration,
        #[arg(long, global = true, action = ArgAction::Count)]
        loud: u8,
        #[arg(long, global = true, action = ArgAction::SetFalse)]
        no_shuffle: bool,
        #[arg(long, global = true, env = "KILN_TEST_PLACE")]
        place: Option<String>,
        #[arg(long, default_value_t = true, action = ArgAction::Set)]
        own: bool,
        #[command(subcommand)]
        command: Option<Sub>,
    }

    #[derive(ValueEnum, Clone, Copy)]
    enum Strategy {
        OneDevice,
        Mirrored,
    }

    #[derive(Subcommand)]
    enum Sub {
        Train,
        Test(Checkpoint),
        Infer(Checkpoint),
    }

    #[derive(Args)]
    struct Checkpoint {
        #[arg(long, default_value = "latest")]
        checkpoint: String,
        files: Vec<PathBuf>,
    }

    fn seconds(text: &str) -> anyhow::Result<std::time::Duration> {
        Ok(std::time::Duration::try_from_secs_f64(text.parse()?)?)
    }

    /// The options of a command line that starts with `--config` of a file with `text`.
    fn given(text: &str, words: &[&str]) -> Result<Options, Refusal> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.toml");
        fs::write(&path, text).unwrap();
        let file = ["program".into(), "--config".into(), path.into_os_string()];
        let words: Vec<OsString> = file
            .into_iter()
            .chain(words.iter().map(OsString::from))
            .collect();
        let command = Cli::command();
        let given = parse(&command, &words)?;
        Ok(command_line::options(
            &command,
            &given.matches,
            &given.from_file,
        ))
    }

    fn values(options: &Options, names: &[&str]) -> Value {
        names
            .iter()
            .map(|name| options[*name].value.clone())
            .collect()
    }

    /// The first lines of the errors, without the folder.
    fn refused(text: &str, words: &[&str]) -> Vec<String> {
        let errors = match given(text, words) {
            Ok(options) => panic!("{text:?} is accepted: {options:?}"),
            Err(Refusal::File(errors)) => errors,
            Err(Refusal::CommandLine(error, notes)) => {
                let first = error.render().to_string();
                [first].into_iter().chain(notes).collect()
            }
        };
        let first = |error: &String| {
            let line = error.lines().next().unwrap();
            match line.split_once("/a.toml:") {
                Some((_, line)) => line.to_owned(),
                None => line.to_owned(),
            }
        };
        errors.iter().map(first).collect()
    }

    #[test]
    fn every_kind_of_option_is_read() {
        let text = r#"
            epochs = 0x1_0
            learning-rate = 1e-3 # an underscore or a hyphen
            seed = 18446744073709551615
            momentum = 1
            drop_remainder = true
            partial = false
            devices = [0, 2]
            label = ["a,b", "-c", ""]
            betas = [0.9, 0.99]
            how = "one-device"
            timeout = 2.5
            loud = 2
            no_shuffle = true
            own = false
        "#;
        let text = text.replace(", \"\"]", "]");
        for words in [
            &[][..],
            &["train"],
            &["test", "--checkpoint", "best", "--", "file"],
        ] {
            let options = given(&text, words).unwrap();
            let names = [
                "--epochs",
                "--learning-rate",
                "--seed",
                "--momentum",
                "--drop-remainder",
                "--partial",
                "--devices",
                "--label",
                "--betas",
                "--strategy",
                "--timeout",
                "--loud",
                "--no-shuffle",
                "--own",
            ];
            let expected = json!([
                16,
                0.001,
                u64::MAX,
                1.0,
                true,
                false,
                [0, 2],
                ["a,b", "-c"],
                [0.9, 0.99],
                "one-device",
                "2.5",
                2,
                false,
                false
            ]);
            assert_eq!(values(&options, &names), expected, "{words:?}");
            assert_eq!(options["--epochs"].source, Source::File);
            assert_eq!(options["--steps"].source, Source::Default);
        }
    }

    #[test]
    fn the_command_line_precedes_the_file_and_the_file_the_defaults() {
        let text =
            "epochs = 5\nlabel = ['a', 'b']\ndevices = [1, 2]\ndrop_remainder = true\nloud = 3\n";
        let names = [
            "--epochs",
            "--label",
            "--devices",
            "--drop-remainder",
            "--loud",
            "--seed",
        ];
        let options = given(text, &["train"]).unwrap();
        assert_eq!(
            values(&options, &names),
            json!([5, ["a", "b"], [1, 2], true, 3, 1])
        );
        for words in [
            &[
                "--epochs",
                "7",
                "--label=c",
                "--devices",
                "0",
                "--no-drop-remainder",
                "--loud",
                "train",
            ][..],
            &[
                "train",
                "--epochs",
                "7",
                "--label=c",
                "--devices",
                "0",
                "--no-drop-remainder",
                "--loud",
            ],
            &[
                "--no-drop-remainder",
                "--loud",
                "train",
                "--epochs=7",
                "--label",
                "c",
                "--devices=0",
            ],
        ] {
            let options = given(text, words).unwrap();
            assert_eq!(
                values(&options, &names),
                json!([7, ["c"], [0], false, 1, 1]),
                "{words:?}"
            );
            assert_eq!(options["--epochs"].source, Source::CommandLine);
        }
    }

    #[test]
    fn conflicts_and_requirements_are_those_of_the_command_line() {
        for words in [
            &["--steps", "3"][..],
            &["train", "--steps", "3"],
            &["--steps", "3", "train"],
        ] {
            let lines = refused("\n  drop_remainder = true", words);
            assert!(
                lines[0].contains("cannot be used with") && lines[0].contains("--drop-remainder"),
                "{lines:?}"
            );
            assert!(lines[1].ends_with("2:3"), "{lines:?}");
            let kept = [words, &["--no-drop-remainder"]].concat();
            given("drop_remainder = true", &kept).unwrap();
        }
        let lines = refused("drop_remainder = true\nsteps = 3", &[]);
        assert!(
            lines[0].contains("cannot be used with") && lines.len() == 3,
            "{lines:?}"
        );
        assert!(refused("partial = true", &[])[0].contains("required arguments were not provided"));
        for words in [&["--partial"][..], &["train", "--partial"]] {
            given("init_from = 'a'", words).unwrap();
        }
        for words in [
            &["--partial", "train", "--no-partial"][..],
            &["--no-partial", "train", "--partial"],
        ] {
            let lines = refused("init_from = 'a'", words);
            assert!(
                lines[0].contains("'--partial' cannot be used with '--no-partial'"),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn each_error_has_its_place() {
        for (text, expected) in [
            (
                "epochs = 3\nlerning_rate = 1",
                "2:1: unknown option `lerning_rate`; the nearest option is `learning_rate`",
            ),
            ("x = 1", "1:1: unknown option `x`; --help lists all options"),
            (
                "help = true",
                "1:1: unknown option `help`; --help lists all options",
            ),
            (
                "config = 'b'",
                "1:1: `config` is an option of the command line alone: a file cannot name another",
            ),
            (
                "checkpoint = 'best'",
                "1:1: `checkpoint` belongs to `test` and `infer`, and not to training: give it on the command line",
            ),
            (
                "files = 'best'",
                "1:1: `files` belongs to `test` and `infer`, and not to training: give it on the command line",
            ),
            (
                "[train]\nepochs = 3",
                "1:2: unknown table `train`: options stand in no table; --help lists all options",
            ),
            (
                "[[steps]]\n",
                "1:1: `steps` takes one value, an integer, and this is an array",
            ),
            (
                "epochs.a = 3",
                "1:1: `epochs` takes an integer, and this is a table",
            ),
            (
                "epochs = '3'",
                "1:10: `epochs` takes an integer, and this is a string",
            ),
            (
                "epochs = 3.0",
                "1:10: `epochs` takes an integer, and this is a float",
            ),
            (
                "epochs = [3]",
                "1:10: `epochs` takes one value, an integer, and this is an array",
            ),
            (
                "epochs = {a = 3}",
                "1:10: `epochs` takes an integer, and this is a table",
            ),
            (
                "epochs = 0",
                "1:10: invalid value '0' for '--epochs <EPOCHS>': must be at least 1",
            ),
            (
                "epochs = -1",
                "1:10: invalid value '-1' for '--epochs <EPOCHS>': invalid digit found in string",
            ),
            (
                "seed = 18446744073709551616",
                "1:8: invalid value '18446744073709551616' for '--seed <SEED>': number too large to fit in target type",
            ),
            (
                "learning_rate = true",
                "1:17: `learning_rate` takes a number, and this is a boolean",
            ),
            (
                "drop_remainder = 1",
                "1:18: `drop_remainder` takes true or false, and this is an integer",
            ),
            (
                "own = 'true'",
                "1:7: `own` takes true or false, and this is a string",
            ),
            (
                "loud = 256",
                "1:8: `loud` is 256, and must be between 0 and 255",
            ),
            (
                "loud = -1",
                "1:8: `loud` is -1, and must be between 0 and 255",
            ),
            (
                "init_from = 1979-05-27",
                "1:13: `init_from` takes a string, and this is a date or time",
            ),
            (
                "init_from = ''",
                "1:13: a value is required for '--init-from <INIT_FROM>' but none was supplied",
            ),
            (
                "strategy = 'mirored'",
                "1:12: invalid value 'mirored' for '--strategy <STRATEGY>' [possible values: one-device, mirrored] tip: a similar value exists: 'mirrored'",
            ),
            (
                "timeout = 'soon'",
                "1:11: invalid value 'soon' for '--timeout <TIMEOUT>': invalid float literal",
            ),
            (
                "devices = [0, 'a']",
                "1:15: `devices` takes an integer, and this is a string",
            ),
            (
                "devices = [0, [1]]",
                "1:15: `devices` takes an integer, and this is an array",
            ),
            (
                "betas = [0.5]",
                "1:9: 2 values required for '--betas <BETAS> <BETAS>' but 1 was provided",
            ),
            (
                "learning_rate = 1\nlearning-rate = 2",
                "2:1: `learning-rate` is set twice: first in 1:1",
            ),
            ("é = 1\nepochs = 3\nepochs = 4", "3:1: duplicate key"),
            (
                "place = 'ü' epochs",
                "1:13: unexpected key or value, expected newline, `#`",
            ),
        ] {
            let lines = refused(text, &["--epochs", "9"]);
            let lines: Vec<String> = lines
                .iter()
                .map(|line| line.replace("first in /", "first in "))
                .collect();
            let is_expected = |line: &String| match expected.split_once("first in ") {
                Some((start, place)) => line.starts_with(start) && line.ends_with(place),
                None => line == expected,
            };
            assert!(
                lines.iter().any(is_expected),
                "{text:?}: {lines:?}\n{expected}"
            );
        }
        let lines = refused("epochs = 0\nx = 1\nsteps = 'a'", &[]);
        assert_eq!(lines.len(), 3, "{lines:?}");
    }

    #[test]
    fn an_error_shows_its_line() {
        let Err(Refusal::File(errors)) = given("epochs = 3\n\tseed = 'ä' # x", &[]) else {
            panic!("a text is no seed");
        };
        let [error] = &errors[..] else {
            panic!("{errors:?}")
        };
        let expected = "\n  |\n2 |  seed = 'ä' # x\n  |         ^^^";
        assert!(error.ends_with(expected), "{error}");
    }

    #[test]
    fn what_is_no_file_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("large"), "#".repeat((1 << 20) + 1)).unwrap();
        fs::write(path("binary"), [0xff]).unwrap();
        let refused = |path: &Path| match file::read(path, &Cli::command()) {
            Err(errors) => errors.concat(),
            Ok(settings) => panic!("{settings:?}"),
        };
        assert!(refused(&path("missing")).contains("missing: No such file"));
        assert!(refused(folder.path()).contains("it is a folder"));
        assert!(refused(&path("large")).contains("larger than 1 MiB"));
        assert!(refused(&path("binary")).contains("valid UTF-8"));
    }

    /// The `run.toml` of a command line.
    fn run_toml(words: &[&str], run: &RunRecord) -> String {
        let command = Cli::command();
        let words: Vec<OsString> = ["program"]
            .iter()
            .chain(words)
            .map(OsString::from)
            .collect();
        let given = parse(&command, &words).unwrap();
        let options = command_line::options(&command, &given.matches, &given.from_file);
        RunFile::new(&command, &given.matches, &options).text(run)
    }

    #[test]
    fn a_run_file_repeats_every_option() {
        let names: Vec<String> =
            command_line::options(&Cli::command(), &Cli::command().get_matches_from([""]), &[])
                .keys()
                .filter(|name| !["--config", "--devices"].contains(&name.as_str()))
                .cloned()
                .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for words in [
            &[][..],
            &[
                "--seed",
                "18446744073709551615",
                "--learning-rate",
                "1e-300",
                "--momentum",
                "0.1",
            ],
            &[
                "--learning-rate",
                "inf",
                "--steps",
                "3",
                "--loud",
                "--loud",
                "--no-shuffle",
            ],
            &[
                "--label",
                "a\"b\\\n",
                "--label=-1",
                "--betas",
                "0.1",
                "1e22",
                "--drop-remainder",
            ],
            &[
                "--init-from",
                "a b",
                "--partial",
                "--timeout",
                "2.5",
                "--own=false",
                "--place",
                "'''\u{7f}\t",
            ],
        ] {
            let text = run_toml(words, &RunRecord::default());
            let before = given("", words).unwrap();
            let after = given(&text, &[]).unwrap();
            assert_eq!(
                values(&after, &names),
                values(&before, &names),
                "{words:?}\n{text}"
            );
        }
    }

    #[test]
    fn a_run_file_has_the_replicas_of_the_run_and_comments_on_the_rest() {
        #[derive(Parser)]
        struct Small {
            #[arg(long)]
            replicas: Option<usize>,
            #[arg(long, default_value = "runs\nepochs = 3")]
            output_dir: String,
            #[arg(long)]
            limit: Option<usize>,
            #[arg(long)]
            resume: bool,
        }
        let text = |words: &[&str], replicas, processes| {
            let command = Small::command();
            let matches = command.clone().get_matches_from(words);
            let options = command_line::options(&command, &matches, &[]);
            let run = RunRecord {
                replicas: Some(replicas),
                processes: Some(processes),
                ..RunRecord::default()
            };
            RunFile::new(&command, &matches, &options).text(&run)
        };
        let whole = text(&[""], 6, 2);
        let table: toml::Table = whole.parse().unwrap();
        assert_eq!(table.to_string(), "replicas = 3\n", "{whole}");
        assert!(
            whole.contains("\n# resume = false\n") && whole.ends_with("\n# Not set: limit\n"),
            "{whole}"
        );
        assert!(text(&["", "--replicas", "5"], 6, 2).contains("replicas = 5\n"));
        assert!(text(&[""], 5, 2).ends_with("\n# Not set: replicas, limit\n"));
    }

    #[test]
    fn a_run_file_with_other_options_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        let write = |words: &[&str], started: &str| {
            let command = Cli::command();
            let matches = command.clone().get_matches_from([&[""], words].concat());
            let options = command_line::options(&command, &matches, &[]);
            let mut run = RunRecord::default();
            started.clone_into(&mut run.program.version);
            RunFile::new(&command, &matches, &options)
                .write(&path, &run)
                .unwrap();
            fs::read_to_string(&path).unwrap()
        };
        write(&[], "1.0.0");
        let first = write(&[], "1.0.1");
        assert!(first.contains("1.0.1"), "{first}");
        assert_eq!(
            fs::read_dir(&folder).unwrap().count(),
            1,
            "the options are the same"
        );
        let second = write(&["--epochs", "9"], "1.0.1");
        assert!(second.contains("epochs = 9\n"));
        assert_eq!(
            fs::read_to_string(folder.path().join("run.1.toml")).unwrap(),
            first
        );
    }
}
