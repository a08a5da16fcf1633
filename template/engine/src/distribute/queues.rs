use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What one replica hands to another: a queue for each, as the one that puts in may be ahead of the
/// one that takes out.
pub struct Queues<T>(Vec<Mutex<VecDeque<T>>>);

impl<T> Queues<T> {
    pub fn new(replicas: usize) -> Self {
        Queues((0..replicas).map(|_| Mutex::default()).collect())
    }

    /// One for each replica.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Puts `value` into the queue of `replica`.
    pub fn push(&self, replica: usize, value: T) {
        self.lock(replica).push_back(value);
    }

    /// Takes the oldest value out of the queue of `replica`.
    pub fn pop(&self, replica: usize) -> Option<T> {
        self.lock(replica).pop_front()
    }

    fn lock(&self, replica: usize) -> MutexGuard<'_, VecDeque<T>> {
        let queue = self.0[replica].lock();
        queue.unwrap_or_else(PoisonError::into_inner)
    }
}
