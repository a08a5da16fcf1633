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
use crate::replica::{Output, PerReplica};

/// A global batch, sharded over the replicas of this process.
type Shards<E> = PerReplica<Shard<E>>;

/// Reads a batch of examples of any type, so that the threads and their channels are compiled with the engine.
type Read = Box<dyn FnOnce() -> Output + Send>;

/// A batch to read, and the channel for the result.
type Job = (Read, SyncSender<Output>);

const ALIVE: &str = "the threads of a prefetch live as long as it does";

/// Prefetches a bounded number of batches on several threads, and returns them in order. After a drop, the
/// threads finish the queued batches and end.
///
/// Source: the workers of PyTorch's `DataLoader`, each of which reads whole batches.
pub struct Prefetch<E> {
    batches: Box<Batches<E>>,
    depth: usize,
    jobs: Sender<Job>,
    /// Channels of the prefetched batches, in order.
    ahead: VecDeque<Receiver<Output>>,
}

impl<E: Send + 'static> Prefetch<E> {
    /// Prefetches up to `depth` batches on `threads` threads, each batch on one thread.
    pub fn start(batches: Box<Batches<E>>, depth: usize, threads: usize) -> Self {
        let mut prefetch = Prefetch {
            batches,
            depth,
            jobs: start_threads(threads),
            ahead: VecDeque::new(),
        };
        prefetch.plan();
        prefetch
    }

    /// Queues batches until `depth` of them are in flight.
    fn plan(&mut self) {
        while self.ahead.len() < self.depth
            && let Some(mut shards) = self.batches.next()
        {
            let read = move || -> Output {
                shards.iter_mut().for_each(Shard::read_ahead);
                Box::new(shards)
            };
            self.ahead.push_back(queue(&self.jobs, Box::new(read)));
        }
    }
}

impl<E: Send + 'static> Iterator for Prefetch<E> {
    type Item = Shards<E>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.ahead.pop_front()?;
        self.plan();
        let shards = received(&next).downcast().expect("a batch of its dataset");
        Some(*shards)
    }
}

/// Starts threads, which end when the sender is dropped.
fn start_threads(threads: usize) -> Sender<Job> {
    let (jobs, receiver) = channel();
    let receiver = Arc::new(Mutex::new(receiver));
    for _ in 0..threads {
        let receiver = Arc::clone(&receiver);
        thread::spawn(move || read_batches(&receiver));
    }
    jobs
}

/// Queues a batch; returns the channel for it.
fn queue(jobs: &Sender<Job>, read: Read) -> Receiver<Output> {
    let (sender, receiver) = sync_channel(1);
    jobs.send((read, sender)).expect(ALIVE);
    receiver
}

fn received(batch: &Receiver<Output>) -> Output {
    batch.recv().expect(ALIVE)
}

fn read_batches(jobs: &Mutex<Receiver<Job>>) {
    // Waits for a job with the lock held, and reads without it.
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok((read, done)) = next() {
        // The receiver is gone if the epoch ended early.
        let _ = done.send(read());
    }
}
