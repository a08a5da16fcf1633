//! A training step: losses and gradients of each replica's shard, and the update of the parameters.

use anyhow::Result;

use super::{
    anomalies::checked,
    observation::{Size, observe},
};
use crate::{
    anomalies::{check_images, detects_anomalies},
    comm::ReduceOp,
    data::Shard,
    distribution::Strategy,
    ema, globals,
    loss::Losses,
    optim::{FlatGradients, Gradients},
    performance::profile::{Phase, span},
    pipeline::Pipeline,
    precision,
    replica::{PerReplica, replica_context},
    task::{Collate, Task, TrainState},
};

impl dyn Strategy {
    /// Trains all replicas on one global batch with `step`, and returns its losses. With a parameter server,
    /// one replica trains on it; the returned losses are those of an earlier batch, or empty.
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

/// The losses and gradients of a replica's shard of a batch, by `train_step`, or by the pipeline under
/// `model-parallel`. Empty without examples.
///
/// # Errors
/// Those of `train_step`, an example cannot be read, or `--detect-anomalies` finds a value that is not finite.
pub fn train_shard<T: Task>(
    shard: Shard<T::Example>,
    train_step: impl FnOnce(T::Batch) -> Result<(Losses, Gradients)>,
) -> Result<(Losses, Gradients)> {
    if !detects_anomalies() {
        return trained_shard::<T>(shard, train_step);
    }
    let pipeline = replica_context()?.pipeline().map(Pipeline::micro_batches);
    let parts = pipeline.unwrap_or(1);
    checked::<T>(shard.indices(), parts, || {
        trained_shard::<T>(shard, train_step)
    })
}

fn trained_shard<T: Task>(
    shard: Shard<T::Example>,
    train_step: impl FnOnce(T::Batch) -> Result<(Losses, Gradients)>,
) -> Result<(Losses, Gradients)> {
    let (replica, examples) = (replica_context()?, shard.len());
    match replica.pipeline() {
        Some(pipeline) if !shard.is_empty() => {
            let parts: Vec<T::Batch> = shard.load_parts(pipeline.micro_batches())?;
            let tokens = parts.iter().map(Collate::tokens).sum();
            let step = || pipelined_train_step::<T>(pipeline, parts);
            observe::<T, _>(Size { examples, tokens }, step)
        }
        _ => match shard.load::<T::Batch>()? {
            Some(batch) => {
                let tokens = batch.tokens();
                check_images(|| batch.images());
                observe::<T, _>(Size { examples, tokens }, || train_step(batch))
            }
            // A replica without examples still joins the all-reduce and gets the same update.
            None => Ok((Losses::new(), Gradients::new())),
        },
    }
}

/// A training step of a model in pipeline stages, with micro-batches.
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

/// All-reduces the gradients and updates the parameters. With `--accumulate`, gradients are accumulated
/// until the last batch of an update; under `parameter-server`, they are pushed.
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
    if let Some(server) = replica.gradient_server() {
        // The server updates its parameters for all replicas.
        server.push(replica.rank(), replica.exchange(), gradients.to_values()?)?;
        return ema::update_statistics_at::<T>(globals::step() + 1);
    }
    let gradients = replica.reduce_gradients(gradients)?;
    drop(all_reduce);
    let _update = span(Phase::Update);
    replica.update(gradients, update_parameters::<T>)
}

/// Updates the parameters of this replica, or those of the parameter server if called on its thread. The first
/// of several replicas on the CPU updates for all, so the state of updates belongs in [`Task::Trainable`].
///
/// # Errors
/// A gradient is not finite.
pub fn update_parameters<T: Task>(mut gradients: FlatGradients) -> Result<()> {
    let _update = span(Phase::Update);
    let step = globals::step() + 1;
    globals::set_step(step);
    globals::set_last_gradients(None);
    if !precision::accepts(&mut gradients)? || !T::update_gradients(&mut gradients)? {
        return Ok(());
    }
    gradients.retain(|parameter| T::is_trainable(parameter, step));
    globals::remember_gradients(&gradients)?;
    globals::update_trainable::<T>(|trainable| Ok(trainable.update(gradients)))?;
    ema::update::<T>(step)
}
