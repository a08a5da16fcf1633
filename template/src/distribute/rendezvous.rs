use std::{
    fmt::Display,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread::available_parallelism,
};

use anyhow::{Result, bail};

/// Polls before a thread goes to sleep: others arrive within microseconds when all share a step.
const POLLS: usize = 2_000;

/// A barrier that opens for all with an error as soon as one party fails.
///
/// `std::sync::Barrier` would leave the others waiting for ever.
pub struct Rendezvous {
    parties: usize,
    polls: usize,
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
            polls: if parties <= cores { POLLS } else { 0 },
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
        for _ in 0..self.polls {
            if passed() {
                return Ok(());
            }
            std::hint::spin_loop();
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
