//! The command line: a file for each subcommand.

mod add;
mod check;
mod completions;
mod diff;
mod doctor;
mod examples;
mod explain;
mod folder;
mod man;
mod new;
mod options;
mod output;
mod process;
mod renew;
mod terminal;
mod todos;
mod update;

use std::{
    ffi::OsString,
    io::{self, IsTerminal, Write},
    ops::Range,
    process::ExitCode,
};

use clap::{
    CommandFactory, Parser, Subcommand,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::error::{Error, Result, nearest};

const EXIT_STATUS: &str = "\
Exit status:
  0    done
  1    `todos --deny`: something is left to do; `check`: a check failed; `update`, `add`: a conflict
       is left; `doctor`: the default strategy cannot be used here
  2    wrong input: an argument, a name, an option, a values file or a folder
  3    the file system or another program failed; nothing half-written is left
  4    the template is wrong
  130  cancelled at a prompt, or stopped by Ctrl-C
  `new --train` passes on the exit status of the training";

/// Generates training crates for Burn that train, on several replicas, from the first command.
#[derive(Debug, Parser)]
#[command(name = "kiln", version, after_help = EXIT_STATUS, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a project.
    New(new::NewArgs),
    /// List the worked examples that `new --example` makes.
    Examples,
    /// List the options, their values and what each changes.
    Options(options::OptionsArgs),
    /// Show what options change in a project, before it is made.
    Diff(diff::DiffArgs),
    /// List what is left to change in a project for your own task.
    Todos(todos::TodosArgs),
    /// Tell all about a site to change, with a worked answer.
    Explain(explain::ExplainArgs),
    /// Check that a project builds, keeps its contracts, trains and resumes.
    #[command(long_about = check::WHAT)]
    Check(check::CheckArgs),
    /// Bring into a project what was not chosen when it was made.
    Add(add::AddArgs),
    /// Bring later improvements of the template into a project; your changes stay.
    Update(update::UpdateArgs),
    /// Say what this machine has for building and training, and what is missing.
    Doctor(doctor::DoctorArgs),
    /// Write a script that completes the command line in a shell.
    Completions(completions::CompletionsArgs),
    /// Write the manual, as pages for `man`.
    Man(man::ManArgs),
}

/// Runs Kiln with the arguments of a process, the first of which is its name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args: Vec<_> = args.into_iter().collect();
    match Cli::try_parse_from(&args) {
        Ok(cli) => dispatch(&cli.command).unwrap_or_else(fail),
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

/// Adds the nearest subcommand where clap sees none.
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

/// Whether clap has help or the version to print, and nothing to refuse.
fn is_help(error: &clap::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    )
}

/// Prints help or the version; to standard error where an argument is missing.
fn print_help(help: &clap::Error) -> Result<()> {
    if help.use_stderr() {
        // Where it cannot be written, there is nobody to tell.
        let _ = help.print();
        return Ok(());
    }
    output::print_colored(&help.render().ansi().to_string())
}

/// What clap says of the arguments, in the style of all other messages.
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

/// Names between backticks, as all other messages have them.
fn quoted(text: &str) -> String {
    let quotes = text.matches('\'').count();
    if quotes.is_multiple_of(2) {
        text.replace('\'', "`")
    } else {
        text.to_owned()
    }
}

/// The arguments as they were typed, but for their quotes, and which bytes of them an error is about.
fn given(error: &clap::Error, args: &[OsString]) -> (String, Option<Range<usize>>) {
    let kinds = [
        ContextKind::InvalidValue,
        ContextKind::InvalidSubcommand,
        ContextKind::InvalidArg,
    ];
    let wrong = kinds.iter().find_map(|kind| match error.get(*kind)? {
        // An option comes with its placeholder.
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
        // Of an option that is given twice, the second is too many.
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

/// Ends with an error.
fn fail(error: Error) -> ExitCode {
    report(&error);
    ExitCode::from(error.kind().exit_status())
}

fn report(error: &Error) {
    let terminal = io::stderr().is_terminal();
    let color = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // Where it cannot be written, there is nobody to tell.
    let _ = write!(io::stderr(), "{}", error.draw(color));
}
