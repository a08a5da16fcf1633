//! The trait [`Strategy`], and the methods of all strategies: running steps on replicas, and combining their results.
//! The strategies are in [`strategy`](crate::strategy); how they batch datasets is in [`data`](crate::data).

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::Device;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    comm::{CrossDeviceOps, ReduceOp},
    erased::{LastUpdate, last_update},
    loss::Losses,
    metric::MetricStates,
    replica::{PerReplica, ReplicaContext, ReplicaState, ReplicaThreads},
    signals::Stop,
    workers::Workers,
};

pub use crate::replica::Output;

/// A distribution strategy of training over replicas.
///
/// Implementors define replicas, processes and communication; the methods of `dyn Strategy` are the same
/// for all.
///
/// Source: `tf.distribute.Strategy`.
pub trait Strategy: Send + Sync {
    /// The replicas of this process.
    fn replicas(&self) -> &ReplicaThreads;

    /// The number of replicas in all processes.
    fn num_replicas(&self) -> usize {
        self.replicas().len()
    }

    /// The number of replicas whose gradients are summed for one update.
    fn num_replicas_in_sync(&self) -> usize {
        self.num_replicas()
    }

    /// The processes of the job.
    fn workers(&self) -> &dyn Workers;

    /// The operations of asynchronous training; `None` if training is synchronous.
    fn asynchronous(&self) -> Option<&dyn Asynchronous> {
        None
    }
}

/// The step of one replica on a batch.
pub type Job = Box<dyn FnOnce() -> Result<Output> + Send>;

/// Additional operations of a [`Strategy`] with asynchronous replicas.
pub trait Asynchronous {
    /// Dispatches a batch, the last of its update if `completes_update`, to the next free replica. Returns
    /// the outputs of earlier batches that were finished since the last call.
    ///
    /// # Errors
    /// An earlier batch or another process failed.
    fn schedule(&self, completes_update: bool, job: Job) -> Result<Vec<Output>>;

    /// Waits for all scheduled batches of all processes; all replicas then have the same parameters.
    ///
    /// # Errors
    /// As `schedule`.
    fn join(&self) -> Result<()>;

    /// True if batches were scheduled since the last join.
    fn is_running(&self) -> bool;

    /// The stop request of any process that is due before the next update.
    ///
    /// # Errors
    /// As `schedule`.
    fn stops(&self, this_one: Option<Stop>) -> Result<Option<Stop>>;

    /// The last update, if it was made in this process.
    ///
    /// # Errors
    /// The update failed.
    fn last_update(&self) -> Result<LastUpdate>;
}

impl dyn Strategy {
    /// Calls `factory` once, and registers a mirrored copy of its result on every replica.
    ///
    /// # Errors
    /// The error of `factory`, or its result cannot be copied to a replica.
    pub fn scope<T, S: ReplicaState<T>>(
        &self,
        factory: impl FnOnce(&Device) -> Result<S> + Send + 'static,
    ) -> Result<()> {
        self.join()?;
        let original = self
            .replicas()
            .run_on_first(move |replica| factory(replica.device()))?;
        let originals = (0..self.replicas().len())
            .map(|_| original.clone())
            .collect();
        // One replica at a time: a mirror may share memory with its original while being created.
        self.replicas()
            .run_in_turn(originals, |original: S, replica| {
                original.mirror(replica.device())?.register();
                Ok(())
            })
    }

    /// Runs `step` on all replicas in parallel, each with its own input.
    ///
    /// # Errors
    /// The first failure of any replica, with its rank; the others stop waiting for it.
    pub fn run<I: Send + 'static, O: Send + 'static>(
        &self,
        inputs: PerReplica<I>,
        step: impl Fn(I) -> Result<O> + Clone + Send + 'static,
    ) -> Result<PerReplica<O>> {
        self.join()?;
        self.replicas().run(inputs, move |input, _| step(input))
    }

    /// Whether training is asynchronous: it then uses `schedule` instead of `run`.
    pub fn is_asynchronous(&self) -> bool {
        self.asynchronous().is_some()
    }

    /// Waits for all scheduled batches; all replicas then have the parameters of the server.
    fn join(&self) -> Result<()> {
        self.asynchronous().map_or(Ok(()), Asynchronous::join)
    }

    /// Runs `step` on all replicas in parallel, each with its context.
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

    /// Runs `step` on the first replica only, to read values that are equal on all.
    ///
    /// # Errors
    /// The error of `step`.
    pub fn run_on_first<O: Send + 'static>(
        &self,
        step: impl FnOnce(&ReplicaContext) -> Result<O> + Send + 'static,
    ) -> Result<O> {
        self.join()?;
        self.replicas().run_on_first(step)
    }

    /// Reduces the losses of all replicas, by name.
    ///
    /// Each replica has already divided by the number of examples in the global batch, so
    /// [`ReduceOp::Sum`] gives the mean over the global batch.
    ///
    /// # Errors
    /// Another process failed.
    pub fn reduce(&self, op: ReduceOp, per_replica: PerReplica<Losses>) -> Result<Losses> {
        if self.workers().count() > 1 {
            per_replica.iter().try_for_each(Losses::read)?;
        }
        // Gathered, as a worker without examples does not know the names.
        let mut losses = Losses::sum(self.gather("the losses of all replicas", per_replica)?);
        if op == ReduceOp::Mean {
            losses.divide(self.num_replicas() as f64)?;
        }
        Ok(losses)
    }

    /// Gathers the metric states of the replicas of all processes.
    ///
    /// # Errors
    /// Another process failed.
    pub fn gather_metric_states(
        &self,
        per_replica: PerReplica<MetricStates>,
    ) -> Result<Vec<MetricStates>> {
        self.gather("the states of metrics", per_replica)
    }

    /// Gathers the values of the replicas of all processes, in the order of ranks; errors name `what`.
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

    /// The result of `read` on the chief, for all processes, so that they need no shared file system.
    ///
    /// # Errors
    /// The error of `read` on the chief, or a process is lost.
    pub fn read_by_chief<T: Serialize + DeserializeOwned>(
        &self,
        what: &'static str,
        read: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.workers().count() == 1 {
            return read();
        }
        let mut bytes = Vec::new();
        if self.is_chief() {
            ciborium::into_writer(&read()?, &mut bytes)?;
        }
        let bytes = self.workers().broadcast(what, bytes)?;
        Ok(ciborium::from_reader(&bytes[..])?)
    }

    /// The stop request of any process; all agree at the same step. A signal takes precedence over a
    /// callback.
    ///
    /// # Errors
    /// Another process failed.
    pub fn any_stops(&self, this_one: Option<Stop>) -> Result<Option<Stop>> {
        if let Some(asynchronous) = self.asynchronous()
            && asynchronous.is_running()
        {
            return asynchronous.stops(this_one);
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

    /// The last update of the first replica, or of the parameter server if it is in this process. Does not
    /// wait for scheduled batches. Reads `losses`, in the same read of a GPU as the norms of its updates.
    ///
    /// # Errors
    /// The update failed, or one since the last call had gradients that are not finite.
    pub fn last_update(&self, losses: &Losses) -> Result<LastUpdate> {
        match self.asynchronous() {
            Some(asynchronous) if asynchronous.is_running() => {
                losses.read()?;
                asynchronous.last_update()
            }
            _ => {
                let unread = losses.unread();
                let (update, values) = self.replicas().run_on_first(|_| last_update(unread))?;
                losses.note_read(&values);
                Ok(update)
            }
        }
    }

    /// Whether this process is the chief, which writes checkpoints and reports.
    pub fn is_chief(&self) -> bool {
        self.workers().is_chief()
    }

    /// The collective operations between replicas.
    pub fn cross_device_ops(&self) -> &Arc<dyn CrossDeviceOps> {
        self.replicas().cross_device_ops()
    }
}
