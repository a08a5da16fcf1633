//! The training, validation and test datasets, in batches.

use std::sync::Arc;

use anyhow::{Context, Result};
use rand::rngs::StdRng;

use super::{
    Augment, BatchOptions, DistributedDataset, Remainder,
    dataset::Shared,
    limits::{Limited, limited},
};
use crate::{globals, options::Options};

/// The datasets of all splits, sharded over the replicas.
pub struct Datasets<E> {
    /// The training split.
    pub train: DistributedDataset<E>,
    /// The validation split, evaluated after each epoch.
    pub validation: DistributedDataset<E>,
    /// The test split, evaluated after training.
    pub test: DistributedDataset<E>,
    /// Lines for the report about the limits of the training and validation splits.
    pub(crate) limits: Vec<String>,
}

impl<E: Send + 'static> Datasets<E> {
    /// The number of parameter updates in a training of `--epochs` epochs.
    pub fn updates(&self, options: &Options) -> usize {
        options.epochs.saturating_mul(self.train.steps_per_epoch())
    }

    /// Batches the training, validation and test splits by the global batch size, and shards each batch
    /// over the replicas. Training examples are shuffled, unless they [have an order of their
    /// own](super::Dataset::is_ordered), and `augment` transforms them at random, anew in every epoch.
    /// `--limit-train`, `--limit-validation` and `--overfit-batches` reduce the splits.
    ///
    /// # Errors
    /// No strategy is registered, or a split has no batch.
    pub fn distribute(
        options: &Options,
        [train, validation, test]: [Shared<E>; 3],
        augment: impl Fn(E, &mut StdRng) -> Result<E> + Send + Sync + 'static,
    ) -> Result<Self> {
        let strategy = globals::strategy()?;
        let Limited {
            train,
            validation,
            notes,
        } = limited(options, train, validation)?;
        let remainder = match options.steps_per_epoch {
            Some(steps_per_epoch) => Remainder::Avoid { steps_per_epoch },
            None if options.drop_remainder => Remainder::Drop,
            None => Remainder::Keep,
        };
        // Each validation and test example counts once, without dropping or augmentation.
        let evaluation = BatchOptions {
            global_batch_size: globals::global_batch_size()?,
            seed: options.seed,
            shuffle: false,
            remainder: Remainder::Keep,
            accumulate: 1,
            prefetch: options.prefetch,
            training: false,
            augment: None,
        };
        let augments = options.overfit_batches.is_none();
        let training = BatchOptions {
            shuffle: !train.is_ordered(),
            remainder,
            accumulate: options.accumulate,
            training: true,
            augment: augments.then(|| Arc::new(augment) as Augment<E>),
            ..evaluation.clone()
        };
        let distribute = |name, examples, options| {
            let dataset = strategy.distribute_dataset(examples, options);
            dataset.with_context(|| format!("cannot batch the {name} split"))
        };
        Ok(Datasets {
            train: distribute("train", train, training)?,
            validation: distribute("validation", validation, evaluation.clone())?,
            test: distribute("test", test, evaluation)?,
            limits: notes,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::{
        data::limits::tests::numbers,
        test_task::{options, set_up},
    };

    /// The training examples of the first epoch, on a separate thread, as each can register one strategy.
    fn first_epoch(is_ordered: bool) -> Vec<usize> {
        let read = move || -> Result<Vec<usize>> {
            let options = options(&["--batch-size", "4"]);
            set_up(&options)?;
            let splits = [(); 3].map(|()| numbers(32, is_ordered));
            let datasets = Datasets::distribute(&options, splits, |example, _| Ok(example))?;
            let shards = datasets.train.epoch(1).flatten();
            let examples = shards.map(|shard| shard.examples());
            Ok(examples.collect::<Result<Vec<_>>>()?.concat())
        };
        thread::spawn(read).join().unwrap().unwrap()
    }

    #[test]
    fn training_shuffles_what_has_no_order_of_its_own() {
        let in_order = Vec::from_iter(0..32);
        assert_eq!(first_epoch(true), in_order);
        let mut shuffled = first_epoch(false);
        assert_ne!(shuffled, in_order);
        shuffled.sort_unstable();
        assert_eq!(shuffled, in_order);
    }
}
