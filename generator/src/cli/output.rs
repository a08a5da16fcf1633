//! What subcommands print, and how.

use std::io::{self, Write};

use clap::ValueEnum;

use crate::error::{Error, Result};

/// How a list is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people.
    Text,
    /// For programs.
    Json,
}

/// Prints to standard output; whoever stops reading, as `head` does, has had enough.
///
/// # Errors
/// It cannot be written, such as to a full disk.
pub(crate) fn print(text: &str) -> Result<()> {
    print_to(io::stdout().lock(), text)
}

/// As [`print`], a text with colours, which are left out where they are not wanted.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_colored(text: &str) -> Result<()> {
    print_to(anstream::stdout().lock(), text)
}

fn print_to(mut output: impl Write, text: &str) -> Result<()> {
    let written = output.write_all(text.as_bytes());
    match written.and_then(|()| output.flush()) {
        Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => {
            let message = format!("cannot write to standard output: {cause}");
            Err(Error::system(message).help("check where it is redirected to"))
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error, beside what a command does. Where nobody reads it, there is nobody
/// to tell.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}
