//! The arguments of `kiln new`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

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
    /// Render the template in a folder, such as your team's, instead of Kiln's own.
    #[arg(long, value_name = "FOLDER", conflicts_with = "example")]
    pub template: Option<PathBuf>,
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
