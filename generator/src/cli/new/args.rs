//! Arguments of `kiln new`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::{cli::source::VersionArgs, project::workspace::Choice};

/// Arguments of `kiln new`.
#[derive(Debug, Clone, Args)]
pub struct NewArgs {
    /// Name of the project, converted to kebab-case if it has capitals, or the path of its folder,
    /// whose last part is the name; `.` is the current folder. If missing, a prompt asks for it
    pub name: Option<String>,
    /// Name of the project, if it is not that of the folder NAME
    #[arg(long = "name", value_name = "NAME")]
    pub named: Option<String>,
    /// Folder of the project [default: the name]
    #[arg(long, value_name = "FOLDER", value_parser = crate::cli::folder::PathParser)]
    pub path: Option<PathBuf>,
    /// Create the project of a worked example; `kiln examples` lists them
    #[arg(long, value_name = "EXAMPLE")]
    pub example: Option<String>,
    /// Render another template, such as your team's, instead of Kiln's own: a folder, the URL of a
    /// Git repository, OWNER/NAME on GitHub, or a favourite of `kiln templates`
    #[arg(long, value_name = "TEMPLATE", conflicts_with = "example", value_parser = crate::cli::folder::PathParser)]
    pub template: Option<PathBuf>,
    /// Refuse mistakes in the template that cargo-generate renders, such as unknown variables; without
    /// it, they are warnings
    #[arg(long, requires = "template")]
    pub strict: bool,
    /// Render the template without its hooks: the scripts that cargo-generate would run
    #[arg(long, requires = "template")]
    pub skip_hooks: bool,
    /// Set an option; takes precedence over --example, --values and prompts
    #[arg(short, long, value_name = "KEY=VALUE")]
    pub define: Vec<String>,
    /// Set options from a TOML file, at its top level or under [values], or from the `.kiln.toml` of
    /// another project
    #[arg(long, value_name = "FILE", value_parser = crate::cli::folder::PathParser)]
    pub values: Option<PathBuf>,
    /// Replace files in the folder that the template has too. Without it, an existing README.md is
    /// kept, .gitignore gets the lines that it lacks, and any other file of the template is an error
    #[arg(long)]
    pub force: bool,
    /// Version control [default: git, unless the project lies in a repository that does not ignore it]
    #[arg(long)]
    pub vcs: Option<VcsArg>,
    /// Membership in a Cargo workspace above [default: exclude if it would have the project as a
    /// member, but member if it lists its path, or if the template is no workspace]
    #[arg(long)]
    pub workspace: Option<WorkspaceArg>,
    /// Skip all prompts and use the defaults
    #[arg(short, long)]
    pub yes: bool,
    /// List the files without prompting or writing
    #[arg(long, conflicts_with = "train")]
    pub dry_run: bool,
    /// Build and train the project
    #[arg(long)]
    pub train: bool,
    #[command(flatten)]
    pub version: VersionArgs,
}

/// Membership of a new project in a Cargo workspace above.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WorkspaceArg {
    /// The project is a workspace of its own: its path is added to the other's `exclude`
    Exclude,
    /// The project is a member: its path is added to `members`, its profiles to the root's
    Member,
    /// The manifests above stay as they are
    Keep,
}

impl WorkspaceArg {
    /// The value on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            WorkspaceArg::Exclude => "exclude",
            WorkspaceArg::Member => "member",
            WorkspaceArg::Keep => "keep",
        }
    }

    /// The choice of the library for this argument.
    pub(crate) fn choice(self) -> Choice {
        match self {
            WorkspaceArg::Exclude => Choice::Exclude,
            WorkspaceArg::Member => Choice::Member,
            WorkspaceArg::Keep => Choice::Keep,
        }
    }
}

/// Version control of a new project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum VcsArg {
    /// A git repository, also inside another one
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
