//! Terminal output. A closed pipe, a full disk or a terminal that hangs up does not end a run, whose
//! results are in files.

use std::{
    fmt::Display,
    io::{self, Write},
    sync::Once,
};

static LOST: Once = Once::new();

/// Writes a line to the standard output. Warns on the standard error at the first failure.
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

/// Writes a line to the standard error, ignoring failures.
pub fn warn(line: impl Display) {
    // One write: the standard error is unbuffered, and `mpirun` would mix parts of lines of several
    // processes. A failure cannot be reported anywhere.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}
