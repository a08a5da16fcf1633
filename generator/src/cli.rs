//! The command line.

use std::{
    ffi::OsString,
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
};

use clap::{
    Args, CommandFactory, Parser, Subcommand, ValueEnum,
    error::{ContextKind, ContextValue},
};
use miette::{GraphicalReportHandler, GraphicalTheme};

use crate::{
    commands,
    error::{Error, Result, nearest},
};

const EXIT_STATUS: &str = "\
Exit status:
  0    done
  1    `todos --deny`: something is left to do
  2    wrong input: an argument, a name, an option, a values file or a folder
  3    the file system or another program failed; nothing half-written is left
  4    the template is wrong
  130  cancelled at a prompt
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
    New(NewArgs),
    /// Show what options change in a project, before it is made.
    Diff(commands::diff::DiffArgs),
    /// List the worked examples that `new --example` makes.
    Examples,
    /// List the options, their values and what each changes.
    Options,
    /// List what is left to change in a project for your own task.
    Todos(TodosArgs),
}

/// The arguments of `kiln new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// The name of the project; capitals become kebab-case. Asked on a terminal if it is missing.
    pub name: Option<String>,
    /// The folder to make [default: the name].
    #[arg(long, value_name = "FOLDER")]
    pub path: Option<PathBuf>,
    /// Make the project of a worked example; `kiln examples` lists them.
    #[arg(long, value_name = "EXAMPLE")]
    pub example: Option<String>,
    /// Set an option; wins over --example, --values and prompts.
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub define: Vec<String>,
    /// Set options from a TOML file, at its top or under [values].
    #[arg(long, value_name = "FILE")]
    pub values: Option<PathBuf>,
    /// Write into a folder that is not empty; only files that the template has too are replaced.
    #[arg(long)]
    pub force: bool,
    /// The version control [default: git, unless the project stands in a repository].
    #[arg(long)]
    pub vcs: Option<VcsArg>,
    /// Ask nothing and take the defaults.
    #[arg(short, long)]
    pub yes: bool,
    /// List what would be written, ask nothing and write nothing.
    #[arg(long, conflicts_with = "train")]
    pub dry_run: bool,
    /// Build the project and train it at once.
    #[arg(long)]
    pub train: bool,
}

/// The version control of a new project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VcsArg {
    /// A git repository.
    Git,
    /// None.
    None,
}

impl VcsArg {
    /// How the command line writes it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            VcsArg::Git => "git",
            VcsArg::None => "none",
        }
    }
}

/// The arguments of `kiln todos`.
#[derive(Debug, Args)]
pub struct TodosArgs {
    /// The project's folder.
    #[arg(default_value = ".")]
    pub path: PathBuf,
    /// How to write the list.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
    /// Exit with status 1 if anything is left.
    #[arg(long)]
    pub deny: bool,
}

/// How a list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Runs Kiln with the arguments of a process, the first of which is its name.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    match Cli::try_parse_from(args) {
        Ok(cli) => dispatch(&cli.command).unwrap_or_else(|error| {
            report(&error);
            ExitCode::from(error.kind().exit_status())
        }),
        Err(mut error) => {
            suggest_subcommand(&mut error);
            // Nothing can be said where standard error is closed.
            let _ = error.print();
            ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
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

fn dispatch(command: &Command) -> Result<ExitCode> {
    match command {
        Command::New(args) => commands::new::run(args),
        Command::Diff(args) => commands::diff::run(args),
        Command::Examples => commands::examples::run(),
        Command::Options => commands::options::run(),
        Command::Todos(args) => commands::todos::run(args),
    }
}

fn report(error: &Error) {
    let terminal = io::stderr().is_terminal();
    let color = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let theme = if color {
        GraphicalTheme::unicode()
    } else {
        GraphicalTheme::unicode_nocolor()
    };
    let mut text = String::new();
    let drawn = GraphicalReportHandler::new_themed(theme)
        .with_width(100)
        .render_report(&mut text, error);
    match drawn {
        Ok(()) => eprint!("{}", text.trim_start_matches('\n')),
        Err(_) => eprintln!("{error}"),
    }
}
