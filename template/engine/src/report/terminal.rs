//! Lines for people. A reader that goes away, a full disk or a terminal that hangs up ends no run, as
//! its results are in files.

use std::{
    fmt::Display,
    io::{self, Write},
    sync::Once,
};

static LOST: Once = Once::new();

/// Writes a line to the standard output. The first failure is told on the standard error.
pub fn print(line: impl Display) {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{line}").and_then(|()| stdout.flush());
    if let Err(error) = written {
        LOST.call_once(|| {
            warn(format_args!(
                "warning: the standard output cannot be written ({error}); the run goes on, and its \
                 log is in the output folder"
            ));
        });
    }
}

/// Writes a line to the standard error, if it can be written.
pub fn warn(line: impl Display) {
    // There is no other place to tell of a failure.
    let _ = writeln!(io::stderr(), "{line}");
}
