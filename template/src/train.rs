//! Step 6: the training loop over epochs and batches, and the training step.

use anyhow::Result;
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
    loss::{compute_loss, per_example_losses},
    model::Predictions,
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
    // TODO(train.step): Compute the losses and the gradients of a batch.
    //   Now: one loss of one model, and its gradients.
    //   Note: several networks, as of a GAN, are fields of the model; add the gradients of each
    //         from its own loss, and give each an optimizer in a `Trainable` of your own.
    //   Shapes: those of a batch in, losses [1] out.
    let forward = forward_pass()?;
    let batch = prepare_inputs(batch)?;
    let model = globals::model()?;
    let predictions = model.forward(&batch); // [batch, classes]
    let loss = train_loss(predictions, batch)?; // [1]
    drop(forward); // Until here, replicas with Burn's random layers take turns.
    let _backward = span(Phase::Backward);
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    Ok((
        Losses::new().with("loss", &loss),
        Gradients::new().with(gradients),
    ))
}

/// The loss of the predictions, shape `[1]`; updates the metrics.
pub fn train_loss(predictions: Predictions, batch: Batch) -> Result<Tensor<1>> {
    let (predictions, batch) = prepare_loss_inputs(predictions, batch)?;
    let per_example = per_example_losses(&predictions, &batch)?; // [batch]
    globals::with_metrics(Split::Train, |metrics| {
        metrics.update(&per_example, &predictions, &batch)
    })??;
    compute_loss(per_example)
}

/// The policy for gradients or validation losses that are not finite.
pub const NON_FINITE: NonFinite = NonFinite::Error;

/// Transforms the gradients, summed over replicas, before the update; false skips the update.
pub fn update_gradients(gradients: &mut FlatGradients) -> Result<bool> {
    // After the sum, so that all replicas see the same gradients and decide alike.
    // TODO(train.gradients): Check and transform the gradients before the update.
    //   Now: an error if a gradient is not finite; otherwise the global norm is clipped to 10.
    //   Shapes: those of the parameters.
    if !gradients.handle_non_finite(NON_FINITE)? {
        return Ok(false);
    }
    gradients.clip_by_global_norm(10.0);
    Ok(true)
}
