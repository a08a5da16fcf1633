//! Step 6: the loop over epochs and batches, and the step of training, on one replica and on all.

use anyhow::Result;
use burn::{optim::GradientsParams, tensor::Tensor};
use kiln_engine::{
    checkpoint::Progress,
    data::{Datasets, Shard},
    distribute::{
        FlatGradients, Gradients, Losses, NonFinite, PerReplica, apply_gradients, forward_pass,
        train_shard,
    },
    globals::with_trainable,
    report::{
        Report,
        profile::{Phase, span},
    },
    training::Training,
};

use crate::{
    callbacks::{create_callbacks, prepare_inputs, prepare_loss_inputs},
    cli::Args,
    dataset::{Batch, Example},
    digits::CALLBACKS,
    globals::{self, Project, Split},
    loss::{compute_loss, per_example_losses},
    model::Predictions,
    train_callbacks::TrainCallbacks,
    validation::validate,
};

/// Trains until `--epochs`, or until a callback ends it, with a checkpoint and a validation after each
/// epoch. `None` means that a signal stopped it before.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn train(
    args: &Args,
    datasets: &Datasets<Example>,
    report: &mut Report,
) -> Result<Option<Progress>> {
    let (options, callbacks) = (CALLBACKS.create_ckpt(&args.options), create_callbacks(args));
    let mut training = Training::<Project>::start(&options, datasets, report, callbacks)?;
    while training.has_epochs_left() {
        let mut batches = training.begin_epoch();
        while let Some(inputs) = training.next_batch(&mut batches) {
            // Reports, calls callbacks and saves what is due; false where training is to stop.
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

/// Trains all replicas on one global batch, and returns the losses of that batch. With a parameter
/// server one replica trains on it, and the losses are those of a batch that was finished meanwhile.
pub fn distributed_train_step(inputs: PerReplica<Shard<Example>>) -> Result<Losses> {
    globals::strategy()?.train(inputs, replica_train_step)
}

/// Trains one replica on its share of a batch.
fn replica_train_step(shard: Shard<Example>) -> Result<Losses> {
    let (losses, gradients) = train_shard::<Project>(shard, train_step)?;
    // Summed over all replicas, which then make the same update.
    apply_gradients::<Project>(gradients)?;
    Ok(losses)
}

/// One replica's losses and gradients for its share of a batch.
pub fn train_step(batch: Batch) -> Result<(Losses, Gradients)> {
    let forward = forward_pass()?;
    let batch = prepare_inputs(batch)?;
    let model = globals::model()?;
    let predictions = model.forward(&batch); // [batch, classes]
    let loss = train_loss(predictions, batch)?; // [1]
    drop(forward);
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

/// What happens where gradients, or the loss of a validation, are not finite.
pub const NON_FINITE: NonFinite = NonFinite::Zero;

/// Has `update_pre` prepare the gradients, summed over replicas, so that all see the same ones.
pub fn update_gradients(gradients: &mut FlatGradients) -> Result<bool> {
    let display_gradients = CALLBACKS.update_pre(gradients)?;
    with_trainable::<Project, _>(|trainable| {
        trainable.display_gradients = Some(display_gradients)
    })?;
    Ok(true)
}
