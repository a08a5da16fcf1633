//! The batches of a strategy.

use std::sync::Arc;

use anyhow::{Context, Result};

use super::{BatchOptions, DistributedDataset, Shard};
use crate::{
    data::Dataset,
    distribution::{Job, Strategy},
    replica::PerReplica,
    workers::ensure_equal,
};

impl dyn Strategy {
    /// Dispatches a batch to the next free replica, without waiting for the result. Returns the outputs of
    /// earlier batches that were finished since the last call. Every other operation first waits for all
    /// batches in flight.
    ///
    /// Source: `tf.distribute.coordinator.ClusterCoordinator.schedule`.
    ///
    /// # Errors
    /// An earlier step failed, or the strategy is synchronous.
    pub fn schedule<E: Send + 'static, O: Send + 'static>(
        &self,
        inputs: PerReplica<Shard<E>>,
        step: impl Fn(Shard<E>) -> Result<O> + Send + 'static,
    ) -> Result<Vec<O>> {
        let asynchronous = self.asynchronous();
        let asynchronous = asynchronous.context("only asynchronous strategies schedule batches")?;
        let shard = inputs.into_iter().next().context("a batch is empty")?;
        let completes_update = shard.info().completes_update;
        let job: Job = Box::new(move || Ok(Box::new(step(shard)?)));
        let outputs = asynchronous.schedule(completes_update, job)?.into_iter();
        let outputs = outputs.filter_map(|output| output.downcast::<O>().ok());
        Ok(outputs.map(|output| *output).collect())
    }

    /// Batches `dataset` by the global batch size and shards each batch over the replicas. With a parameter
    /// server, training batches stay whole.
    ///
    /// # Errors
    /// The dataset is empty, its size differs between processes, or it has no full batch although the
    /// remainder is dropped.
    pub fn distribute_dataset<E: Send + 'static>(
        &self,
        dataset: Arc<dyn Dataset<Example = E>>,
        mut options: BatchOptions<E>,
    ) -> Result<DistributedDataset<E>> {
        let examples = [("the number of examples", dataset.len().to_string())];
        ensure_equal(self.workers(), &examples)?;
        let readers = self.replicas().readers();
        if self.is_asynchronous() && options.training {
            // Batches are assigned to processes late, and only the assigned process reads one.
            if self.workers().count() > 1 {
                options.prefetch = Some(0);
            }
            let data = DistributedDataset::new(dataset, options, 1, 0..1)?;
            return Ok(data.with_readers(readers));
        }
        let local = self.replicas().ranks();
        let data = DistributedDataset::new(dataset, options, self.num_replicas(), local)?;
        Ok(data.with_readers(readers))
    }
}
