//! Inference with a checkpoint, on one device, without a strategy.

use std::path::Path;

use anyhow::{Result, ensure};
use burn::tensor::activation::softmax;
use kiln_engine::{data::read_idx_file, options::Infer, report::predictions};
use serde::Serialize;

use crate::{
    callbacks::prepare_inputs,
    cli::Args,
    dataset::{Batch, Example},
    globals::Project,
    model::Model,
};

/// Predicts for all files with a checkpoint, and writes the predictions.
///
/// # Errors
/// The checkpoint cannot be used, a file is missing or damaged, or the output cannot be written.
pub fn infer(args: &Args, options: &Infer) -> Result<()> {
    predictions::infer::<Project, _>(&args.options, options, Model::new, read_inputs, predict)
}

// TODO(infer.inputs): Read the inputs of inference.
//   Now: images in IDX format.
//   Shapes: an image [height, width] per example.
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
    let pixels = images.values().chunks(height * width);
    // The label is unknown and unused.
    let examples = pixels.map(|pixels| Example::new(pixels, [height, width], 0));
    Ok(examples.collect())
}

// TODO(infer.predict): Convert the outputs of the model to predictions.
//   Now: the most probable class, and its probability.
//   Shapes: logits [batch, classes] in, one prediction per example out.
/// The output for one example, in addition to its file and index.
#[derive(Serialize)]
pub struct Prediction {
    pub class: usize,
    /// Probability of that class, 0 to 1.
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
