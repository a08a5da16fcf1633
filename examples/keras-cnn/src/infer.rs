//! Predictions with a checkpoint: one device, no strategy.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::{module::Module, tensor::Device};
use kiln_engine::{
    checkpoint::Checkpoints,
    data::{Collate, read_idx_file},
    distribute::visible_devices,
    options::Infer,
    report::predictions::predict_files,
};
use serde::Serialize;

use crate::{
    callbacks::prepare_inputs,
    cli::Args,
    dataset::{Batch, Example, Image, prepare},
    globals::Project,
    model::Model,
};

/// Examples that go through the model at once.
const BATCH: usize = 256;

/// Predicts for all files with a checkpoint, and writes the predictions.
///
/// # Errors
/// The checkpoint cannot be used, a file is missing or damaged, or the output cannot be written.
pub fn infer(args: &Args, options: &Infer) -> Result<()> {
    let device = visible_devices().remove(0);
    let checkpoint = Checkpoints::new::<Project>(&args.options).find(&options.checkpoint)?;
    let model = checkpoint
        .load_model(Model::new(args.dropout, &device))?
        .valid();
    let predict = |examples: &[Example]| predict_examples(&model, examples, &device);
    predict_files(options, BATCH, read_inputs, predict)
}

/// Predicts for `examples`, prepared as those of training are.
///
/// # Errors
/// They do not fit together, or the model does not take them.
pub fn predict_examples(
    model: &Model,
    examples: &[Example],
    device: &Device,
) -> Result<Vec<Prediction>> {
    predict(model, Batch::collate(examples.to_vec(), device)?)
}

/// Reads the examples of a file.
///
/// # Errors
/// The file is missing or damaged.
pub fn read_inputs(path: &Path) -> Result<Vec<Example>> {
    let images = read_idx_file::<3>(path)?;
    let [_, height, width] = images.dims;
    ensure!(
        height * width > 0,
        "{} has images of no size",
        path.display()
    );
    let example = |pixels: &[u8]| {
        prepare(Image {
            pixels: pixels.to_vec(),
            height,
            width,
            class: None,
        })
    };
    images
        .values()
        .chunks(height * width)
        .map(example)
        .collect::<Result<_>>()
        .with_context(|| format!("cannot predict for {}", path.display()))
}

/// What is written of one example, beside its file and its place there.
#[derive(Serialize)]
pub struct Prediction {
    pub class: usize,
    /// What the model gives to that class, 0 to 1.
    pub probability: f32,
}

/// Predicts for each example of a batch, in order.
pub fn predict(model: &Model, batch: Batch) -> Result<Vec<Prediction>> {
    // The model ends with softmax; a second one would pull all probabilities together.
    let probabilities = model.forward(&prepare_inputs(batch)?); // [batch, classes]
    let (probability, class) = probabilities.max_dim_with_indices(1); // [batch, 1] each
    let classes = class.into_data();
    let classes = classes.iter::<i64>().map(|class| class as usize);
    let probabilities = probability.into_data();
    let predictions = classes.zip(probabilities.iter::<f32>());
    Ok(predictions
        .map(|(class, probability)| Prediction { class, probability })
        .collect())
}
