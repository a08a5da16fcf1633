use std::{
    sync::mpsc::{Receiver, sync_channel},
    thread,
};

use super::{Shard, distributed::Batches};
use crate::distribute::PerReplica;

/// Reads batches ahead on a thread of its own, a bounded number of them, in their order. Dropping
/// it ends the thread.
pub struct Prefetch<E> {
    batches: Receiver<PerReplica<Shard<E>>>,
}

impl<E: Send + 'static> Prefetch<E> {
    /// Keeps up to `depth` batches ready, at least one.
    pub fn start(batches: Batches<E>, depth: usize) -> Self {
        // One more is in the hands of the thread.
        let (sender, receiver) = sync_channel(depth.max(1) - 1);
        thread::spawn(move || {
            for mut shards in batches {
                shards.iter_mut().for_each(Shard::read_ahead);
                if sender.send(shards).is_err() {
                    // Nobody waits for more.
                    return;
                }
            }
        });
        Prefetch { batches: receiver }
    }
}

impl<E> Iterator for Prefetch<E> {
    type Item = PerReplica<Shard<E>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.recv().ok()
    }
}
