//! Where the training loop meets the callbacks of `src/train_callbacks.rs`.

use anyhow::Result;
use kiln_engine::{report::Report, training::Callbacks};

use crate::{
    cli::Args, dataset::Batch, digits::CALLBACKS, model::Predictions,
    train_callbacks::TrainCallbacks,
};

/// Creates the callbacks, which run on the main thread after steps and epochs.
pub fn create_callbacks(_args: &Args) -> Callbacks<Report> {
    schedule(&CALLBACKS)
}

/// What `task` wants to be called after steps.
pub fn schedule(task: &impl TrainCallbacks) -> Callbacks<Report> {
    let mut callbacks = Callbacks::new();
    for (steps, callback) in task.every_steps() {
        callbacks = callbacks.every_steps(steps, callback);
    }
    for (step, callback) in task.at_step() {
        callbacks = callbacks.at_step(step, callback);
    }
    callbacks
}

/// Prepares a batch for the model, on the device, in training, validation and test.
pub fn prepare_inputs(batch: Batch) -> Result<Batch> {
    let features = CALLBACKS.input_pre(&batch)?;
    Ok(Batch { features, ..batch })
}

/// Prepares predictions and batch for the losses and metrics.
pub fn prepare_loss_inputs(predictions: Predictions, batch: Batch) -> Result<(Predictions, Batch)> {
    let (predictions, labels) = CALLBACKS.loss_pre(predictions, &batch)?;
    Ok((predictions, Batch { labels, ..batch }))
}

/// Whether a parameter, such as `conv1.weight`, is updated at update number `step`, from 1.
///
/// A rule by step alone also holds after a resume.
pub fn is_trainable(parameter: &str, step: usize) -> bool {
    CALLBACKS.trainable_vars(parameter, step)
}
