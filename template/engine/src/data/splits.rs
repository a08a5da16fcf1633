//! The training, validation and test datasets, in batches.

use std::sync::Arc;

use anyhow::{Context, Result};
use rand::rngs::StdRng;

use super::{BatchOptions, DistributedDataset, Remainder, dataset::Shared};
use crate::{globals, options::Options};

/// The datasets of all splits, sharded over the replicas.
pub struct Datasets<E> {
    /// The training split.
    pub train: DistributedDataset<E>,
    /// The validation split, evaluated after each epoch.
    pub validation: DistributedDataset<E>,
    /// The test split, evaluated after training.
    pub test: DistributedDataset<E>,
}

impl<E: Send + 'static> Datasets<E> {
    /// The updates of the parameters in a whole training of `--epochs` epochs.
    pub fn updates(&self, options: &Options) -> usize {
        options.epochs.saturating_mul(self.train.steps_per_epoch())
    }

    /// Batches the training, validation and test splits by the global batch size, and shards each batch
    /// over the replicas. `augment` transforms training examples at random, anew in every epoch.
    ///
    /// # Errors
    /// No strategy is registered, or a split has no batch.
    pub fn distribute(
        options: &Options,
        [train, validation, test]: [Shared<E>; 3],
        augment: impl Fn(E, &mut StdRng) -> Result<E> + Send + Sync + 'static,
    ) -> Result<Self> {
        let strategy = globals::strategy()?;
        let remainder = match options.steps_per_epoch {
            Some(steps_per_epoch) => Remainder::Avoid { steps_per_epoch },
            None if options.drop_remainder => Remainder::Drop,
            None => Remainder::Keep,
        };
        // Each example of validation and test counts once, so nothing is dropped or changed there.
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
        let training = BatchOptions {
            shuffle: true,
            remainder,
            accumulate: options.accumulate,
            training: true,
            augment: Some(Arc::new(augment)),
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
        })
    }
}
