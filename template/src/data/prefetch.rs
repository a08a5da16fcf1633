use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    },
    thread,
};

use super::{Shard, distributed::Batches};
use crate::distribute::PerReplica;

/// A global batch, in the shares of the replicas of this process.
type Shards<E> = PerReplica<Shard<E>>;
/// A batch to read, and where it goes then.
type Job<E> = (Shards<E>, SyncSender<Shards<E>>);

/// Reads batches ahead, a bounded number of them and several at once, and gives them in their order.
/// Dropping it ends its threads, after the batches that they are to read.
///
/// Source: the workers of PyTorch's `DataLoader`, each of which reads whole batches.
pub struct Prefetch<E> {
    batches: Box<Batches<E>>,
    depth: usize,
    jobs: Sender<Job<E>>,
    /// Where the batches that are read ahead arrive, in their order.
    ahead: VecDeque<Receiver<Shards<E>>>,
}

impl<E: Send + 'static> Prefetch<E> {
    /// Keeps up to `depth` batches ready, each read by one of so many `threads`.
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
    /// Hands out batches to read until enough are on their way.
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
    // Waits for the next one with the lock, and reads without it.
    let next = || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
    while let Ok((mut shards, done)) = next() {
        shards.iter_mut().for_each(Shard::read_ahead);
        // Nobody waits for it where the epoch was left early.
        let _ = done.send(shards);
    }
}
