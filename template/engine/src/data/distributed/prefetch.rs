//! Prefetching of batches on background threads.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
};

use super::{Batches, Shard};
use crate::replica::PerReplica;

/// A global batch, sharded over the replicas of this process.
type Shards<E> = PerReplica<Shard<E>>;
/// A batch to read, and the channel for the result.
type Job<E> = (Shards<E>, SyncSender<Shards<E>>);

/// Prefetches a bounded number of batches on several threads, and returns them in order. After a drop, the
/// threads finish the queued batches and end.
///
/// Source: the workers of PyTorch's `DataLoader`, each of which reads whole batches.
pub struct Prefetch<E> {
    batches: Box<Batches<E>>,
    depth: usize,
    jobs: Sender<Job<E>>,
    /// Channels of the prefetched batches, in order.
    ahead: VecDeque<Receiver<Shards<E>>>,
}

impl<E: Send + 'static> Prefetch<E> {
    /// Prefetches up to `depth` batches on `threads` threads, each batch on one thread.
    pub fn start(batches: Box<Batches<E>>, depth: usize, threads: usize) -> Self {
        let (jobs, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        for _ in 0..threads {
            let receiver = Arc::clone(&receiver);
            thread::spawn(move || read_batches(&receiver));
        }
        let mut prefetch = Prefetch {
            batches,
            depth,
            jobs,
            ahead: VecDeque::new(),
        };
        prefetch.plan();
        prefetch
    }
}

impl<E> Prefetch<E> {
    /// Queues batches until `depth` of them are in flight.
    fn plan(&mut self) {
        while self.ahead.len() < self.depth
            && let Some(shards) = self.batches.next()
        {
            let (sender, receiver) = sync_channel(1);
            self.jobs
                .send((shards, sender))
                .expect("its threads live as long as it does");
            self.ahead.push_back(receiver);
        }
    }
}

impl<E> Iterator for Prefetch<E> {
    type Item = Shards<E>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.ahead.pop_front()?;
        self.plan();
        Some(next.recv().expect("its threads live as long as it does"))
    }
}

fn read_batches<E>(jobs: &Mutex<Receiver<Job<E>>>) {
    // Waits for a job with the lock held, and reads without it.
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok((mut shards, done)) = next() {
        shards.iter_mut().for_each(Shard::read_ahead);
        // The receiver is gone if the epoch ended early.
        let _ = done.send(shards);
    }
}
