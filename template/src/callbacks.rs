//! Callbacks and hooks of training.

use anyhow::Result;
use kiln_engine::{report::Report, training::Callbacks};

use crate::{cli::Args, dataset::Batch, model::Predictions};

/// Creates the callbacks, which run on the main thread after steps and epochs.
pub fn create_callbacks(_args: &Args) -> Callbacks<Report> {
    // TODO(callbacks.schedule): Add callbacks after steps or epochs.
    //   Now: no callbacks; the report needs none.
    //   Note: `.every_steps(100, |context, report| ..)`, `.at_step`, `.every_epochs`, `.at_epoch`,
    //         any number of each; `context` has progress, losses, metrics and validation metrics,
    //         `context.stop("why")` ends training, and `globals::strategy()?.run_on_all` runs a
    //         function on the replicas.
    //   Shapes: none.
    Callbacks::<Report>::new()
}

// TODO(callbacks.hooks): Transform the inputs of a step; choose the parameters to update.
//   Now: batches and predictions stay as they are, and all parameters train.
//   Shapes: those of a batch and of predictions.
/// Prepares a batch on the device of the model, in training, validation, test and inference.
pub fn prepare_inputs(batch: Batch) -> Result<Batch> {
    Ok(batch)
}

/// Prepares predictions and batch for the losses and metrics.
pub fn prepare_loss_inputs(predictions: Predictions, batch: Batch) -> Result<(Predictions, Batch)> {
    Ok((predictions, batch))
}

/// Whether a parameter, such as `conv1.weight`, is updated at update number `step`, from 1.
///
/// A rule by name and step alone also holds after a resume.
pub fn is_trainable(_parameter: &str, _step: usize) -> bool {
    true
}
