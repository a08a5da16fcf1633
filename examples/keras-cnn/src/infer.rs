//! Predictions with a checkpoint: one device, no strategy.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::tensor::Device;
use kiln_engine::{data::read_idx_file, options::Infer, report::predictions};
use serde::Serialize;

use crate::{
    callbacks::prepare_inputs,
    cli::Args,
    dataset::{Batch, Example, Image, prepare},
    globals::Project,
    model::Model,
};

/// Predicts for all files with a checkpoint, and writes the predictions.
///
/// # Errors
/// The checkpoint cannot be used, a file is missing or damaged, or the output cannot be written.
pub fn infer(args: &Args, options: &Infer) -> Result<()> {
    let model = |device: &Device| Model::new(args.dropout, device);
    predictions::infer::<Project, _>(&args.options, options, model, read_inputs, predict)
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

/// The output for one example, in addition to its file and index.
#[derive(Serialize)]
pub struct Prediction {
    pub class: usize,
    /// Probability of that class, 0 to 1.
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
