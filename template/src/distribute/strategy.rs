use std::sync::Arc;

use anyhow::Result;
use burn::tensor::Device;

use super::{
    CrossDeviceOps, Losses, MetricStates, PerReplica, ReduceOp, ReplicaContext, ReplicaState,
    ReplicaThreads,
};
use crate::data::{BatchOptions, Dataset, DistributedDataset};

/// How training is spread over replicas.
///
/// An implementation says which replicas there are and how values cross between them; what a step
/// does with that is below and the same for all. A strategy of several processes runs the replicas
/// of its own process and adds [`sum_over_workers`](Strategy::sum_over_workers); one that splits
/// layers gives a replica several devices; an asynchronous one exchanges gradients through
/// [`CrossDeviceOps`] that do not wait.
pub trait Strategy: Send + Sync {
    /// The name that `--strategy` takes.
    fn name(&self) -> &'static str;

    /// The replicas of this process.
    fn replicas(&self) -> &ReplicaThreads;

    /// The replicas of all processes that add up to one step.
    fn num_replicas_in_sync(&self) -> usize {
        self.replicas().len()
    }

    /// Sums `values` elementwise over all processes, in place; nothing to do for only one.
    ///
    /// # Errors
    /// Another process failed or does not answer.
    fn sum_over_workers(&self, _values: &mut [f64]) -> Result<()> {
        Ok(())
    }

    /// Adds the metrics of the replicas of all other processes to those of this one.
    ///
    /// # Errors
    /// Another process failed or does not answer.
    fn gather_over_workers(&self, local: Vec<MetricStates>) -> Result<Vec<MetricStates>> {
        Ok(local)
    }
}

impl dyn Strategy {
    /// Calls `factory` once, and registers a mirror of what it makes on every replica.
    ///
    /// # Errors
    /// Those of `factory`.
    pub fn scope<T: ReplicaState>(
        &self,
        factory: impl FnOnce(&Device) -> Result<T> + Send + 'static,
    ) -> Result<()> {
        let original = self
            .replicas()
            .run_on_first(move |replica| factory(replica.device()))?;
        let originals = (0..self.replicas().len())
            .map(|_| original.clone())
            .collect();
        // One replica at a time: a mirror may share memory with its original until it is made.
        self.replicas()
            .run_in_turn(originals, |original: T, replica| {
                original.mirror(replica.device()).register();
                Ok(())
            })
    }

    /// Calls `step` on every replica at once, each with its own input.
    ///
    /// # Errors
    /// The first failure of any replica, with its rank; the others are released from waiting.
    pub fn run<I: Send + 'static, O: Send + 'static>(
        &self,
        inputs: PerReplica<I>,
        step: impl Fn(I) -> Result<O> + Clone + Send + 'static,
    ) -> Result<PerReplica<O>> {
        self.replicas().run(inputs, move |input, _| step(input))
    }

    /// Calls `step` on every replica at once with its context.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_on_all<O: Send + 'static>(
        &self,
        step: impl Fn(&ReplicaContext) -> Result<O> + Clone + Send + 'static,
    ) -> Result<PerReplica<O>> {
        let nothing = (0..self.replicas().len()).map(|_| ()).collect();
        self.replicas()
            .run(nothing, move |(), replica| step(replica))
    }

    /// Calls `step` on the first replica only, to read what is equal on all.
    ///
    /// # Errors
    /// Those of `step`.
    pub fn run_on_first<O: Send + 'static>(
        &self,
        step: impl FnOnce(&ReplicaContext) -> Result<O> + Send + 'static,
    ) -> Result<O> {
        self.replicas().run_on_first(step)
    }

    /// Reduces the losses of all replicas to one set, name by name.
    ///
    /// Each replica has divided by the global number of examples already, so losses are summed.
    ///
    /// # Errors
    /// Another process failed.
    pub fn reduce(&self, op: ReduceOp, per_replica: PerReplica<Losses>) -> Result<Losses> {
        let (names, mut values): (Vec<_>, Vec<_>) = Losses::sum(per_replica).iter().unzip();
        self.sum_over_workers(&mut values)?;
        if op == ReduceOp::Mean {
            let replicas = self.num_replicas_in_sync() as f64;
            values.iter_mut().for_each(|value| *value /= replicas);
        }
        Ok(names.into_iter().zip(values).collect())
    }

    /// Gives the states of the metrics of all replicas, those of other processes included.
    ///
    /// # Errors
    /// Another process failed.
    pub fn gather_metric_states(
        &self,
        per_replica: PerReplica<MetricStates>,
    ) -> Result<Vec<MetricStates>> {
        self.gather_over_workers(per_replica.into_iter().collect())
    }

    /// Batches `dataset` by the global batch size and splits each batch over the replicas.
    ///
    /// # Errors
    /// The dataset is empty, or has no full batch where only full ones are wanted.
    pub fn distribute_dataset<E: Send + 'static>(
        &self,
        dataset: Arc<dyn Dataset<Example = E>>,
        options: BatchOptions<E>,
    ) -> Result<DistributedDataset<E>> {
        let local = self.replicas().ranks();
        DistributedDataset::new(dataset, options, self.num_replicas_in_sync(), local)
    }

    /// What replicas exchange values through.
    pub fn cross_device_ops(&self) -> &Arc<dyn CrossDeviceOps> {
        self.replicas().cross_device_ops()
    }
}
