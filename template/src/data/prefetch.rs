use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, sync_channel},
    thread,
};

use anyhow::anyhow;

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
                shards.iter_mut().for_each(read_ahead);
                if sender.send(shards).is_err() {
                    // Nobody waits for more.
                    return;
                }
            }
        });
        Prefetch { batches: receiver }
    }
}

/// A panic while reading becomes the error of the batch, for the replica that needs it.
fn read_ahead<E>(shard: &mut Shard<E>) {
    let read = catch_unwind(AssertUnwindSafe(|| shard.read_ahead()));
    if let Err(panic) = read {
        shard.fail(anyhow!("reading examples panicked: {}", message(&*panic)));
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("without a message")
}

impl<E> Iterator for Prefetch<E> {
    type Item = PerReplica<Shard<E>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batches.recv().ok()
    }
}
