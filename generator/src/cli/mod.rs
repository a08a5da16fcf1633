//! The command line, one file per subcommand.

mod add;
mod check;
mod completions;
mod diff;
mod doctor;
mod examples;
mod explain;
mod favourites;
mod folder;
mod llvm;
mod man;
mod merged;
mod new;
mod next;
mod options;
mod output;
mod process;
mod renew;
mod source;
mod terminal;
mod todos;
mod update;
mod warnings;

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    ops::Range,
    path::Path,
    process::ExitCode,
};

use clap::{
    CommandFactory, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{
    error::{Error, Result, nearest},
    project::patches,
    wrapping::width_of,
};

const EXIT_STATUS: &str = "\
Exit status:
  0    success
  1    `todos --deny`: a TODO site is open; `check`: a check failed; `update`, `add`: a conflict
       or a patch remains; `doctor`: the default strategy cannot be used here
  2    invalid input: an argument, a name, an option, a values file or a folder
  3    the file system or another program failed; no partial changes remain
  4    the template is invalid
  130  cancelled at a prompt, or stopped by Ctrl-C
  `new --train` exits with the status of the training";

/// Generates Burn training crates that train on several replicas without edits.
#[derive(Debug, Parser)]
#[command(name = "kiln", version, after_help = EXIT_STATUS, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a project
    New(new::NewArgs),
    /// List the worked examples for `new --example`
    Examples,
    /// List your favourite templates for `new --template`
    Templates,
    /// List the options, their values and the effect of each
    Options(options::OptionsArgs),
    /// Show how options change a new project
    Diff(diff::DiffArgs),
    /// List the open TODO sites of a project
    Todos(todos::TodosArgs),
    /// Explain a TODO site, with a worked answer, or an ability, with its options
    Explain(explain::ExplainArgs),
    /// Check that a project builds, passes its contract tests, trains and resumes
    #[command(long_about = check::WHAT)]
    Check(check::CheckArgs),
    /// Merge further options into a project
    Add(add::AddArgs),
    /// Merge later versions of the template into a project; keeps your changes
    Update(update::UpdateArgs),
    /// Report the devices, tools and libraries of this machine
    Doctor(doctor::DoctorArgs),
    /// Print a shell completion script
    Completions(completions::CompletionsArgs),
    /// Print or write the manual pages
    Man(man::ManArgs),
}

/// Runs Kiln with the arguments of a process, including the program name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = help_of_help(args.into_iter().collect());
    match Cli::try_parse_from(&args) {
        Ok(cli) => {
            let status = dispatch(&cli.command).unwrap_or_else(fail);
            // Every command tells what an update left, until it is dealt with.
            if let Some(left) = project_of(&cli.command).and_then(patches::told) {
                output::note(&left);
            }
            status
        }
        Err(mut error) => {
            suggest_subcommand(&mut error);
            let status = ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
            if !is_help(&error) {
                report(&usage_error(&error, &args));
                return status;
            }
            print_help(&error).map_or_else(fail, |()| status)
        }
    }
}

/// Clap's `help` takes no `--help`: `help new --help` becomes `help new`, and `help --help` becomes
/// `help help`.
fn help_of_help(mut args: Vec<OsString>) -> Vec<OsString> {
    let is_flag = |arg: &OsString| arg == "--help" || arg == "-h";
    if args.get(1).is_some_and(|arg| arg == "help") && args.iter().skip(2).any(is_flag) {
        args.retain(|arg| !is_flag(arg));
        if args.len() == 2 {
            args.push("help".into());
        }
    }
    args
}

/// Adds the nearest subcommand if clap suggests none.
fn suggest_subcommand(error: &mut clap::Error) {
    let Some(ContextValue::String(given)) = error.get(ContextKind::InvalidSubcommand) else {
        return;
    };
    let command = Cli::command();
    let names = command.get_subcommands().map(clap::Command::get_name);
    if let Some(near) = nearest(given, names) {
        let near = ContextValue::Strings(vec![near.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, near);
    }
}

/// True if clap has help or the version to print, rather than an error.
fn is_help(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

/// Prints help or the version; to standard error if an argument is missing.
fn print_help(help: &clap::Error) -> Result<()> {
    if help.use_stderr() {
        // A failure to write it cannot be reported.
        let _ = help.print();
        return Ok(());
    }
    output::print_colored(&help.render().ansi().to_string())
}

/// Clap's error message in the style of Kiln's messages.
fn usage_error(error: &clap::Error, args: &[OsString]) -> Error {
    let text = error.render().to_string();
    let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
    let mut message = message.lines().map(str::trim);
    let first = message.next().unwrap_or_default();
    let first = first.strip_prefix("error: ").unwrap_or(first);
    let (values, listed): (Vec<_>, Vec<_>) =
        message.partition(|line| line.starts_with("[possible values:"));
    let lines = rest.lines().map(str::trim).filter(|line| !line.is_empty());
    let lines = lines.map(|line| {
        let line = line.strip_prefix("tip: ").unwrap_or(line);
        let line = line.replacen("Usage:", "usage:", 1);
        line.replacen("For more information, try", "for more information, try", 1)
    });
    let values = values
        .iter()
        .map(|line| line.trim_matches(['[', ']']).to_owned());
    let help: Vec<_> = values.chain(lines).collect();
    let said = [&[first], &listed[..]].concat().join(" ");
    let said = Error::input(quoted(&said)).help(quoted(&help.join("\n")));
    let (line, span) = given(error, args);
    match span {
        Some(span) => said.at("command line", &line, span, "here"),
        None => said,
    }
}

/// Replaces single quotes around names by backticks, as in Kiln's messages.
fn quoted(text: &str) -> String {
    let quotes = text.matches('\'').count();
    if quotes.is_multiple_of(2) {
        text.replace('\'', "`")
    } else {
        text.to_owned()
    }
}

/// The arguments as typed, without quoting, and the span that an error is about.
fn given(error: &clap::Error, args: &[OsString]) -> (String, Option<Range<usize>>) {
    let kinds = [
        ContextKind::InvalidValue,
        ContextKind::InvalidSubcommand,
        ContextKind::InvalidArg,
    ];
    let wrong = kinds.iter().find_map(|kind| match error.get(*kind)? {
        // Clap appends the placeholder to the name of an option.
        ContextValue::String(wrong) if *kind == ContextKind::InvalidArg => wrong.split(' ').next(),
        ContextValue::String(wrong) => Some(wrong.as_str()).filter(|wrong| !wrong.is_empty()),
        _ => None,
    });
    let mut line = "kiln".to_owned();
    let mut span = None;
    for arg in args.iter().skip(1) {
        let arg = arg.to_string_lossy();
        line.push(' ');
        let is_wrong = wrong.filter(|wrong| arg == **wrong || arg.ends_with(&format!("={wrong}")));
        // Of a repeated option, point at the last.
        let twice = error.kind() == ErrorKind::ArgumentConflict;
        if let Some(wrong) = is_wrong.filter(|_| twice || span.is_none()) {
            let end = line.len() + arg.len();
            span = Some(end - wrong.len()..end);
        }
        line.push_str(&arg);
    }
    if error.kind() == ErrorKind::MissingRequiredArgument {
        line.push(' ');
        span = Some(line.len()..line.len());
    }
    (line, span)
}

fn dispatch(command: &Command) -> Result<ExitCode> {
    match command {
        Command::New(args) => new::run(args),
        Command::Diff(args) => diff::run(args),
        Command::Examples => examples::run(),
        Command::Templates => favourites::run(),
        Command::Options(args) => options::run(args),
        Command::Todos(args) => todos::run(args),
        Command::Update(args) => update::run(args),
        Command::Add(args) => add::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Completions(args) => completions::run(args, Cli::command()),
        Command::Man(args) => man::run(args, Cli::command()),
        Command::Check(args) => check::run(args),
        Command::Doctor(args) => doctor::run(args),
    }
}

/// The folder of the project that a command concerns, if any.
fn project_of(command: &Command) -> Option<&Path> {
    match command {
        Command::Todos(args) => Some(&args.path),
        Command::Update(args) => Some(&args.path),
        Command::Add(args) => Some(&args.path),
        Command::Check(args) => Some(&args.path),
        Command::Explain(args) => Some(args.path.as_deref().unwrap_or(Path::new("."))),
        _ => None,
    }
}

/// Prints an error; returns its exit status.
fn fail(error: Error) -> ExitCode {
    report(&error);
    ExitCode::from(error.kind().exit_status())
}

fn report(error: &Error) {
    let is_terminal = io::stderr().is_terminal();
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let color = is_terminal && wanted && !terminal::is_dumb();
    // A failure to write it cannot be reported.
    let width = width_of(&io::stderr());
    let _ = write!(io::stderr(), "{}", error.draw_within(width, color));
}
