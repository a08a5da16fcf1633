use std::{ops::Range, sync::Arc};

use anyhow::{Result, ensure};
use burn::tensor::Device;
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use super::{PerReplica, replica_context};

/// Examples that can be read in any order.
pub trait Dataset: Send + Sync {
    type Example;

    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The example at `index`, below [`len`](Self::len).
    ///
    /// # Errors
    /// The example cannot be read.
    fn get(&self, index: usize) -> Result<Self::Example>;
}

/// Makes the tensors of a batch from its examples, at least one, on `device`.
pub trait Collate: Sized {
    type Example;

    /// # Errors
    /// The examples do not fit together.
    fn collate(examples: Vec<Self::Example>, device: &Device) -> Result<Self>;
}

/// Some examples of a dataset, such as those set aside for validation.
pub struct Subset<E> {
    dataset: Arc<dyn Dataset<Example = E>>,
    indices: Vec<usize>,
}

impl<E> Subset<E> {
    pub fn new(dataset: Arc<dyn Dataset<Example = E>>, indices: Vec<usize>) -> Self {
        Subset { dataset, indices }
    }
}

impl<E> Dataset for Subset<E> {
    type Example = E;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, index: usize) -> Result<E> {
        self.dataset.get(self.indices[index])
    }
}

/// What becomes of the last batch of an epoch, which may be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remainder {
    /// Each example once an epoch; the last batch is as short as it comes.
    Keep,
    /// Full batches only; what is left over waits for another order.
    Drop,
    /// This many full batches an epoch, which run on across the ends of the dataset.
    Avoid { steps_per_epoch: usize },
}

/// How a dataset is batched.
#[derive(Clone, Copy, Debug)]
pub struct BatchOptions {
    /// Examples in a full batch, over all replicas.
    pub global_batch_size: usize,
    /// Seed of the order; without it examples come as they are stored.
    pub shuffle: Option<u64>,
    pub remainder: Remainder,
    /// Whether batches are for training: their tensors then record for gradients.
    pub training: bool,
}

/// A dataset in global batches, each split over the replicas.
///
/// The order of the examples depends on the seed and the epoch, never on the number of replicas.
pub struct DistributedDataset<E> {
    dataset: Arc<dyn Dataset<Example = E>>,
    options: BatchOptions,
    replicas: usize,
    local: Range<usize>,
}

impl<E> DistributedDataset<E> {
    /// Splits over `replicas`, of which those of this process are `local`.
    ///
    /// # Errors
    /// The dataset is empty, or has no full batch where only full ones are wanted.
    pub(super) fn new(
        dataset: Arc<dyn Dataset<Example = E>>,
        options: BatchOptions,
        replicas: usize,
        local: Range<usize>,
    ) -> Result<Self> {
        ensure!(!dataset.is_empty(), "the dataset is empty");
        ensure!(
            options.remainder != Remainder::Drop || dataset.len() >= options.global_batch_size,
            "{} examples make no full batch of {}: use a smaller --batch-size, fewer --replicas, \
             or keep the last batch by leaving out --drop-remainder",
            dataset.len(),
            options.global_batch_size
        );
        Ok(DistributedDataset {
            dataset,
            options,
            replicas,
            local,
        })
    }

    /// The examples before batching.
    pub fn dataset(&self) -> &Arc<dyn Dataset<Example = E>> {
        &self.dataset
    }

    pub fn steps_per_epoch(&self) -> usize {
        let (len, batch) = (self.dataset.len(), self.options.global_batch_size);
        match self.options.remainder {
            Remainder::Keep => len.div_ceil(batch),
            Remainder::Drop => len / batch,
            Remainder::Avoid { steps_per_epoch } => steps_per_epoch,
        }
    }

    /// The batches of an epoch; epochs count from 1.
    pub fn epoch(&self, epoch: usize) -> Epoch<'_, E> {
        let steps = self.steps_per_epoch();
        let (first, examples) = match self.options.remainder {
            Remainder::Keep => ((epoch - 1) * self.dataset.len(), self.dataset.len()),
            Remainder::Drop => (
                (epoch - 1) * self.dataset.len(),
                steps * self.options.global_batch_size,
            ),
            // The stream of all passes over the dataset, one after the other, cut into epochs.
            Remainder::Avoid { .. } => {
                let examples = steps * self.options.global_batch_size;
                ((epoch - 1) * examples, examples)
            }
        };
        Epoch {
            data: self,
            position: first,
            end: first + examples,
            pass: None,
        }
    }

    /// The order of the examples in one pass over the dataset.
    fn order(&self, pass: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.dataset.len()).collect();
        if let Some(seed) = self.options.shuffle {
            let seed = seed ^ (pass as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            order.shuffle(&mut StdRng::seed_from_u64(seed));
        }
        order
    }

    /// Splits a batch as evenly as possible; with fewer examples than replicas some get none.
    fn split(&self, indices: &[usize]) -> PerReplica<Shard<E>> {
        let part = |rank: usize| indices.len() * rank / self.replicas;
        let shard = |rank| Shard {
            dataset: Arc::clone(&self.dataset),
            indices: indices[part(rank)..part(rank + 1)].to_vec(),
            examples_in_global_batch: indices.len(),
            training: self.options.training,
        };
        self.local.clone().map(shard).collect()
    }
}

/// The batches of one epoch.
pub struct Epoch<'a, E> {
    data: &'a DistributedDataset<E>,
    /// Places in the endless stream of passes over the dataset.
    position: usize,
    end: usize,
    pass: Option<(usize, Vec<usize>)>,
}

impl<E> Epoch<'_, E> {
    /// The index of the example at `position`.
    fn index_at(&mut self, position: usize) -> usize {
        let len = self.data.dataset.len();
        let number = position / len;
        if self.pass.as_ref().is_none_or(|(pass, _)| *pass != number) {
            self.pass = Some((number, self.data.order(number)));
        }
        self.pass
            .as_ref()
            .map_or(0, |(_, order)| order[position % len])
    }
}

impl<E> Iterator for Epoch<'_, E> {
    type Item = PerReplica<Shard<E>>;

    fn next(&mut self) -> Option<Self::Item> {
        let end = self
            .end
            .min(self.position + self.data.options.global_batch_size);
        if self.position == end {
            return None;
        }
        let indices: Vec<usize> = (self.position..end)
            .map(|place| self.index_at(place))
            .collect();
        self.position = end;
        Some(self.data.split(&indices))
    }
}

/// A replica's share of a global batch, not read yet.
#[derive(Clone)]
pub struct Shard<E> {
    dataset: Arc<dyn Dataset<Example = E>>,
    indices: Vec<usize>,
    examples_in_global_batch: usize,
    training: bool,
}

impl<E> Shard<E> {
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }

    /// Where the examples stand in the dataset.
    pub fn indices(&self) -> &[usize] {
        &self.indices
    }

    /// Reads the batch onto the device of this thread's replica; `None` where the share is empty.
    ///
    /// # Errors
    /// An example cannot be read, or the thread is no replica's.
    pub fn load<B: Collate<Example = E>>(self) -> Result<Option<B>> {
        let replica = replica_context()?;
        replica.begin_batch(self.examples_in_global_batch);
        if self.indices.is_empty() {
            return Ok(None);
        }
        let examples = self.indices.iter().map(|index| self.dataset.get(*index));
        let device = match self.training {
            true => replica.device().clone(),
            false => replica.device().clone().without_autodiff(),
        };
        B::collate(examples.collect::<Result<_>>()?, &device).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Numbers(usize);

    impl Dataset for Numbers {
        type Example = usize;

        fn len(&self) -> usize {
            self.0
        }

        fn get(&self, index: usize) -> Result<usize> {
            Ok(index)
        }
    }

    fn numbers(
        len: usize,
        batch: usize,
        replicas: usize,
        remainder: Remainder,
    ) -> Result<DistributedDataset<usize>> {
        let options = BatchOptions {
            global_batch_size: batch,
            shuffle: Some(7),
            remainder,
            training: true,
        };
        DistributedDataset::new(Arc::new(Numbers(len)), options, replicas, 0..replicas)
    }

    /// The global batches of an epoch, each put together from its shares.
    fn batches(data: &DistributedDataset<usize>, epoch: usize) -> Vec<Vec<usize>> {
        let whole = |shards: PerReplica<Shard<usize>>| {
            shards
                .iter()
                .flat_map(|shard| shard.indices().to_vec())
                .collect()
        };
        data.epoch(epoch).map(whole).collect()
    }

    #[test]
    fn every_example_comes_once_an_epoch_whatever_the_sizes() {
        for replicas in 1..=4 {
            for (len, batch) in [(99, 16), (512, 16), (22, 4), (3, 16), (16, 16), (17, 16)] {
                let data = numbers(len, batch * replicas, replicas, Remainder::Keep).unwrap();
                let mut seen: Vec<usize> = batches(&data, 1).concat();
                seen.sort_unstable();
                assert_eq!(
                    seen,
                    (0..len).collect::<Vec<_>>(),
                    "{len} examples, {batch} a replica"
                );
            }
        }
    }

    #[test]
    fn order_depends_on_the_epoch_and_not_on_the_replicas() {
        let one = numbers(50, 12, 1, Remainder::Keep).unwrap();
        let three = numbers(50, 12, 3, Remainder::Keep).unwrap();
        assert_eq!(batches(&one, 1), batches(&three, 1));
        assert_ne!(batches(&one, 1), batches(&one, 2));
    }

    #[test]
    fn shares_differ_by_one_example_at_most() {
        let data = numbers(50, 12, 5, Remainder::Keep).unwrap();
        for shards in data.epoch(1) {
            let sizes: Vec<usize> = shards.iter().map(Shard::len).collect();
            let (min, max) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(max - min <= 1, "{sizes:?}");
        }
    }

    #[test]
    fn dropping_the_remainder_leaves_full_batches() {
        let data = numbers(50, 12, 2, Remainder::Drop).unwrap();
        assert_eq!(
            batches(&data, 1).iter().map(Vec::len).collect::<Vec<_>>(),
            [12; 4]
        );
    }

    #[test]
    fn avoiding_the_remainder_runs_on_across_epochs() {
        let data = numbers(10, 4, 2, Remainder::Avoid { steps_per_epoch: 3 }).unwrap();
        let (first, second) = (batches(&data, 1).concat(), batches(&data, 2).concat());
        assert_eq!((first.len(), second.len()), (12, 12));
        let mut pass: Vec<usize> = [&first[10..], &second[..8]].concat();
        pass.sort_unstable();
        assert_eq!(
            pass,
            (0..10).collect::<Vec<_>>(),
            "the second pass has each example once"
        );
    }

    #[test]
    fn no_full_batch_and_no_example_are_errors() {
        let error = numbers(5, 12, 2, Remainder::Drop)
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("5 examples make no full batch of 12"),
            "{error}"
        );
        assert!(numbers(0, 12, 2, Remainder::Keep).is_err());
    }
}
