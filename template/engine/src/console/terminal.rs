//! Terminal output. A closed pipe, a full disk or a terminal that hangs up does not end a run, whose
//! results are in files.

use std::{
    fmt::Display,
    io::{self, Write},
    sync::{Mutex, Once, PoisonError},
};

use console::Term;
use indicatif::ProgressBar;

static LOST: Once = Once::new();

/// The visible progress bar.
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// Notes which progress bar is visible, for lines that are written meanwhile.
pub fn show_bar(bar: Option<ProgressBar>) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = bar;
}

/// Calls `write` without the progress bar, half of which would stay behind above a line.
fn without_bar<T>(write: impl FnOnce() -> T) -> T {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match bar {
        Some(bar) => bar.suspend(write),
        None => write(),
    }
}

/// Columns of the terminal on the standard output; `None` if that is a file or a pipe.
pub fn width() -> Option<usize> {
    let (_, columns) = Term::stdout().size_checked()?;
    Some(columns.into())
}

/// Writes a line to the standard output. Warns on the standard error at the first failure.
pub fn print(line: impl Display) {
    let written = without_bar(|| {
        let mut stdout = io::stdout().lock();
        writeln!(stdout, "{line}").and_then(|()| stdout.flush())
    });
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
    let _ = without_bar(|| io::stderr().write_all(format!("{line}\n").as_bytes()));
}
