//! Output of subcommands.

use std::io::{self, IsTerminal, Write};

use clap::ValueEnum;

use crate::{
    error::{Error, Result},
    wrapping::{fill, width_of},
};

/// Output format of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Human-readable text
    Text,
    /// JSON
    Json,
}

/// Prints to standard output. A closed pipe, as `head` leaves it, is not an error.
///
/// # Errors
/// Writing fails, for example because the disk is full.
pub(crate) fn print(text: &str) -> Result<()> {
    print_to(io::stdout().lock(), text)
}

/// Like [`print`], for text with colours, which are stripped if unsupported.
///
/// # Errors
/// As for [`print`].
pub(crate) fn print_colored(text: &str) -> Result<()> {
    print_to(anstream::stdout().lock(), text)
}

fn print_to(mut output: impl Write, text: &str) -> Result<()> {
    let written = output.write_all(text.as_bytes());
    match written.and_then(|()| output.flush()) {
        Err(cause) if cause.kind() != io::ErrorKind::BrokenPipe => {
            let message = format!("cannot write to standard output: {cause}");
            Err(Error::system(message).help("check where the output is redirected to"))
        }
        _ => Ok(()),
    }
}

/// Writes a line to standard error, at once, as that has no buffer. On a terminal, it is broken
/// between words. A failure to write it is ignored.
pub(crate) fn note(line: &str) {
    let line = match io::stderr().is_terminal() {
        true => fill(line, width_of(&io::stderr())),
        false => line.to_owned(),
    };
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
