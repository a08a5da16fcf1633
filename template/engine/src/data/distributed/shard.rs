//! A replica's shard of a batch: reads, augments and collates its examples.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, Result, anyhow};

use super::{Augment, BatchOptions};
use crate::{
    data::dataset::Shared,
    performance::profile::{Phase, span},
    random::stream,
    replica::{BatchInfo, Counted, PerReplica, panic_message, replica_context},
    task::Collate,
};

/// The position of an example.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Index in the dataset.
    pub index: usize,
    /// Pass over the dataset, from 0.
    pub pass: usize,
    /// Position in the endless stream of passes, unique for each drawn example.
    pub position: usize,
}

/// A replica's shard of a global batch.
pub struct Shard<E> {
    dataset: Shared<E>,
    augment: Option<Augment<E>>,
    places: Vec<Place>,
    info: BatchInfo,
    training: bool,
    /// The examples, if they were prefetched.
    examples: Option<Result<Vec<E>>>,
}

impl<E> Shard<E> {
    pub(super) fn new(
        dataset: &Shared<E>,
        options: &BatchOptions<E>,
        places: Vec<Place>,
        info: BatchInfo,
    ) -> Self {
        Shard {
            dataset: Arc::clone(dataset),
            augment: options.augment.clone(),
            places,
            info,
            training: options.training,
            examples: None,
        }
    }

    /// The number of examples.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether the shard has no examples, as when a batch has fewer examples than there are replicas.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Indices of the examples in the dataset.
    pub fn indices(&self) -> Vec<usize> {
        self.places.iter().map(|place| place.index).collect()
    }

    /// Metadata of the global batch to which the shard belongs.
    pub fn info(&self) -> BatchInfo {
        self.info
    }

    /// Prefetches the examples for [`load`](Self::load).
    pub(super) fn read_ahead(&mut self) {
        if self.examples.is_none() {
            self.examples = Some(self.read());
        }
    }

    fn read(&self) -> Result<Vec<E>> {
        let read = |place: &Place| {
            catch_unwind(AssertUnwindSafe(|| self.read_example(*place)))
                .unwrap_or_else(|panic| Err(anyhow!("it panicked: {}", panic_message(&*panic))))
                .with_context(|| format!("cannot read example {} of the dataset", place.index))
        };
        self.places.iter().map(read).collect()
    }

    fn read_example(&self, place: Place) -> Result<E> {
        let example = self.dataset.get_in_pass(place.index, place.pass)?;
        match &self.augment {
            None => Ok(example),
            Some(augment) => {
                let numbers = [self.info.seed, place.position as u64];
                augment(example, &mut stream("augment", &numbers))
            }
        }
    }

    /// The examples, read now if they were not prefetched.
    ///
    /// # Errors
    /// An example cannot be read.
    pub fn examples(mut self) -> Result<Vec<E>> {
        match self.examples.take() {
            Some(examples) => examples,
            None => self.read(),
        }
    }

    /// Collates the batch on the device of this thread's replica; `None` if the shard is empty.
    ///
    /// # Errors
    /// An example cannot be read, or no replica runs on this thread.
    pub fn load<B: Collate<Example = E>>(self) -> Result<Option<B>> {
        Ok(self.load_parts(1)?.pop())
    }

    /// As [`load`](Self::load), in `parts` micro-batches of about the same size, but at most one per
    /// example.
    ///
    /// # Errors
    /// As `load`.
    pub fn load_parts<B: Collate<Example = E>>(self, parts: usize) -> Result<Vec<B>> {
        let _data = span(Phase::Data);
        let (replica, training) = (replica_context()?, self.training);
        replica.begin_batch(self.info);
        let (reads_now, started) = (self.examples.is_none(), Instant::now());
        let mut examples = self.examples()?;
        if reads_now {
            replica.add_reading_time(started.elapsed());
        }
        let (len, parts) = (examples.len(), parts.min(examples.len()));
        replica.begin_parts(parts.max(1));
        let device = match training {
            true => replica.device().clone(),
            false => replica.device().clone().without_autodiff(),
        };
        let mut batches: Vec<B> = Vec::new();
        for part in 0..parts {
            let examples = examples.drain(..len * (part + 1) / parts - len * part / parts);
            batches.push(B::collate(examples.collect(), &device)?);
        }
        if training {
            let tokens = batches.iter().filter_map(B::tokens).sum();
            replica.add_trained(Counted {
                examples: len,
                tokens,
            });
        }
        Ok(batches)
    }
}

impl<E> PerReplica<Shard<E>> {
    /// Metadata of the global batch of the shards.
    pub fn info(&self) -> BatchInfo {
        self.iter().next().expect("a strategy has a replica").info
    }
}
