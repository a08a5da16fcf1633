use std::{
    fmt::Display,
    hint::spin_loop,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::available_parallelism,
};

use anyhow::{Result, bail};

use super::polling::poll;

/// Looks for the others with nothing in between: when all share a step they arrive sooner.
const SPINS: usize = 200;
/// Looks after those, as while the first replica updates for all. The threads that it updates with may
/// have the core between two of them.
const LOOKS: usize = 2_000;

/// A barrier that opens for all with an error as soon as one party fails.
///
/// `std::sync::Barrier` would leave the others waiting for ever.
pub struct Rendezvous {
    parties: usize,
    polls: bool,
    /// Meetings that were complete, counted so that a thread sees its own one pass.
    meetings: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrived: usize,
    failure: Option<String>,
}

impl Rendezvous {
    pub fn new(parties: usize) -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Rendezvous {
            parties,
            // With fewer cores than parties, polling keeps the one waited for from its core.
            polls: parties <= cores,
            meetings: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Waits until all parties are here.
    ///
    /// # Errors
    /// A party called [`abort`](Self::abort); it says why.
    pub fn wait(&self) -> Result<()> {
        let mut state = self.lock();
        if let Some(failure) = &state.failure {
            bail!("{failure}");
        }
        let meeting = self.meetings.load(Ordering::Acquire);
        state.arrived += 1;
        if state.arrived == self.parties {
            state.arrived = 0;
            self.meetings.store(meeting + 1, Ordering::Release);
            self.changed.notify_all();
            return Ok(());
        }
        drop(state);
        self.wait_for(meeting)
    }

    fn wait_for(&self, meeting: usize) -> Result<()> {
        let passed = || self.meetings.load(Ordering::Acquire) != meeting;
        if self.polls && passes_soon(passed) {
            return Ok(());
        }
        let mut state = self.lock();
        loop {
            if passed() {
                return Ok(());
            }
            if let Some(failure) = &state.failure {
                bail!("{failure}");
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Releases all who wait, now and later, with an error that says `reason`; the first one stays.
    pub fn abort(&self, reason: impl Display) {
        self.lock()
            .failure
            .get_or_insert_with(|| reason.to_string());
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for a short time, and tells whether what was waited for has come.
fn passes_soon(passed: impl Fn() -> bool) -> bool {
    for _ in 0..SPINS {
        if passed() {
            return true;
        }
        spin_loop();
    }
    poll(LOOKS, || passed().then_some(())).is_some()
}
