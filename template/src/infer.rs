//! Predictions with a checkpoint: one device, no strategy.

use std::path::Path;

use anyhow::{Result, ensure};
use burn::{
    module::Module,
    tensor::{Device, activation::softmax},
};
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
    dataset::{Batch, Example},
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
    let model = checkpoint.load_model(Model::new(&device))?.valid();
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

// TODO(infer.inputs): Read what to predict.
//   Now: images in IDX format.
//   Shapes: an image [height, width] an example.
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
    let example = |pixels: &[u8]| Example {
        pixels: pixels.to_vec(),
        height,
        width,
        // Not known, and not looked at.
        label: 0,
    };
    Ok(images
        .values()
        .chunks(height * width)
        .map(example)
        .collect())
}

// TODO(infer.predict): Say what the predictions of the model mean.
//   Now: the most probable class, and its probability.
//   Shapes: logits [batch, classes] in, a prediction an example out.
/// What is written of one example, beside its file and its place there.
#[derive(Serialize)]
pub struct Prediction {
    pub class: usize,
    /// What the model gives to that class, 0 to 1.
    pub probability: f32,
}

/// Predicts for each example of a batch, in order.
pub fn predict(model: &Model, batch: Batch) -> Result<Vec<Prediction>> {
    let logits = model.forward(&prepare_inputs(batch)?); // [batch, classes]
    let (probability, class) = softmax(logits, 1).max_dim_with_indices(1); // [batch, 1] each
    let classes = class.into_data();
    let classes = classes.iter::<i64>().map(|class| class as usize);
    let probabilities = probability.into_data();
    let predictions = classes.zip(probabilities.iter::<f32>());
    Ok(predictions
        .map(|(class, probability)| Prediction { class, probability })
        .collect())
}
