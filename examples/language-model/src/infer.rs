//! How well a checkpoint predicts a text: one device, no strategy.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::{module::Module, tensor::Device};
use serde::Serialize;

use crate::{
    callbacks::prepare_inputs,
    checkpoint::Checkpoints,
    cli::{Args, Infer},
    data::{Collate, Dataset},
    dataset::{Batch, Example, Windows, read_text},
    distribute::visible_devices,
    loss::create_loss_objects,
    model::Model,
    report::predictions::predict_files,
};

/// Examples that go through the model at once.
const BATCH: usize = 64;

/// What is written of one example, beside its file and its place there.
#[derive(Serialize)]
pub struct Prediction {
    /// The mean over the bytes of the example, in nats.
    pub loss: f32,
    pub perplexity: f32,
}

/// Reads the text of a file.
///
/// # Errors
/// The file cannot be read.
pub fn read_inputs(path: &Path) -> Result<Vec<u8>> {
    read_text(path)
}

/// Cuts a text into examples; what is left of it is too short for one.
///
/// # Errors
/// It is shorter than an example.
pub fn cut(text: Vec<u8>, context: usize) -> Result<Vec<Example>> {
    let windows = Windows { text, context };
    ensure!(
        !windows.is_empty(),
        "it has fewer than the {} bytes of an example",
        context + 1
    );
    (0..windows.len()).map(|index| windows.get(index)).collect()
}

/// Scores each example of a batch, in order.
pub fn predict(model: &Model, batch: Batch) -> Result<Vec<Prediction>> {
    let batch = prepare_inputs(batch)?;
    let logits = model.forward(batch.features); // [batch, context, 256]
    let cross_entropy = create_loss_objects().cross_entropy;
    let losses = cross_entropy.forward(logits, batch.labels).into_data(); // [batch]
    let predictions = losses.iter::<f32>().map(|loss| Prediction {
        loss,
        perplexity: loss.exp(),
    });
    Ok(predictions.collect())
}

/// Scores all files with a checkpoint, and writes the scores.
///
/// # Errors
/// The checkpoint cannot be used, a file is missing or damaged, or the output cannot be written.
pub fn infer(args: &Args, options: &Infer) -> Result<()> {
    let device = visible_devices().remove(0);
    let checkpoint = Checkpoints::new(args).find(&options.checkpoint)?;
    let model = checkpoint.load_model(Model::new(args, &device)?)?.valid();
    let read = |path: &Path| {
        cut(read_inputs(path)?, model.context())
            .with_context(|| format!("cannot predict for {}", path.display()))
    };
    let predict = |examples: &[Example]| predict_examples(&model, examples, &device);
    predict_files(options, BATCH, read, predict)
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
