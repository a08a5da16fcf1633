//! Requests to stop a run: signals, and what the processes of a job agree on.
//!
//! The first SIGINT, SIGTERM or SIGUSR1 asks the loop to stop after its batch and to save. Launchers
//! and wrappers often deliver a signal twice, so that one within a second of the first counts as the
//! same. A later one stops waiting for the batch. A save that began always ends.

use std::{
    sync::{
        Mutex, MutexGuard, Once, PoisonError, TryLockError,
        atomic::{AtomicI32, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{distribute::exit_at_once, globals, report::terminal};

/// Signals that ask for a stop.
#[cfg(unix)]
const SIGNALS: [i32; 3] = {
    use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
    [SIGINT, SIGTERM, SIGUSR1]
};
#[cfg(not(unix))]
const SIGNALS: [i32; 3] = [2, 15, 10];

/// By the convention of shells, a program that a signal ended exits with this plus the signal.
const EXIT_BASE: i32 = 128;

/// A second signal within this time is a duplicate of the first.
pub const DUPLICATE: Duration = Duration::from_secs(1);

/// The longest wait of an exit for a save in progress, whose disk or peer may hang.
const SAVE_LIMIT: Duration = Duration::from_secs(60);

/// The first signal to this process; 0 if there was none.
static REQUESTED: AtomicI32 = AtomicI32::new(0);
/// The signal that all processes stopped for; 0 if there was none.
static STOPPED: AtomicI32 = AtomicI32::new(0);
/// Held while a checkpoint is saved, over all processes.
static SAVING: Mutex<()> = Mutex::new(());
/// Held while this process writes the files of a checkpoint.
static WRITING: Mutex<()> = Mutex::new(());
static LISTENING: Once = Once::new();

/// Why training ends before its last epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal, by its number.
    Signal(i32),
    /// A callback, as for early stopping.
    Callback,
}

impl Stop {
    /// All requests, the one with the highest priority first.
    pub const ALL: [Stop; 4] = [
        Stop::Signal(SIGNALS[0]),
        Stop::Signal(SIGNALS[1]),
        Stop::Signal(SIGNALS[2]),
        Stop::Callback,
    ];

    /// Its place in [`ALL`](Self::ALL), by which processes exchange it.
    pub fn code(self) -> usize {
        let place = Self::ALL.iter().position(|stop| *stop == self);
        place.unwrap_or(Self::ALL.len() - 1)
    }
}

/// Has signals ask for a stop from now on. SIGHUP does not: training outlives its terminal.
pub fn listen() {
    LISTENING.call_once(|| {
        let mut first: Option<Instant> = None;
        let listening = on_signals(move |signal| match first {
            None => {
                first = Some(Instant::now());
                REQUESTED.store(signal, Ordering::Relaxed);
                terminal::warn(
                    "stopping after this step; signal again after a second to stop at once",
                );
            }
            Some(first) if first.elapsed() < DUPLICATE => {}
            Some(_) => {
                wait_for(&SAVING);
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

/// Calls `handler` on a thread of its own for each signal that asks for a stop, with its number.
///
/// # Errors
/// The system allows no handler, or another one is set.
#[cfg(unix)]
pub fn on_signals(mut handler: impl FnMut(i32) + Send + 'static) -> Result<()> {
    use signal_hook::{consts::SIGHUP, iterator::Signals};

    let mut signals = Signals::new(SIGNALS.iter().chain(&[SIGHUP]))?;
    thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || {
            let stops = signals.forever().filter(|signal| *signal != SIGHUP);
            stops.for_each(&mut handler);
        })?;
    Ok(())
}

/// As above, for Ctrl-C and the closing of the console.
#[cfg(not(unix))]
pub fn on_signals(mut handler: impl FnMut(i32) + Send + 'static) -> Result<()> {
    Ok(ctrlc::set_handler(move || handler(SIGNALS[0]))?)
}

/// What this process was asked by a signal, if anything.
pub fn requested() -> Option<Stop> {
    match REQUESTED.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(Stop::Signal(signal)),
    }
}

/// The request to stop that any process of the job has, the same on all after the same step. `own` is
/// that of this process beside signals.
///
/// # Errors
/// Another process failed.
pub fn agreed(own: Option<Stop>) -> Result<Option<Stop>> {
    let stop = globals::strategy()?.any_stops(requested().or(own))?;
    if let Some(Stop::Signal(signal)) = stop {
        STOPPED.store(signal, Ordering::Relaxed);
    }
    Ok(stop)
}

/// Notes that the run ends because of a signal to this process.
pub fn note_stopped(signal: i32) {
    STOPPED.store(signal, Ordering::Relaxed);
}

/// The exit status of a run that a signal stopped: 128 + the signal.
pub fn exit_status() -> Option<u8> {
    match STOPPED.load(Ordering::Relaxed) {
        0 => None,
        signal => u8::try_from(EXIT_BASE + signal).ok(),
    }
}

/// Marks the time in which a checkpoint is saved; no signal ends it.
pub fn saving() -> MutexGuard<'static, ()> {
    lock(&SAVING)
}

/// Marks the time in which this process writes files of a checkpoint; no lost process ends it.
pub fn writing() -> MutexGuard<'static, ()> {
    lock(&WRITING)
}

/// Waits until this process has written a checkpoint that it is writing, up to a minute.
pub fn wait_for_write() {
    wait_for(&WRITING);
}

fn wait_for(work: &Mutex<()>) {
    let deadline = Instant::now() + SAVE_LIMIT;
    while let Err(TryLockError::WouldBlock) = work.try_lock() {
        if Instant::now() > deadline {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn lock(mutex: &'static Mutex<()>) -> MutexGuard<'static, ()> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
