//! Stop requests: signals, and the agreement of all processes of a job.
//!
//! The first SIGINT, SIGTERM or SIGUSR1 requests a stop: the training loop finishes its batch and saves a
//! checkpoint. Launchers and wrappers often deliver a signal twice, so a second one within a second of the
//! first is ignored as a duplicate. A later one exits without waiting for the batch, but after a save in
//! progress. Before the first step on a GPU, whose kernels are being compiled, the first signal exits at once.

use std::{sync::Once, time::Instant};

use anyhow::Result;

use crate::{
    console::terminal,
    globals, kernel_cache,
    signals::{EXIT_BASE, request, wait_for_saves},
};

pub use crate::signals::{
    DUPLICATE, Guard, Stop, exit_at_once, exit_status, note_stopped, on_signals, requested, saving,
    writing,
};

static LISTENING: Once = Once::new();

/// Installs the signal handler for stop requests. SIGHUP is ignored: training outlives its terminal.
pub fn listen() {
    LISTENING.call_once(|| {
        let mut first: Option<Instant> = None;
        let listening = on_signals(move |signal| match first {
            // The kernels of a GPU may take minutes to compile, and there is nothing to save yet.
            None if kernel_cache::is_awaiting_first_step() => {
                terminal::warn("stopped before the first step: there is nothing to save");
                exit_at_once(EXIT_BASE + signal);
            }
            None => {
                first = Some(Instant::now());
                request(signal);
                terminal::warn(
                    "stopping after this step; signal again after a second to stop at once",
                );
            }
            Some(first) if first.elapsed() < DUPLICATE => {}
            Some(_) => {
                wait_for_saves();
                exit_at_once(EXIT_BASE + signal);
            }
        });
        if let Err(error) = listening {
            terminal::warn(format_args!(
                "warning: a signal will end this run without a checkpoint: {error:#}"
            ));
        }
    });
}

/// The stop request of any process of the job; all agree at the same step. `own` is that of this process,
/// other than by a signal.
///
/// # Errors
/// Another process failed.
pub fn agreed(own: Option<Stop>) -> Result<Option<Stop>> {
    let stop = globals::strategy()?.any_stops(requested().or(own))?;
    if let Some(Stop::Signal(signal)) = stop {
        note_stopped(signal);
    }
    Ok(stop)
}
