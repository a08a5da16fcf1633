//! Step 6: the step of training, on one replica and on all; `epochs.rs` repeats it.

use anyhow::Result;
use burn::{optim::GradientsParams, tensor::Tensor};

use crate::{
    callbacks::{is_trainable, prepare_inputs, prepare_loss_inputs},
    data::Shard,
    dataset::{Batch, Example},
    distribute::{
        FlatGradients, Gradients, Losses, NonFinite, PerReplica, Pipeline, ReduceOp,
        replica_context,
    },
    globals::{self, Split},
    loss::{compute_loss, per_example_losses, regularization_loss},
    model::{Model, STAGES},
    report::profile::{Phase, span},
};

/// One replica's losses and gradients for its share of a batch.
pub fn train_step(batch: Batch) -> Result<(Losses, Gradients)> {
    let forward = span(Phase::Forward);
    let batch = prepare_inputs(batch)?;
    let model = globals::model()?;
    let predictions = model.forward(batch.features.clone()); // [batch, classes]
    let loss = train_loss(&model, predictions, batch)?; // [1]
    drop(forward);
    let _backward = span(Phase::Backward);
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    Ok((
        Losses::new().with("loss", &loss),
        Gradients::new().with(gradients),
    ))
}

/// The loss of predictions `[batch, classes]` with the penalty, shape `[1]`; notes the metrics.
fn train_loss(model: &Model, predictions: Tensor<2>, batch: Batch) -> Result<Tensor<1>> {
    let (predictions, batch) = prepare_loss_inputs(predictions, batch)?;
    let per_example = per_example_losses(&predictions, &batch)?; // [batch]
    globals::with_metrics(Split::Train, |metrics| {
        metrics.update(&per_example, &predictions, &batch)
    })??;
    Ok(compute_loss(per_example)? + regularization_loss(model)?)
}

/// As `train_step`, with a model in stages, through which parts of the batch follow each other.
fn pipelined_train_step(pipeline: &Pipeline, parts: Vec<Batch>) -> Result<(Losses, Gradients)> {
    let _forward_and_backward = span(Phase::Forward);
    let parts = parts.into_iter().map(prepare_inputs);
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let features = parts.iter().map(|part| part.features.clone().into());
    let model = globals::model()?;
    let mut step = pipeline.start(&model, STAGES, features.collect())?;
    let mut losses = Vec::new();
    for part in parts {
        let predictions = step.predict()?.tensor(); // [part, classes]
        let loss = train_loss(&model, predictions, part)?; // [1]
        step.backward(&loss)?;
        losses.push(Losses::new().with("loss", &loss));
    }
    Ok((Losses::sum(losses), step.gradients()?))
}

/// What happens where gradients, or the loss of a validation, are not finite.
pub const NON_FINITE: NonFinite = NonFinite::Error;

/// Decides what becomes of the gradients, summed over replicas; false skips the update.
pub fn update_gradients(gradients: &mut FlatGradients) -> Result<bool> {
    // After the sum, so that all replicas see the same gradients and decide alike. The tutorial clips
    // nothing.
    gradients.handle_non_finite(NON_FINITE)
}

/// Sums the gradients over all replicas and updates the parameters. With `--accumulate` they are only
/// kept, until the last batch of an update.
///
/// # Errors
/// Another replica failed, or a gradient is not finite.
pub fn apply_gradients(gradients: Gradients) -> Result<()> {
    let replica = replica_context()?;
    let all_reduce = span(Phase::AllReduce);
    let mut gradients = FlatGradients::new(&globals::model()?, gradients)?;
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
    replica.update(gradients, update_parameters)
}

/// Updates the parameters of this replica, or those of the parameter server on its thread. Of several
/// replicas on the CPU the first one does so for all: what updates remember belongs in `Trainable`.
///
/// # Errors
/// A gradient is not finite.
pub fn update_parameters(mut gradients: FlatGradients) -> Result<()> {
    let _update = span(Phase::Update);
    let step = globals::step() + 1;
    globals::set_step(step);
    if !update_gradients(&mut gradients)? {
        return Ok(());
    }
    gradients.retain(|parameter| is_trainable(parameter, step));
    globals::remember_gradients(&gradients)?;
    globals::update_trainable(|trainable| Ok(trainable.update(gradients)))
}

/// Trains one replica on its share of a batch.
fn replica_train_step(shard: Shard<Example>) -> Result<Losses> {
    let replica = replica_context()?;
    let (losses, gradients) = match replica.pipeline() {
        Some(pipeline) if !shard.is_empty() => {
            pipelined_train_step(pipeline, shard.load_parts(pipeline.micro_batches())?)?
        }
        _ => match shard.load()? {
            Some(batch) => train_step(batch)?,
            // Without examples a replica still takes part in the sum, and gets the same update.
            None => (Losses::new(), Gradients::new()),
        },
    };
    apply_gradients(gradients)?;
    Ok(losses)
}

/// Trains all replicas on one global batch, and returns the losses of that batch. With a parameter
/// server one replica trains on it, and the losses are those of a batch that was finished meanwhile.
pub fn distributed_train_step(inputs: PerReplica<Shard<Example>>) -> Result<Losses> {
    let strategy = globals::strategy()?;
    if strategy.is_asynchronous() {
        let mut finished = strategy.schedule(inputs, replica_train_step)?;
        return Ok(finished.pop().unwrap_or_default());
    }
    let losses = strategy.run(inputs, replica_train_step)?;
    strategy.reduce(ReduceOp::Sum, losses)
}
