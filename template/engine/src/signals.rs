//! Signals that stop this process, and what delays its exit.
//!
//! The first SIGINT, SIGTERM or SIGUSR1 requests a stop, which the training loop [agrees
//! on](crate::checkpoint::interrupt). A checkpoint that is being written is completed before the process exits.

use std::{
    sync::atomic::{AtomicI32, AtomicUsize, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

/// Signals that request a stop.
#[cfg(unix)]
pub(crate) const SIGNALS: [i32; 3] = {
    use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
    [SIGINT, SIGTERM, SIGUSR1]
};
#[cfg(not(unix))]
pub(crate) const SIGNALS: [i32; 3] = [2, 15, 10];

/// By the convention of shells, the exit status of a program ended by a signal is this plus the signal.
pub(crate) const EXIT_BASE: i32 = 128;

/// A second signal within this time is a duplicate of the first.
pub const DUPLICATE: Duration = Duration::from_secs(1);

/// Maximum time that an exit waits for a save in progress, whose disk or peer may hang.
const SAVE_LIMIT: Duration = Duration::from_secs(60);

/// The first signal to this process; 0 if none.
static REQUESTED: AtomicI32 = AtomicI32::new(0);
/// The signal that stopped all processes; 0 if none.
static STOPPED: AtomicI32 = AtomicI32::new(0);
/// Checkpoints that are being saved, over all processes, until the files are written.
static SAVING: AtomicUsize = AtomicUsize::new(0);
/// Checkpoints whose files this process writes.
static WRITING: AtomicUsize = AtomicUsize::new(0);

/// Why training ends before its last epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// A signal, by its number.
    Signal(i32),
    /// A callback, such as early stopping.
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

    /// Index in [`ALL`](Self::ALL), as exchanged between processes.
    pub fn code(self) -> usize {
        let place = Self::ALL.iter().position(|stop| *stop == self);
        place.unwrap_or(Self::ALL.len() - 1)
    }
}

/// Calls `handler` on a thread of its own with the number of each signal that requests a stop.
///
/// # Errors
/// The system allows no handler, or another one is installed.
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

/// Notes the signal that requests a stop of this process.
pub(crate) fn request(signal: i32) {
    REQUESTED.store(signal, Ordering::Relaxed);
}

/// The stop request of a signal to this process, if any.
pub fn requested() -> Option<Stop> {
    match REQUESTED.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(Stop::Signal(signal)),
    }
}

/// Records that a signal to this process ends the run.
pub fn note_stopped(signal: i32) {
    STOPPED.store(signal, Ordering::Relaxed);
}

/// Exit status of a run stopped by a signal: 128 + the signal.
pub fn exit_status() -> Option<u8> {
    match STOPPED.load(Ordering::Relaxed) {
        0 => None,
        signal => u8::try_from(EXIT_BASE + signal).ok(),
    }
}

/// Keeps this process from exiting until it is dropped, on any thread; an exit waits for at most a minute.
pub struct Guard(&'static AtomicUsize);

impl Guard {
    fn of(work: &'static AtomicUsize) -> Self {
        work.fetch_add(1, Ordering::SeqCst);
        Guard(work)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Guards the save of a checkpoint against signals.
pub fn saving() -> Guard {
    Guard::of(&SAVING)
}

/// Guards the writing of a checkpoint's files against an exit because of a lost process.
pub fn writing() -> Guard {
    Guard::of(&WRITING)
}

/// Ends this process at once, except that a checkpoint being written is completed. `std::process::exit`
/// could hang on a thread that is exiting but blocked, for example on a lost worker.
pub fn exit_at_once(status: i32) -> ! {
    wait_for(&WRITING);
    #[cfg(unix)]
    signal_hook::low_level::exit(status);
    #[cfg(not(unix))]
    std::process::exit(status)
}

/// Waits for the saves in progress, for at most a minute.
pub(crate) fn wait_for_saves() {
    wait_for(&SAVING);
}

fn wait_for(work: &AtomicUsize) {
    let deadline = Instant::now() + SAVE_LIMIT;
    while work.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
}
