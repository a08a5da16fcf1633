//! Step 6: the training loop over epochs and batches, and the training step.

use anyhow::{Result, bail};
use burn::{optim::GradientsParams, tensor::Tensor};
use kiln_engine::{
    checkpoint::Progress,
    data::{Datasets, Shard},
    loss::Losses,
    model::forward_pass,
    optim::{FlatGradients, Gradients, NonFinite},
    replica::PerReplica,
    report::{
        Report,
        profile::{Phase, span},
    },
    training::{Training, apply_gradients, train_shard},
};

use crate::{
    callbacks::{create_callbacks, prepare_inputs, prepare_loss_inputs},
    cli::Args,
    dataset::{Batch, Example},
    globals::{self, Project, Split},
    loss::CycleLosses,
    model::{Model, Predictions},
    validation::validate,
};

/// Trains until `--epochs`, or until a callback stops it, with a checkpoint and a validation after each
/// epoch. Returns `None` if a signal stopped it.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn train(
    args: &Args,
    datasets: &Datasets<Example>,
    report: &mut Report,
) -> Result<Option<Progress>> {
    let callbacks = create_callbacks(args);
    let mut training = Training::<Project>::start(&args.options, datasets, report, callbacks)?;
    while training.has_epochs_left() {
        let mut batches = training.begin_epoch();
        while let Some(inputs) = training.next_batch(&mut batches) {
            // Reports, and runs callbacks and saves if due; false if training stops.
            if !training.step(inputs, distributed_train_step)? {
                return training.end();
            }
        }
        // Saves, validates, and saves the results.
        if !training.end_epoch(validate)? {
            break;
        }
    }
    training.end()
}

/// Trains all replicas on one global batch, and returns its losses. With a parameter server, one replica
/// trains on it; the returned losses are those of an earlier batch.
pub fn distributed_train_step(inputs: PerReplica<Shard<Example>>) -> Result<Losses> {
    globals::strategy()?.train(inputs, replica_train_step)
}

/// Trains one replica on its shard of a batch.
fn replica_train_step(shard: Shard<Example>) -> Result<Losses> {
    let (losses, gradients) = train_shard::<Project>(shard, train_step)?;
    // Summed over all replicas, which then make the same update.
    apply_gradients::<Project>(gradients)?;
    Ok(losses)
}

/// The losses and gradients of a replica's shard of a batch.
pub fn train_step(batch: Batch) -> Result<(Losses, Gradients)> {
    let forward = forward_pass()?;
    let batch = prepare_inputs(batch)?;
    let model = globals::model()?;
    let predictions = model.forward(&batch);
    let (predictions, batch) = prepare_loss_inputs(predictions, batch)?;
    let objects = globals::loss_objects()?;
    let per_example = objects.cycle_losses(&predictions, &batch)?; // [batch] each
    globals::with_metrics(Split::Train, |metrics| {
        metrics.update(&per_example.sum(), &predictions, &batch)
    })??;
    let losses = per_example.reduce()?; // [1] each
    drop(forward);
    let _backward = span(Phase::Backward);
    Ok((losses.named(), gradients(&model, &losses)))
}

/// The gradients of each network from its own loss. A generator's loss has gradients of its judge,
/// too, and a step down those would make the discriminator believe it: they are left out.
fn gradients(model: &Model, losses: &CycleLosses) -> Gradients {
    let (g, f) = (&losses.y.generator, &losses.x.generator);
    let (x, y) = (&losses.x.discriminator, &losses.y.discriminator);
    let g = GradientsParams::from_grads(g.backward(), &model.generator_g);
    let f = GradientsParams::from_grads(f.backward(), &model.generator_f);
    let x = GradientsParams::from_grads(x.backward(), &model.discriminator_x);
    let y = GradientsParams::from_grads(y.backward(), &model.discriminator_y);
    Gradients::new().with(g).with(f).with(x).with(y)
}

/// Under `model-parallel`, which `create_model_and_optimizer` refuses.
///
/// # Errors
/// Always: there is no one loss of what the last stage gives.
pub fn train_loss(_predictions: Predictions, _batch: Batch) -> Result<Tensor<1>> {
    bail!("four networks have four losses, and no stages")
}

/// The policy for gradients or validation losses that are not finite.
pub const NON_FINITE: NonFinite = NonFinite::Error;

/// Transforms the gradients, summed over replicas, before the update; false skips the update.
pub fn update_gradients(gradients: &mut FlatGradients) -> Result<bool> {
    // After the sum, so that all replicas see the same gradients and decide alike.
    // They are not clipped: a norm over all four networks would let one slow down the others.
    gradients.handle_non_finite(NON_FINITE)
}
