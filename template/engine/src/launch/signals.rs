//! Signals that stop this process, forwarded to the MPI launcher.

use std::{
    iter::repeat,
    process::Command,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI32, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use super::{LAUNCHER, listening::Workers};
use crate::{
    checkpoint::interrupt::{DUPLICATE, on_signals},
    console::terminal,
};

/// Signals to the launcher at the first, second and third signal to this process, then SIGKILL. It forwards SIGUSR1
/// to the workers, which save at the first one and exit without waiting for their step at the second. At
/// SIGTERM it kills them.
const FORWARDED: [&str; 3] = ["USR1", "USR1", "TERM"];
const LAST: &str = "KILL";

/// Time after the start of the launcher in which a signal waits until the workers handle it.
const START: Duration = Duration::from_secs(10);

/// Signals that are forwarded until the launcher has ended.
pub(super) struct Forwarded(Arc<State>);

struct State {
    workers: Workers,
    /// The launcher's process, and until when its workers start; empty before it is started.
    launcher: OnceLock<(u32, Instant)>,
    has_ended: AtomicBool,
    /// The first signal; 0 until there is one.
    first: AtomicI32,
}

impl Forwarded {
    /// Handles the signals to this process from now on. One that comes before all of `workers` handle it waits for
    /// them.
    pub(super) fn begin(workers: Workers) -> Self {
        let state = Arc::new(State {
            workers,
            launcher: OnceLock::new(),
            has_ended: AtomicBool::new(false),
            first: AtomicI32::new(0),
        });
        let handled = Arc::clone(&state);
        let mut signals = FORWARDED.into_iter().chain(repeat(LAST));
        let mut last: Option<Instant> = None;
        let handler = move |number| {
            // Ignore duplicates, as many wrappers deliver a signal twice.
            if last.is_some_and(|last| last.elapsed() < DUPLICATE) {
                return;
            }
            let launcher = handled.ready_launcher();
            last = Some(Instant::now());
            if !handled.has_ended.load(Relaxed) {
                let _ = handled.first.compare_exchange(0, number, Relaxed, Relaxed);
                send(signals.next().unwrap_or(LAST), launcher);
            }
        };
        if let Err(error) = on_signals(handler) {
            terminal::warn(format_args!(
                "warning: a signal will not reach the workers: {error:#}"
            ));
        }
        Self(state)
    }

    /// Sets the launcher's process, for which signals wait.
    pub(super) fn launcher_has_started(&self, launcher: u32) {
        let _ = self.0.launcher.set((launcher, Instant::now() + START));
    }

    /// Ends the forwarding, and returns the first signal.
    pub(super) fn end(self) -> Option<i32> {
        self.0.has_ended.store(true, Relaxed);
        Some(self.0.first.load(Relaxed)).filter(|signal| *signal != 0)
    }
}

impl State {
    /// Waits until the launcher's workers handle the signal, or until their start takes too long.
    fn ready_launcher(&self) -> u32 {
        let (launcher, deadline) = *self.launcher.wait();
        if !self.has_ended.load(Relaxed) {
            self.workers.wait(launcher, deadline);
        }
        launcher
    }
}

/// Sends a signal by its name.
fn send(signal: &str, launcher: u32) {
    let mut kill = Command::new("kill");
    let sent = kill.args(["-s", signal, &launcher.to_string()]).status();
    if !sent.is_ok_and(|status| status.success()) {
        terminal::warn(format_args!(
            "warning: cannot signal {LAUNCHER}, which is process {launcher}"
        ));
    }
}
