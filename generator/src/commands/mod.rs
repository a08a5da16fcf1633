//! What each subcommand does.

pub(crate) mod add;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod examples;
pub(crate) mod explain;
pub(crate) mod folder;
pub(crate) mod man;
pub(crate) mod new;
pub(crate) mod options;
mod plain;
mod prompt;
pub(crate) mod renew;
mod summary;
pub(crate) mod todos;
pub(crate) mod update;
mod wizard;

use std::io::{self, Write as _};

use crate::error::{Error, Result};

/// Prints to standard output; whoever stops reading, as `head` does, has had enough.
///
/// # Errors
/// It cannot be written, such as to a full disk.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let written = stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush());
    match written {
        Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => {
            let message = format!("cannot write to standard output: {cause}");
            Err(Error::system(message).help("check where it is redirected to"))
        }
        _ => Ok(()),
    }
}
