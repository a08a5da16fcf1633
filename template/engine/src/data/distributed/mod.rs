//! Global batches of a dataset, sharded over replicas, in an order that does not depend on their number.

mod prefetch;
mod shard;
mod strategy;

use std::{ops::Range, sync::Arc};

use anyhow::{Result, ensure};
use rand::rngs::StdRng;

use self::{prefetch::Prefetch, shard::Place};
use super::dataset::Shared;
use crate::{
    random::{shuffled, stream},
    replica::PerReplica,
};

pub use shard::Shard;

pub use crate::{replica::BatchInfo, task::Collate};

/// Default number of prefetched batches; more than one, as reading times vary.
const PREFETCH: usize = 2;

/// The policy for the last batch of an epoch, which may be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remainder {
    /// Each example once per epoch; the last batch may be short.
    Keep,
    /// Full batches only; the remaining examples are dropped, different ones in each epoch if shuffled.
    Drop,
    /// A fixed number of updates per epoch from full batches, which continue across the end of the dataset.
    Avoid {
        /// Updates per epoch, each of `accumulate` batches.
        steps_per_epoch: usize,
    },
}

/// Transforms an example at random, with a stream of random numbers for each example and pass.
pub type Augment<E> = Arc<dyn Fn(E, &mut StdRng) -> Result<E> + Send + Sync>;

/// Options of batching a dataset.
pub struct BatchOptions<E> {
    /// Examples in a full batch, over all replicas.
    pub global_batch_size: usize,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Whether each pass is shuffled anew; otherwise examples come in the order of the dataset.
    pub shuffle: bool,
    /// The policy for the last batch of an epoch.
    pub remainder: Remainder,
    /// Batches per update, at least 1: gradient accumulation.
    pub accumulate: usize,
    /// Number of prefetched global batches; with 0, each replica reads its examples when needed. `None`
    /// leaves it to the strategy, and is 2 without one.
    pub prefetch: Option<usize>,
    /// Whether batches are for training: their tensors then have autodiff.
    pub training: bool,
    /// Random augmentation of each example, applied after all datasets.
    pub augment: Option<Augment<E>>,
}

impl<E> Clone for BatchOptions<E> {
    fn clone(&self) -> Self {
        BatchOptions {
            augment: self.augment.clone(),
            ..*self
        }
    }
}

/// A dataset in global batches, each sharded over the replicas.
///
/// The order of the examples depends on the seed and the pass, never on the number of replicas.
pub struct DistributedDataset<E> {
    dataset: Shared<E>,
    options: BatchOptions<E>,
    replicas: usize,
    local: Range<usize>,
    /// Number of prefetch threads; with 0, prefetching is off unless the options request it.
    readers: usize,
}

impl<E: Send + 'static> DistributedDataset<E> {
    /// Shards over `replicas` replicas, of which those with ranks `local` are in this process.
    ///
    /// # Errors
    /// The dataset is empty, it has no full batch although the remainder is dropped, or an epoch has more
    /// examples than can be counted.
    pub(crate) fn new(
        dataset: Shared<E>,
        options: BatchOptions<E>,
        replicas: usize,
        local: Range<usize>,
    ) -> Result<Self> {
        ensure!(!dataset.is_empty(), "the dataset is empty");
        ensure!(
            options.global_batch_size > 0 && options.accumulate > 0,
            "the global batch size and the batches per update must be at least 1, and are {} and {}",
            options.global_batch_size,
            options.accumulate
        );
        ensure!(
            options.remainder != Remainder::Drop || dataset.len() >= options.global_batch_size,
            "{} examples make no full batch of {}: use a smaller --batch-size, fewer --replicas, \
             or keep the last batch by leaving out --drop-remainder",
            dataset.len(),
            options.global_batch_size
        );
        if let Remainder::Avoid { steps_per_epoch } = options.remainder {
            let batches = steps_per_epoch.checked_mul(options.accumulate);
            let examples = batches.and_then(|all| all.checked_mul(options.global_batch_size));
            ensure!(
                examples.is_some_and(|all| all <= usize::MAX / 2),
                "--steps-per-epoch {steps_per_epoch} with {} batches of {} examples an update has more \
                 examples than can be counted: use fewer steps",
                options.accumulate,
                options.global_batch_size
            );
        }
        Ok(DistributedDataset {
            dataset,
            options,
            replicas,
            local,
            readers: 1,
        })
    }

    /// Prefetches on up to `readers` threads; with 0, only if the options request it, and then on one.
    pub(crate) fn with_readers(self, readers: usize) -> Self {
        DistributedDataset { readers, ..self }
    }

    /// The dataset before batching.
    pub fn dataset(&self) -> &Shared<E> {
        &self.dataset
    }

    /// The number of global batches in an epoch.
    pub fn batches_per_epoch(&self) -> usize {
        self.batches_after(0)
    }

    /// The number of global batches in an epoch after its first `examples` examples.
    pub fn batches_after(&self, examples: usize) -> usize {
        let left = self.examples_per_epoch().saturating_sub(examples);
        left.div_ceil(self.options.global_batch_size)
    }

    /// The number of updates of the parameters in an epoch.
    pub fn steps_per_epoch(&self) -> usize {
        self.batches_per_epoch().div_ceil(self.options.accumulate)
    }

    fn examples_per_epoch(&self) -> usize {
        let (len, batch) = (self.dataset.len(), self.options.global_batch_size);
        match self.options.remainder {
            Remainder::Keep => len,
            Remainder::Drop => len / batch * batch,
            Remainder::Avoid { steps_per_epoch } => {
                steps_per_epoch * self.options.accumulate * batch
            }
        }
    }

    /// The batches of an epoch; epochs count from 1.
    pub fn epoch(&self, epoch: usize) -> Epoch<E> {
        self.epoch_from(epoch, (epoch - 1) * self.examples_per_epoch(), 0)
    }

    /// The batches of an epoch after its first `examples` examples: the others come once each, for any
    /// number of replicas and any batch size. `drawn` is the number of examples in all earlier epochs,
    /// which matters if batches continue across the end of the dataset.
    pub fn epoch_from(&self, epoch: usize, drawn: usize, examples: usize) -> Epoch<E> {
        let batches = self.batches(epoch, drawn, examples);
        let default = if self.readers == 0 { 0 } else { PREFETCH };
        match self.options.prefetch.unwrap_or(default) {
            0 => Epoch::Direct(batches),
            depth => {
                let readers = self.readers.clamp(1, depth);
                Epoch::Ahead(Prefetch::start(batches, depth, readers))
            }
        }
    }

    /// The batches of the first and of the last update of the first epoch.
    pub(crate) fn first_and_last_update(&self) -> impl Iterator<Item = PerReplica<Shard<E>>> {
        let (accumulate, batches) = (self.options.accumulate, self.batches_per_epoch());
        let last = (batches - 1) / accumulate * accumulate;
        let from = |batch| self.batches(1, 0, batch * self.options.global_batch_size);
        let of_last = (last > 0).then(|| from(last)).into_iter().flatten();
        from(0).take(accumulate).chain(of_last)
    }

    fn batches(&self, epoch: usize, drawn: usize, examples: usize) -> Box<Batches<E>> {
        let first = match self.options.remainder {
            // Epochs are cut from the endless stream of passes over the dataset.
            Remainder::Avoid { .. } => drawn,
            Remainder::Keep | Remainder::Drop => (epoch - 1) * self.dataset.len(),
        };
        let end = first + self.examples_per_epoch();
        Box::new(Batches {
            dataset: Arc::clone(&self.dataset),
            options: self.options.clone(),
            replicas: self.replicas,
            local: self.local.clone(),
            epoch,
            position: (first + examples).min(end),
            end,
            update: 0..0,
            order: None,
        })
    }
}

/// The batches of one epoch, in the same order with and without prefetching.
pub enum Epoch<E> {
    /// Without prefetching: each replica reads its examples when needed.
    Direct(Box<Batches<E>>),
    /// With prefetching.
    Ahead(Prefetch<E>),
}

impl<E: Send + 'static> Iterator for Epoch<E> {
    type Item = PerReplica<Shard<E>>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Epoch::Direct(batches) => batches.next(),
            Epoch::Ahead(prefetch) => prefetch.next(),
        }
    }
}

/// Plans batches: which examples of which pass go to which replica. Reads no examples.
pub struct Batches<E> {
    dataset: Shared<E>,
    options: BatchOptions<E>,
    replicas: usize,
    local: Range<usize>,
    epoch: usize,
    /// Position of the next batch in the endless stream of passes over the dataset.
    position: usize,
    /// End of the epoch in that stream.
    end: usize,
    /// The current update in that stream.
    update: Range<usize>,
    /// The order of the examples in the pass that was used last.
    order: Option<(usize, Vec<usize>)>,
}

impl<E> Batches<E> {
    /// Metadata of the next batch; `None` at the end of the epoch.
    fn next_info(&mut self) -> Option<BatchInfo> {
        let (position, batch) = (self.position, self.options.global_batch_size);
        if position == self.end {
            return None;
        }
        // `accumulate` batches make an update, or fewer at the end of the epoch.
        if position >= self.update.end {
            let examples = self.options.accumulate.saturating_mul(batch);
            self.update = position..self.end.min(position.saturating_add(examples));
        }
        self.position = self.update.end.min(position.saturating_add(batch));
        Some(BatchInfo {
            seed: self.options.seed,
            epoch: self.epoch,
            position,
            examples: self.position - position,
            examples_in_update: self.update.len(),
            batches_in_update: self.update.len().div_ceil(batch),
            completes_update: self.position == self.update.end,
            ends_epoch: self.position == self.end,
        })
    }

    /// The example at `position` of the endless stream.
    fn place(&mut self, position: usize) -> Place {
        let len = self.dataset.len();
        let pass = position / len;
        let order = match self.order.take() {
            Some((of, order)) if of == pass => order,
            _ => self.order_of(pass),
        };
        let index = order[position % len];
        self.order = Some((pass, order));
        Place {
            index,
            pass,
            position,
        }
    }

    fn order_of(&self, pass: usize) -> Vec<usize> {
        let len = self.dataset.len();
        match self.options.shuffle {
            true => shuffled(len, stream("order", &[self.options.seed, pass as u64])),
            false => (0..len).collect(),
        }
    }

    /// Shards a batch as evenly as possible; with fewer examples than replicas, some shards are empty.
    fn split(&mut self, info: BatchInfo) -> PerReplica<Shard<E>> {
        let places: Vec<Place> = (info.position..info.position + info.examples)
            .map(|position| self.place(position))
            .collect();
        let part = |rank: usize| places.len() * rank / self.replicas;
        let shard = |rank| {
            let places = places[part(rank)..part(rank + 1)].to_vec();
            Shard::new(&self.dataset, &self.options, places, info)
        };
        self.local.clone().map(shard).collect()
    }
}

impl<E> Iterator for Batches<E> {
    type Item = PerReplica<Shard<E>>;

    fn next(&mut self) -> Option<Self::Item> {
        let info = self.next_info()?;
        Some(self.split(info))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        sync::{
            Condvar, Mutex,
            mpsc::{RecvTimeoutError, Sender, channel},
        },
        thread::sleep,
        time::Duration,
    };

    use anyhow::bail;
    use rand::RngExt;

    use super::*;
    use crate::data::Dataset;

    fn options(global_batch_size: usize) -> BatchOptions<usize> {
        BatchOptions {
            global_batch_size,
            seed: 7,
            shuffle: true,
            remainder: Remainder::Keep,
            accumulate: 1,
            prefetch: None,
            training: true,
            augment: None,
        }
    }

    /// The numbers from 0 to below `len`.
    fn distributed(
        len: usize,
        replicas: usize,
        options: BatchOptions<usize>,
    ) -> Result<DistributedDataset<usize>> {
        let dataset = Arc::new(Vec::from_iter(0..len));
        DistributedDataset::new(dataset, options, replicas, 0..replicas)
    }

    fn numbers(
        len: usize,
        replicas: usize,
        options: BatchOptions<usize>,
    ) -> DistributedDataset<usize> {
        distributed(len, replicas, options).unwrap()
    }

    /// The global batches, each joined from its shards.
    fn whole(batches: impl Iterator<Item = PerReplica<Shard<usize>>>) -> Vec<Vec<usize>> {
        let whole = |shards: PerReplica<Shard<usize>>| {
            let of_replicas = shards.iter().map(Shard::indices);
            of_replicas.collect::<Vec<_>>().concat()
        };
        batches.map(whole).collect()
    }

    /// The examples of all batches.
    fn examples(batches: impl Iterator<Item = PerReplica<Shard<usize>>>) -> Vec<usize> {
        let read = |shard: Shard<usize>| shard.examples().unwrap();
        batches.flatten().flat_map(read).collect()
    }

    fn sorted(mut values: Vec<usize>) -> Vec<usize> {
        values.sort_unstable();
        values
    }

    #[test]
    fn every_example_comes_once_an_epoch_whatever_the_sizes() {
        for replicas in 1..=4 {
            for (len, batch) in [(99, 16), (512, 16), (22, 4), (3, 16), (16, 16), (17, 16)] {
                let data = numbers(len, replicas, options(batch * replicas));
                let seen = sorted(whole(data.epoch(1)).concat());
                assert_eq!(
                    seen,
                    Vec::from_iter(0..len),
                    "{len} examples, {batch} a replica"
                );
            }
        }
    }

    #[test]
    fn order_depends_on_the_epoch_and_not_on_the_replicas() {
        let (one, three) = (numbers(50, 1, options(12)), numbers(50, 3, options(12)));
        assert_eq!(whole(one.epoch(1)), whole(three.epoch(1)));
        assert_ne!(whole(one.epoch(1)), whole(one.epoch(2)));
    }

    #[test]
    fn shares_differ_by_one_example_at_most() {
        for shards in numbers(50, 5, options(12)).epoch(1) {
            let sizes: Vec<usize> = shards.iter().map(Shard::len).collect();
            let (min, max) = (sizes.iter().min().unwrap(), sizes.iter().max().unwrap());
            assert!(max - min <= 1, "{sizes:?}");
        }
    }

    #[test]
    fn dropping_the_remainder_leaves_full_batches() {
        let options = BatchOptions {
            remainder: Remainder::Drop,
            ..options(12)
        };
        let data = numbers(50, 2, options.clone());
        let sizes: Vec<usize> = whole(data.epoch(1)).iter().map(Vec::len).collect();
        assert_eq!(sizes, [12; 4]);
        let error = distributed(5, 2, options).err().unwrap().to_string();
        assert!(
            error.contains("5 examples make no full batch of 12"),
            "{error}"
        );
    }

    #[test]
    fn avoiding_the_remainder_runs_on_across_epochs() {
        let options = BatchOptions {
            remainder: Remainder::Avoid { steps_per_epoch: 3 },
            ..options(4)
        };
        let data = numbers(10, 2, options);
        let (first, second) = (whole(data.epoch(1)).concat(), whole(data.epoch(2)).concat());
        assert_eq!((first.len(), second.len()), (12, 12));
        let pass = [&first[10..], &second[..8]].concat();
        assert_eq!(
            sorted(pass),
            Vec::from_iter(0..10),
            "the second pass has each once"
        );
    }

    #[test]
    fn no_example_is_an_error() {
        assert!(distributed(0, 1, options(4)).is_err());
    }

    #[test]
    fn an_epoch_goes_on_in_its_middle_under_any_number_of_replicas() {
        let mut seen = Vec::new();
        for (replicas, batch, batches) in [(3, 12, 2), (2, 8, 1), (1, 4, 3), (4, 16, usize::MAX)] {
            let data = numbers(99, replicas, options(batch));
            let epoch = data.epoch_from(3, 0, seen.len());
            seen.extend(whole(epoch.take(batches)).concat());
        }
        assert_eq!(sorted(seen.clone()), Vec::from_iter(0..99));
        assert_eq!(seen, whole(numbers(99, 1, options(12)).epoch(3)).concat());
    }

    /// Sizes of each batch and its update, and whether it completes the update.
    fn updates(data: &DistributedDataset<usize>) -> Vec<(usize, usize, bool)> {
        let infos = data.epoch(1).map(|shards| shards.info());
        infos
            .map(|info| {
                (
                    info.examples,
                    info.examples_in_update,
                    info.completes_update,
                )
            })
            .collect()
    }

    #[test]
    fn a_stream_of_passes_goes_on_under_another_number_of_replicas() {
        let avoid = |replicas: usize| {
            let options = BatchOptions {
                remainder: Remainder::Avoid { steps_per_epoch: 3 },
                ..options(4 * replicas)
            };
            numbers(10, replicas, options)
        };
        // An epoch on 3 replicas, then one on 2 and one on 1.
        let mut seen = Vec::new();
        for (epoch, replicas) in [(1, 3), (2, 2), (3, 1)] {
            seen.extend(whole(avoid(replicas).epoch_from(epoch, seen.len(), 0)).concat());
        }
        assert_eq!(seen.len(), 3 * 4 * (3 + 2 + 1));
        for pass in seen.chunks_exact(10) {
            assert_eq!(sorted(pass.to_vec()), Vec::from_iter(0..10));
        }
    }

    #[test]
    fn batches_are_grouped_into_updates() {
        let accumulate = |remainder| BatchOptions {
            accumulate: 3,
            remainder,
            ..options(4)
        };
        let data = numbers(18, 2, accumulate(Remainder::Keep));
        assert_eq!((data.batches_per_epoch(), data.steps_per_epoch()), (5, 2));
        assert_eq!(
            updates(&data),
            [
                (4, 12, false),
                (4, 12, false),
                (4, 12, true),
                (4, 6, false),
                (2, 6, true)
            ]
        );
        let dropped = numbers(18, 2, accumulate(Remainder::Drop));
        assert_eq!(updates(&dropped).last(), Some(&(4, 4, true)));
        let avoided = numbers(18, 2, accumulate(Remainder::Avoid { steps_per_epoch: 2 }));
        assert_eq!(
            (avoided.batches_per_epoch(), avoided.steps_per_epoch()),
            (6, 2)
        );
        assert_eq!(updates(&avoided).last(), Some(&(4, 12, true)));
        for data in [data, dropped, avoided] {
            let last = data.epoch(2).position(|shards| shards.info().ends_epoch);
            assert_eq!(last, Some(data.batches_per_epoch() - 1));
        }
    }

    #[test]
    fn sizes_without_limit_take_the_whole_epoch_and_endless_epochs_are_refused() {
        let most = usize::MAX;
        let data = numbers(18, 2, options(most));
        assert_eq!(updates(&data), [(18, 18, true)]);
        let accumulate = |accumulate, remainder| BatchOptions {
            accumulate,
            remainder,
            ..options(4)
        };
        let data = numbers(6, 2, accumulate(most, Remainder::Keep));
        assert_eq!(updates(&data), [(4, 6, false), (2, 6, true)]);
        // Batches are planned lazily.
        let steps = |steps_per_epoch| Remainder::Avoid { steps_per_epoch };
        let data = numbers(6, 2, accumulate(most / 16, steps(1)));
        assert_eq!(data.epoch(1).next().unwrap().info().examples, 4);
        for options in [accumulate(1, steps(most)), accumulate(most / 8, steps(2))] {
            let error = distributed(6, 1, options).err().unwrap().to_string();
            assert!(
                error.contains("more examples than can be counted"),
                "{error}"
            );
        }
    }

    /// Examples whose reading time falls with the index; 40 cannot be read, and 41 panics.
    struct Slow;

    impl Dataset for Slow {
        type Example = usize;

        fn len(&self) -> usize {
            42
        }

        fn get(&self, index: usize) -> Result<usize> {
            sleep(Duration::from_micros(42 - index as u64));
            match index {
                40 => bail!("no such file"),
                41 => panic!("out of range"),
                _ => Ok(index),
            }
        }
    }

    fn slow(prefetch: usize) -> DistributedDataset<usize> {
        let options = BatchOptions {
            prefetch: Some(prefetch),
            shuffle: false,
            ..options(2)
        };
        DistributedDataset::new(Arc::new(Slow), options, 1, 0..1).unwrap()
    }

    #[test]
    fn reading_ahead_keeps_the_order() {
        const BATCHES_WITHOUT_FAILURE: usize = 20;
        for data in [slow(0), slow(1), slow(3), slow(5).with_readers(4)] {
            let read = |epoch: Epoch<usize>, batches| examples(epoch.take(batches));
            let all = read(data.epoch(1), BATCHES_WITHOUT_FAILURE);
            assert_eq!(all, Vec::from_iter(0..40));
            let rest = read(data.epoch_from(1, 0, 10), BATCHES_WITHOUT_FAILURE - 5);
            assert_eq!(rest, Vec::from_iter(10..40));
        }
    }

    /// Counts started reads, and waits for a second one.
    #[derive(Default)]
    struct ReadTogether(Mutex<usize>, Condvar);

    impl Dataset for ReadTogether {
        type Example = usize;

        fn len(&self) -> usize {
            2
        }

        fn get(&self, index: usize) -> Result<usize> {
            let ReadTogether(readers, joined) = self;
            *readers.lock().unwrap() += 1;
            joined.notify_all();
            let (limit, alone) = (Duration::from_secs(30), |readers: &mut _| *readers < 2);
            let waited = joined.wait_timeout_while(readers.lock().unwrap(), limit, alone);
            ensure!(!waited.unwrap().1.timed_out(), "nobody else reads");
            Ok(index)
        }
    }

    #[test]
    fn batches_are_read_at_once() {
        let options = BatchOptions {
            shuffle: false,
            ..options(1)
        };
        let data = Arc::new(ReadTogether::default());
        let data = DistributedDataset::new(data, options, 1, 0..1).unwrap();
        assert_eq!(examples(data.with_readers(2).epoch(1)), [0, 1]);
    }

    #[test]
    fn what_cannot_be_read_ahead_is_an_error_of_its_batch() {
        let error = |epoch: Epoch<usize>| {
            let shard = epoch.last().unwrap().into_iter().next().unwrap();
            format!("{:#}", shard.examples().unwrap_err())
        };
        for prefetch in [0, 2] {
            let failed = error(slow(prefetch).epoch_from(1, 0, 40));
            assert_eq!(
                failed,
                "cannot read example 40 of the dataset: no such file"
            );
            let panicked = error(slow(prefetch).epoch_from(1, 0, 41));
            assert_eq!(
                panicked,
                "cannot read example 41 of the dataset: it panicked: out of range"
            );
        }
    }

    #[test]
    fn an_epoch_that_is_left_early_ends_its_threads() {
        let (sender, threads) = channel();
        let data = DistributedDataset::new(Arc::new(Watched(sender)), options(1), 1, 0..1);
        let data = data.unwrap().with_readers(2);
        let mut epoch = data.epoch(1);
        for _ in 0..100 {
            epoch.next().unwrap();
        }
        drop((epoch, data));
        let ended = threads.recv_timeout(Duration::from_secs(30));
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected), "one still runs");
    }

    /// Each reading thread holds a clone of the sender until it ends.
    struct Watched(Sender<()>);

    thread_local! {
        static KEPT: RefCell<Option<Sender<()>>> = const { RefCell::new(None) };
    }

    impl Dataset for Watched {
        type Example = usize;

        fn len(&self) -> usize {
            1_000_000
        }

        fn get(&self, index: usize) -> Result<usize> {
            KEPT.set(Some(self.0.clone()));
            Ok(index)
        }
    }

    #[test]
    fn augmentation_depends_on_the_pass_and_not_on_replicas_or_batches() {
        let augmented = |replicas: usize, batch: usize, prefetch: usize, epoch: usize| {
            let options = BatchOptions {
                prefetch: Some(prefetch),
                shuffle: false,
                augment: Some(Arc::new(|example, random: &mut StdRng| {
                    Ok(example * 1_000 + random.random_range(0..1_000))
                })),
                ..options(batch)
            };
            examples(numbers(20, replicas, options).epoch(epoch))
        };
        let expected = augmented(1, 4, 0, 1);
        assert_eq!(augmented(3, 7, 0, 1), expected);
        assert_eq!(augmented(2, 4, 2, 1), expected);
        assert_ne!(augmented(1, 4, 0, 2), expected);
    }
}
