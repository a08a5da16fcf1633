//! Arguments of `kiln check`.

use std::path::PathBuf;

use crate::cli::output::Format;

const EXIT_STATUS: &str = "\
Exit status:
  0    every check passed or was skipped
  1    a check failed
  2    the folder has no Kiln project, Cargo cannot read its manifest, or an argument is invalid
  3    Cargo cannot be started, or a file cannot be written
  130  stopped by Ctrl-C, including all child processes";

/// Arguments of `kiln check`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_STATUS)]
pub struct CheckArgs {
    /// Folder of the project
    #[arg(default_value = ".", value_parser = crate::cli::folder::PathParser)]
    pub(in crate::cli) path: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(super) format: Format,
    /// Build with the release profile
    #[arg(long)]
    pub(super) release: bool,
    /// Features to build with, as for Cargo
    #[arg(short = 'F', long, value_name = "FEATURES")]
    pub(super) features: Vec<String>,
    /// Build without the project's default features
    #[arg(long)]
    pub(super) no_default_features: bool,
    /// Time limit in seconds for the contract tests and for each training; builds have no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 1200, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) timeout: u64,
    /// More options for the trainings, such as `-- --data-dir small`
    #[arg(last = true, value_name = "OPTION")]
    pub(super) options: Vec<String>,
}
