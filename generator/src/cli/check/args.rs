//! The arguments of `kiln check`.

use std::path::PathBuf;

use crate::cli::output::Format;

const EXIT_STATUS: &str = "\
Exit status:
  0    every check passed, or was skipped with its reason
  1    a check failed
  2    the folder holds no project of Kiln, Cargo cannot read its manifest, or an argument is wrong
  3    Cargo cannot be started, or a file not be written
  130  stopped by Ctrl-C, with all that it had started";

/// The arguments of `kiln check`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXIT_STATUS)]
pub struct CheckArgs {
    /// The project's folder.
    #[arg(default_value = ".")]
    pub(super) path: PathBuf,
    /// How to write the results.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub(super) format: Format,
    /// Build with the release profile.
    #[arg(long)]
    pub(super) release: bool,
    /// Features to build with, as for Cargo.
    #[arg(short = 'F', long, value_name = "FEATURES")]
    pub(super) features: Vec<String>,
    /// Build without the project's default features.
    #[arg(long)]
    pub(super) no_default_features: bool,
    /// Seconds that the contract tests, and each training, may take; building takes what it takes.
    #[arg(long, value_name = "SECONDS", default_value_t = 1200, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) timeout: u64,
    /// More options for the trainings, such as `-- --data-dir small`.
    #[arg(last = true, value_name = "OPTION")]
    pub(super) options: Vec<String>,
}
