//! Stop requests: signals, and the agreement of all processes of a job.
//!
//! The first SIGINT, SIGTERM or SIGUSR1 requests a stop: the training loop finishes its batch and saves a
//! checkpoint. Launchers and wrappers often deliver a signal twice, so a second one within a second of the
//! first is ignored as a duplicate. A later one exits without waiting for the batch, but after a save in
//! progress. Before the first step on a GPU, whose kernels are being compiled, the first signal exits at once.

use std::{
    sync::{
        Once,
        atomic::{AtomicI32, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Result;

use crate::{console::terminal, globals, kernels};

/// Signals that request a stop.
#[cfg(unix)]
const SIGNALS: [i32; 3] = {
    use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1};
    [SIGINT, SIGTERM, SIGUSR1]
};
#[cfg(not(unix))]
const SIGNALS: [i32; 3] = [2, 15, 10];

/// By the convention of shells, the exit status of a program ended by a signal is this plus the signal.
const EXIT_BASE: i32 = 128;

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
static LISTENING: Once = Once::new();

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

/// Installs the signal handler for stop requests. SIGHUP is ignored: training outlives its terminal.
pub fn listen() {
    LISTENING.call_once(|| {
        let mut first: Option<Instant> = None;
        let listening = on_signals(move |signal| match first {
            // The kernels of a GPU may take minutes to compile, and there is nothing to save yet.
            None if kernels::is_awaiting_first_step() => {
                terminal::warn("stopped before the first step: there is nothing to save");
                exit_at_once(EXIT_BASE + signal);
            }
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

/// The stop request of a signal to this process, if any.
pub fn requested() -> Option<Stop> {
    match REQUESTED.load(Ordering::Relaxed) {
        0 => None,
        signal => Some(Stop::Signal(signal)),
    }
}

/// The stop request of any process of the job; all agree at the same step. `own` is that of this process,
/// other than by a signal.
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

fn wait_for(work: &AtomicUsize) {
    let deadline = Instant::now() + SAVE_LIMIT;
    while work.load(Ordering::SeqCst) > 0 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(10));
    }
}
