use std::sync::Arc;

use anyhow::{Context, Result};
use burn::tensor::Device;

use serde::{Serialize, de::DeserializeOwned};

use super::{
    CrossDeviceOps, Losses, MetricStates, ParameterServerStrategy, PerReplica, ReduceOp,
    ReplicaContext, ReplicaState, ReplicaThreads, Workers, multi_worker::ensure_equal,
};
use crate::{
    checkpoint::interrupt::Stop,
    data::{BatchOptions, Dataset, DistributedDataset, Shard},
    globals::{self, LastUpdate},
};

/// How training is spread over replicas.
///
/// An implementation says which replicas and processes there are and how values cross between them;
/// what a step does with that is below and the same for all.
pub trait Strategy: Send + Sync {
    /// The replicas of this process.
    fn replicas(&self) -> &ReplicaThreads;

    /// The replicas of all processes.
    fn num_replicas(&self) -> usize {
        self.replicas().len()
    }

    /// The replicas whose gradients add up to one update.
    fn num_replicas_in_sync(&self) -> usize {
        self.num_replicas()
    }

    /// The processes of the job.
    fn workers(&self) -> &dyn Workers;

    /// How replicas train that do not wait for each other.
    fn parameter_server(&self) -> Option<&ParameterServerStrategy> {
        None
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
        self.join()?;
        let original = self
            .replicas()
            .run_on_first(move |replica| factory(replica.device()))?;
        let originals = (0..self.replicas().len())
            .map(|_| original.clone())
            .collect();
        // One replica at a time: a mirror may share memory with its original until it is made.
        self.replicas()
            .run_in_turn(originals, |original: T, replica| {
                original.mirror(replica.device())?.register();
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
        self.join()?;
        self.replicas().run(inputs, move |input, _| step(input))
    }

    /// Whether replicas train without waiting for each other, so that `schedule` takes the place of
    /// `run` in training.
    pub fn is_asynchronous(&self) -> bool {
        self.parameter_server().is_some()
    }

    /// Gives a batch to one replica, as soon as one is free, and does not wait for it. Returns what
    /// `step` returned for batches before; what is still computed comes with the next ones, or is
    /// waited for where anything else is asked of the strategy.
    ///
    /// Source: `tf.distribute.coordinator.ClusterCoordinator.schedule`.
    ///
    /// # Errors
    /// A step before failed, or the strategy is a synchronous one.
    pub fn schedule<E: Send + 'static, O: Send + 'static>(
        &self,
        inputs: PerReplica<Shard<E>>,
        step: impl Fn(Shard<E>) -> Result<O> + Send + 'static,
    ) -> Result<Vec<O>> {
        let server = self.parameter_server();
        let server = server.context("only the parameter-server strategy schedules batches")?;
        server.schedule(inputs, step)
    }

    /// Waits for all that was scheduled; then all replicas have the parameters of the server.
    fn join(&self) -> Result<()> {
        self.parameter_server()
            .map_or(Ok(()), ParameterServerStrategy::join)
    }

    /// Calls `step` on every replica at once with its context.
    ///
    /// # Errors
    /// As `run`.
    pub fn run_on_all<O: Send + 'static>(
        &self,
        step: impl Fn(&ReplicaContext) -> Result<O> + Clone + Send + 'static,
    ) -> Result<PerReplica<O>> {
        self.join()?;
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
        self.join()?;
        self.replicas().run_on_first(step)
    }

    /// Reduces the losses of all replicas to one set, name by name.
    ///
    /// Each replica has divided by the global number of examples already, so losses are summed.
    ///
    /// # Errors
    /// Another process failed.
    pub fn reduce(&self, op: ReduceOp, per_replica: PerReplica<Losses>) -> Result<Losses> {
        // Gathered, as a worker whose replicas have no examples does not know the names.
        let mut losses = Losses::sum(self.gather("the losses of all replicas", per_replica)?);
        if op == ReduceOp::Mean {
            losses.divide(self.num_replicas() as f64);
        }
        Ok(losses)
    }

    /// Gives the states of the metrics of all replicas, those of other processes included.
    ///
    /// # Errors
    /// Another process failed.
    pub fn gather_metric_states(
        &self,
        per_replica: PerReplica<MetricStates>,
    ) -> Result<Vec<MetricStates>> {
        self.gather("the states of metrics", per_replica)
    }

    /// Gives the values of all replicas, those of other processes included, in the order of ranks.
    ///
    /// # Errors
    /// Another process failed.
    pub fn gather<T: Serialize + DeserializeOwned>(
        &self,
        what: &'static str,
        per_replica: PerReplica<T>,
    ) -> Result<Vec<T>> {
        let local: Vec<T> = per_replica.into_iter().collect();
        if self.workers().count() == 1 {
            return Ok(local);
        }
        let mut bytes = Vec::new();
        ciborium::into_writer(&local, &mut bytes)?;
        let mut all = Vec::new();
        for bytes in self.workers().all_gather(what, bytes)? {
            all.extend(ciborium::from_reader::<Vec<T>, _>(&bytes[..])?);
        }
        Ok(all)
    }

    /// The request to stop of any process, the same on all after the same update; that of a signal
    /// before that of a callback.
    ///
    /// # Errors
    /// Another process failed.
    pub fn any_stops(&self, this_one: Option<Stop>) -> Result<Option<Stop>> {
        if let Some(server) = self.parameter_server()
            && server.is_running()
        {
            return server.stops(this_one);
        }
        if self.workers().count() == 1 {
            return Ok(this_one);
        }
        let requests = Stop::ALL.map(|stop| f64::from(u8::from(this_one == Some(stop))));
        let mut requests = requests.to_vec();
        self.workers().sum_f64(&mut requests)?;
        let requested = requests.iter().position(|count| *count > 0.0);
        Ok(requested.map(|place| Stop::ALL[place]))
    }

    /// The last update of the first replica, or of the parameter server if it is in this process. What
    /// was scheduled goes on meanwhile.
    ///
    /// # Errors
    /// The update failed.
    pub fn last_update(&self) -> Result<LastUpdate> {
        match self.parameter_server() {
            Some(server) if server.is_running() => server.last_update(),
            _ => self.replicas().run_on_first(|_| globals::last_update()),
        }
    }

    /// Whether this process writes what there is one of, such as checkpoints and reports.
    pub fn is_chief(&self) -> bool {
        self.workers().is_chief()
    }

    /// Batches `dataset` by the global batch size and splits each batch over the replicas. With a
    /// parameter server batches for training stay whole.
    ///
    /// # Errors
    /// The dataset is empty, or has no full batch where only full ones are wanted.
    pub fn distribute_dataset<E: Send + 'static>(
        &self,
        dataset: Arc<dyn Dataset<Example = E>>,
        mut options: BatchOptions<E>,
    ) -> Result<DistributedDataset<E>> {
        let examples = [("the number of examples", dataset.len().to_string())];
        ensure_equal(self.workers(), &examples)?;
        let readers = self.replicas().readers();
        if self.is_asynchronous() && options.training {
            // Who of several processes computes a batch shows late, and only that one reads it.
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

    /// What replicas exchange values through.
    pub fn cross_device_ops(&self) -> &Arc<dyn CrossDeviceOps> {
        self.replicas().cross_device_ops()
    }
}
