//! Queues between replicas.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// One queue per replica, as the producer may run ahead of the consumer.
pub struct Queues<T>(Vec<Mutex<VecDeque<T>>>);

impl<T> Queues<T> {
    pub fn new(replicas: usize) -> Self {
        Queues((0..replicas).map(|_| Mutex::default()).collect())
    }

    /// Number of queues.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Appends `value` to the queue of `replica`.
    pub fn push(&self, replica: usize, value: T) {
        self.lock(replica).push_back(value);
    }

    /// Removes the oldest value from the queue of `replica`.
    pub fn pop(&self, replica: usize) -> Option<T> {
        self.lock(replica).pop_front()
    }

    fn lock(&self, replica: usize) -> MutexGuard<'_, VecDeque<T>> {
        let queue = self.0[replica].lock();
        queue.unwrap_or_else(PoisonError::into_inner)
    }
}
