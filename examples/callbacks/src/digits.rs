//! The task of this project: handwritten digits. What is not here is a standard callback.

use std::{path::PathBuf, sync::Arc};

use anyhow::Result;
use burn::tensor::Device;
use kiln_engine::{
    data::LabelledImages, globals::weights_and_gradients, loss::SparseCategoricalCrossentropy,
    report::Report, training::CallbackContext,
};

use crate::{
    cli::Args,
    dataset::{CLASSES, Example, Examples},
    globals::{self, Project},
    loss::LossObjects,
    model::Model,
    stratified::Stratified,
    train_callbacks::{StepCallback, TrainCallbacks, standard_every_steps},
};

/// The callbacks that this project trains with.
pub const CALLBACKS: Digits = Digits;

/// The layer that is frozen.
pub const FROZEN: &str = "conv1";

/// The last update that changes the layer. A constant and no option: a resumed training cannot be
/// given another one by mistake.
pub const FREEZE_AFTER: usize = 200;

/// Digits, in batches that all have the same mix of classes.
pub struct Digits;

impl TrainCallbacks for Digits {
    fn create_dataset(&self, args: &Args) -> Result<(Examples, Examples)> {
        let own = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data"));
        let folder = args.options.data_dir.clone().unwrap_or_else(own);
        let read = |prefix| LabelledImages::read(&folder, prefix, CLASSES, Example::new);
        Ok((Arc::new(read("train")?), Arc::new(read("t10k")?)))
    }

    fn make_batches(&self, dataset: Examples, seed: u64) -> Result<Examples> {
        Ok(Arc::new(Stratified::new(dataset, seed)?))
    }

    fn create_model(&self, device: &Device) -> Model {
        Model::new(device)
    }

    fn create_loss(&self) -> LossObjects {
        LossObjects {
            cross_entropy: SparseCategoricalCrossentropy::new(),
        }
    }

    fn every_steps(&self) -> Vec<(usize, StepCallback)> {
        let mut callbacks = standard_every_steps();
        // A second one after every tenth step, where the original would lose the first.
        callbacks.push((10, Box::new(draw_gradient_norm)));
        callbacks
    }

    fn at_step(&self) -> Vec<(usize, StepCallback)> {
        vec![(FREEZE_AFTER, Box::new(tell_of_freezing))]
    }

    fn trainable_vars(&self, parameter: &str, step: usize) -> bool {
        let layer = parameter.split('.').next();
        layer != Some(FROZEN) || step <= FREEZE_AFTER
    }
}

fn tell_of_freezing(_context: &CallbackContext, report: &mut Report) -> Result<()> {
    report.say(&format!("{FROZEN} stays as it is from here on"));
    Ok(())
}

/// The norm of the gradients for display, in TensorBoard.
fn draw_gradient_norm(context: &CallbackContext, report: &mut Report) -> Result<()> {
    let strategy = globals::strategy()?;
    let values = strategy.run_on_first(|_| weights_and_gradients::<Project>())?;
    let gradients = values
        .iter()
        .filter(|(tag, _)| tag.starts_with("gradients/"));
    let squares =
        gradients.flat_map(|(_, values)| values.iter().map(|value| f64::from(*value).powi(2)));
    report.scalar(
        context.progress.step,
        "callbacks/gradient_norm",
        squares.sum::<f64>().sqrt(),
    )
}
