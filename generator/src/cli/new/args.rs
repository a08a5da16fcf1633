//! Arguments of `kiln new`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Arguments of `kiln new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// Name of the project, converted to kebab-case if it has capitals. If missing, a prompt asks for it
    pub name: Option<String>,
    /// Folder of the project [default: the name]
    #[arg(long, value_name = "FOLDER")]
    pub path: Option<PathBuf>,
    /// Create the project of a worked example; `kiln examples` lists them
    #[arg(long, value_name = "EXAMPLE")]
    pub example: Option<String>,
    /// Render the template in a folder, such as your team's, instead of Kiln's own
    #[arg(long, value_name = "FOLDER", conflicts_with = "example")]
    pub template: Option<PathBuf>,
    /// Set an option; takes precedence over --example, --values and prompts
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub define: Vec<String>,
    /// Set options from a TOML file, at its top level or under [values]
    #[arg(long, value_name = "FILE")]
    pub values: Option<PathBuf>,
    /// Write into a folder that is not empty, replacing files that the template has too
    #[arg(long)]
    pub force: bool,
    /// Version control [default: git, unless the project lies in a repository]
    #[arg(long)]
    pub vcs: Option<VcsArg>,
    /// Skip all prompts and use the defaults
    #[arg(short, long)]
    pub yes: bool,
    /// List the files without prompting or writing
    #[arg(long, conflicts_with = "train")]
    pub dry_run: bool,
    /// Build and train the project
    #[arg(long)]
    pub train: bool,
}

/// Version control of a new project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VcsArg {
    /// A git repository
    Git,
    /// No version control
    None,
}

impl VcsArg {
    /// The value on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            VcsArg::Git => "git",
            VcsArg::None => "none",
        }
    }
}
