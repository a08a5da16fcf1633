//! Reasons why a check does not pass.

use std::io;

use crate::{
    cli::process::{Ended, Running},
    error::{Error, Result},
};

/// The reason why a check did not pass.
pub(super) enum Problem {
    Failed(String),
    Skipped(String),
    /// An error that prevents all further checks.
    Broken(Error),
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        Problem::Broken(error)
    }
}

pub(super) type Checked<T> = std::result::Result<T, Problem>;

pub(super) fn failed<T>(why: impl Into<String>) -> Checked<T> {
    Err(Problem::Failed(why.into()))
}

pub(super) fn skipped<T>(why: impl Into<String>) -> Checked<T> {
    Err(Problem::Skipped(why.into()))
}

pub(super) fn wait(running: &mut Running) -> Result<Ended> {
    running.wait().map_err(|cause| cannot_wait(&cause))
}

pub(super) fn cannot_wait(cause: &io::Error) -> Error {
    Error::system(format!("cannot wait for a child process: {cause}"))
}
