//! From a replica's share of a batch to the update of the parameters.

use anyhow::Result;

use super::{
    FlatGradients, Gradients, Losses, PerReplica, Pipeline, ReduceOp, Strategy, replica_context,
};
use crate::{
    data::Shard,
    globals,
    report::profile::{Phase, span},
    task::{Task, TrainState},
};

impl dyn Strategy {
    /// Trains all replicas on one global batch with `step`, and returns the losses of that batch. With a
    /// parameter server one replica trains on it, and the losses are those of a batch that was finished
    /// meanwhile.
    ///
    /// # Errors
    /// A replica failed.
    pub fn train<E: Send + 'static>(
        &self,
        inputs: PerReplica<Shard<E>>,
        step: impl Fn(Shard<E>) -> Result<Losses> + Clone + Send + 'static,
    ) -> Result<Losses> {
        if self.is_asynchronous() {
            let mut finished = self.schedule(inputs, step)?;
            return Ok(finished.pop().unwrap_or_default());
        }
        let losses = self.run(inputs, step)?;
        self.reduce(ReduceOp::Sum, losses)
    }
}

/// The losses and gradients of a replica's share of a batch, by `train_step`, or in the stages of the
/// model under `model-parallel`. Without examples there are none.
///
/// # Errors
/// Those of `train_step`, or an example cannot be read.
pub fn train_shard<T: Task>(
    shard: Shard<T::Example>,
    train_step: impl FnOnce(T::Batch) -> Result<(Losses, Gradients)>,
) -> Result<(Losses, Gradients)> {
    let replica = replica_context()?;
    match replica.pipeline() {
        Some(pipeline) if !shard.is_empty() => {
            let parts = shard.load_parts(pipeline.micro_batches())?;
            pipelined_train_step::<T>(pipeline, parts)
        }
        _ => match shard.load()? {
            Some(batch) => train_step(batch),
            // Without examples a replica still takes part in the sum, and gets the same update.
            None => Ok((Losses::new(), Gradients::new())),
        },
    }
}

/// Trains a model in stages, through which micro-batches follow each other.
fn pipelined_train_step<T: Task>(
    pipeline: &Pipeline,
    parts: Vec<T::Batch>,
) -> Result<(Losses, Gradients)> {
    let parts = parts.into_iter().map(T::prepare_inputs);
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let mut step = pipeline.start(&globals::model::<T>()?, T::STAGES, &parts)?;
    let mut losses = Vec::new();
    for part in parts {
        let loss = T::train_loss(step.predict()?.into(), part)?; // [1]
        step.backward(&loss)?;
        losses.push(Losses::new().with("loss", &loss));
    }
    Ok((Losses::sum(losses), step.gradients()?))
}

/// Sums the gradients over all replicas and updates the parameters. With `--accumulate` they are only
/// kept, until the last batch of an update; under `parameter-server` they are pushed.
///
/// # Errors
/// Another replica failed, or a gradient is not finite.
pub fn apply_gradients<T: Task>(gradients: Gradients) -> Result<()> {
    let replica = replica_context()?;
    let all_reduce = span(Phase::AllReduce);
    let mut gradients = FlatGradients::new(&globals::model::<T>()?, gradients)?;
    if let Some(earlier) = globals::take_gradients() {
        gradients.accumulate(&earlier)?;
    }
    if replica.batch().is_some_and(|batch| !batch.completes_update) {
        globals::keep_gradients(gradients);
        return Ok(());
    }
    if let Some(server) = replica.parameter_server() {
        // It updates its parameters, as below, for all replicas.
        return server.push(replica.rank(), &gradients);
    }
    let gradients = replica.reduce_gradients(gradients)?;
    drop(all_reduce);
    let _update = span(Phase::Update);
    replica.update(gradients, update_parameters::<T>)
}

/// Updates the parameters of this replica, or those of the parameter server on its thread. Of several
/// replicas on the CPU the first one does so for all: what updates remember belongs in
/// [`Task::Trainable`].
///
/// # Errors
/// A gradient is not finite.
pub fn update_parameters<T: Task>(mut gradients: FlatGradients) -> Result<()> {
    let _update = span(Phase::Update);
    let step = globals::step() + 1;
    globals::set_step(step);
    if !T::update_gradients(&mut gradients)? {
        return Ok(());
    }
    gradients.retain(|parameter| T::is_trainable(parameter, step));
    globals::remember_gradients(&gradients)?;
    globals::update_trainable::<T>(|trainable| Ok(trainable.update(gradients)))
}
