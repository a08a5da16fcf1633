//! Callbacks and hooks of training.

use anyhow::Result;
use kiln_engine::{report::Report, training::Callbacks};

use crate::{cli::Args, dataset::Batch, model::Predictions};

/// Creates the callbacks, which run on the main thread after steps and epochs.
pub fn create_callbacks(_args: &Args) -> Callbacks<Report> {
    // TODO(callbacks.schedule): Do something after certain steps or epochs.
    //   Now: nothing is added to what the report does after every epoch.
    //   Note: `.every_steps(100, |context, report| ..)`, `.at_step`, `.every_epochs`, `.at_epoch`,
    //         as often as you like; `context` has progress, losses, metrics and the validation, and
    //         `context.stop("why")` ends training; `globals::strategy()?.run_on_all` reaches the
    //         replicas.
    //   Shapes: none.
    Callbacks::<Report>::new()
}

// TODO(callbacks.hooks): Change what goes into a step.
//   Now: batches and predictions stay as they are, and all parameters train.
//   Shapes: those of a batch and of predictions.
/// Prepares a batch for the model, on the device, in training, validation and test.
pub fn prepare_inputs(batch: Batch) -> Result<Batch> {
    Ok(batch)
}

/// Prepares predictions and batch for the losses and metrics.
pub fn prepare_loss_inputs(predictions: Predictions, batch: Batch) -> Result<(Predictions, Batch)> {
    Ok((predictions, batch))
}

/// Whether a parameter, such as `conv1.weight`, is updated at update number `step`, from 1.
///
/// A rule by step alone also holds after a resume.
pub fn is_trainable(_parameter: &str, _step: usize) -> bool {
    true
}
