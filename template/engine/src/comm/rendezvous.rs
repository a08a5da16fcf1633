//! A barrier that fails for all parties at once.

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

/// Polls without yielding, for parties that arrive almost together.
const SPINS: usize = 200;
/// Further polls, such as during an update by the first replica. The core is yielded between polls, to
/// the threads of that update.
const LOOKS: usize = 2_000;

/// A barrier that fails for all parties as soon as one fails, or has left while the others wait for it.
///
/// With `std::sync::Barrier` the others would wait forever.
pub struct Rendezvous {
    parties: usize,
    polls: bool,
    /// Number of completed meetings, by which a thread sees its own one pass.
    meetings: AtomicUsize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    arrived: usize,
    /// The ranks of the parties that wait no more.
    finished: Vec<usize>,
    failure: Option<String>,
}

impl Rendezvous {
    pub fn new(parties: usize) -> Self {
        let cores = available_parallelism().map_or(1, usize::from);
        Rendezvous {
            parties,
            // With fewer cores than parties, polling would take the core of the awaited one.
            polls: parties <= cores,
            meetings: AtomicUsize::new(0),
            state: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Waits for all parties.
    ///
    /// # Errors
    /// The reason of a party that called [`abort`](Self::abort), or the others [left](Self::leave).
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
        self.fail_if_deadlocked(&mut state);
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

    /// Fails all current and later waits with the error `reason`; the first reason is kept.
    pub fn abort(&self, reason: impl Display) {
        self.fail(&mut self.lock(), reason);
    }

    fn fail(&self, state: &mut State, reason: impl Display) {
        let failure = &mut state.failure;
        failure.get_or_insert_with(|| reason.to_string());
        self.changed.notify_all();
    }

    /// Begins a step of all parties.
    pub fn begin(&self) {
        self.lock().finished.clear();
    }

    /// Says that the party `rank` waits no more until the next [`begin`](Self::begin).
    pub fn leave(&self, rank: usize) {
        let mut state = self.lock();
        state.finished.push(rank);
        self.fail_if_deadlocked(&mut state);
    }

    /// Fails if all parties but those that left are waiting.
    fn fail_if_deadlocked(&self, state: &mut State) {
        let is_deadlocked =
            state.arrived > 0 && state.arrived + state.finished.len() == self.parties;
        if let (true, Some(&rank)) = (is_deadlocked, state.finished.first()) {
            let reason = format!(
                "replica {rank} ended its step while others wait for it in a reduction: all replicas must call \
                 `apply_gradients` and other reductions equally often, also where their shard is empty"
            );
            self.fail(state, reason);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Polls for a short time; true if `passed` became true.
fn passes_soon(passed: impl Fn() -> bool) -> bool {
    for _ in 0..SPINS {
        if passed() {
            return true;
        }
        spin_loop();
    }
    poll(LOOKS, || passed().then_some(())).is_some()
}
