//! Step 6: the training loop over epochs and batches, and the training step.

use anyhow::{Context, Result, ensure};
use burn::{optim::GradientsParams, tensor::Tensor};
use kiln_engine::{
    checkpoint::Progress,
    data::{Datasets, Epoch, Shard},
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
    cli::{Args, LoopStyle},
    dataset::{Batch, Example},
    globals::{self, Project, Split},
    loss::{compute_loss, per_example_losses},
    model::Predictions,
    objective::Objective,
    validation::validate,
};

/// Trains until `--epochs`, or until a callback ends it, with a validation after each epoch and
/// checkpoints. `None` means that a signal stopped it before.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn train(
    args: &Args,
    datasets: &Datasets<Example>,
    report: &mut Report,
) -> Result<Option<Progress>> {
    ensure!(
        args.loop_style != LoopStyle::Function || args.options.checkpoint_steps.is_none(),
        "--loop-style function stops nowhere in an epoch, so it saves no checkpoint there: \
         leave out --checkpoint-steps or use another --loop-style"
    );
    let callbacks = create_callbacks(args);
    let mut training = Training::<Project>::start(&args.options, datasets, report, callbacks)?;
    while training.has_epochs_left() {
        let Some(objective) = train_epoch(&mut training, args.loop_style)? else {
            break;
        };
        let step = training.progress().step;
        let report = training.report();
        report.scalar(step, "train/objective", objective.mean())?;
        // Validates, and saves where a checkpoint is due.
        if !training.end_epoch(validate)? {
            break;
        }
    }
    training.end()
}

/// Trains on what is left of an epoch, and gives its objective; `None` where training is to stop.
fn train_epoch(
    training: &mut Training<'_, Project>,
    style: LoopStyle,
) -> Result<Option<Objective>> {
    let left = training.batches_left();
    let mut batches = training.begin_epoch();
    let mut objective = Objective::default();
    match style {
        LoopStyle::Elements => {
            while let Some(inputs) = training.next_batch(&mut batches) {
                // Reports, and runs callbacks and saves if due; false if training stops.
                if !training.step(inputs, |inputs| counted_step(inputs, &mut objective))? {
                    return Ok(None);
                }
            }
        }
        LoopStyle::Iterator => {
            for _ in 0..left {
                let inputs = training.next_batch(&mut batches);
                let inputs = inputs.context("the epoch has too few batches")?;
                if !training.step(inputs, |inputs| counted_step(inputs, &mut objective))? {
                    return Ok(None);
                }
            }
        }
        LoopStyle::Function => objective = distributed_train_epoch(training, batches)?,
    }
    Ok(Some(objective))
}

/// Trains on all `batches` that are left of an epoch, and gives their objective.
///
/// Source: `distributed_train_epoch` of the tutorial, which iterates inside a `tf.function`.
///
/// # Errors
/// A replica failed.
pub fn distributed_train_epoch(
    training: &mut Training<'_, Project>,
    batches: Epoch<Example>,
) -> Result<Objective> {
    let mut objective = Objective::default();
    for inputs in batches {
        training.quiet_step(inputs, |inputs| counted_step(inputs, &mut objective))?;
    }
    Ok(objective)
}

/// Trains on a global batch, and counts it in `objective`.
fn counted_step(inputs: PerReplica<Shard<Example>>, objective: &mut Objective) -> Result<Losses> {
    let batch = inputs.info();
    let losses = distributed_train_step(inputs)?;
    objective.add(batch, &losses);
    Ok(losses)
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

/// The loss of the predictions with the penalty, shape `[1]`; updates the metrics.
pub fn train_loss(predictions: Predictions, batch: Batch) -> Result<Tensor<1>> {
    let (predictions, batch) = prepare_loss_inputs(predictions, batch)?;
    let per_example = per_example_losses(&predictions, &batch)?; // [batch]
    globals::with_metrics(Split::Train, |metrics| {
        metrics.update(&per_example, &predictions, &batch)
    })??;
    Ok(compute_loss(per_example)? + globals::model()?.regularization_loss()?)
}

/// The policy for gradients or validation losses that are not finite.
pub const NON_FINITE: NonFinite = NonFinite::Error;

/// Transforms the gradients, summed over replicas, before the update; false skips the update.
pub fn update_gradients(gradients: &mut FlatGradients) -> Result<bool> {
    // After the sum, so that all replicas see the same gradients and decide alike. The tutorial clips
    // nothing.
    gradients.handle_non_finite(NON_FINITE)
}
