//! Callbacks and hooks of training.

use anyhow::Result;
use burn::module::Module;
use kiln_engine::{report::Report, training::Callbacks};

use crate::{
    cli::Args,
    dataset::Batch,
    globals,
    infer::sample::{Settings, sample},
    model::Predictions,
};

/// Epochs between two samples of what the model writes.
const EPOCHS_A_SAMPLE: usize = 5;

/// Creates the callbacks, which run on the main thread after steps and epochs.
pub fn create_callbacks(args: &Args) -> Callbacks<Report> {
    let seed = args.options.seed;
    Callbacks::new().every_epochs(EPOCHS_A_SAMPLE, move |_, report: &mut Report| {
        let text = globals::strategy()?.run_on_first(move |replica| {
            let device = replica.device().clone().without_autodiff();
            let settings = Settings {
                length: 100,
                temperature: 0.8,
                seed,
            };
            sample(&globals::model()?.valid(), b"\n", settings, &device)
        })?;
        report.say(&format!(
            "sample: {}",
            String::from_utf8_lossy(&text).escape_debug()
        ));
        Ok(())
    })
}

/// Prepares a batch for the model, on the device, in training, validation and test.
pub fn prepare_inputs(batch: Batch) -> Result<Batch> {
    Ok(batch)
}

/// Prepares predictions and batch for the losses and metrics.
pub fn prepare_loss_inputs(predictions: Predictions, batch: Batch) -> Result<(Predictions, Batch)> {
    Ok((predictions, batch))
}

/// Whether a parameter, such as `head.weight`, is updated at update number `step`, from 1.
///
/// A rule by step alone also holds after a resume.
pub fn is_trainable(_parameter: &str, _step: usize) -> bool {
    true
}
