//! Perplexity of a checkpoint on a text: one device, no strategy.

pub mod sample;

use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::{module::Module, tensor::Device};
use kiln_engine::{
    checkpoint::{Checkpoints, Which},
    data::{Collate, Dataset},
    options::Infer,
    precision::begin_inference,
    replica::visible_devices,
    report::predictions::predict_files,
};
use serde::Serialize;

use crate::{
    callbacks::prepare_inputs,
    cli::{Args, Use},
    dataset::{Batch, Example, Windows, read_text},
    globals::Project,
    loss::create_loss_objects,
    model::Model,
};
use sample::write_sample;

/// Examples that go through the model at once.
const BATCH: usize = 64;

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

/// The output for one example, in addition to its file and index.
#[derive(Serialize)]
pub struct Prediction {
    /// The mean over the bytes of the example, in nats.
    pub loss: f32,
    pub perplexity: f32,
}

/// Scores each example of a batch, in order.
pub fn predict(model: &Model, batch: Batch) -> Result<Vec<Prediction>> {
    let batch = prepare_inputs(batch)?;
    let logits = model.forward(&batch); // [batch, context, 256]
    let cross_entropy = create_loss_objects().cross_entropy;
    let losses = cross_entropy.forward(logits, batch.labels)?.into_data(); // [batch]
    let predictions = losses.iter::<f32>().map(|loss| Prediction {
        loss,
        perplexity: loss.exp(),
    });
    Ok(predictions.collect())
}

/// Scores files, or writes text.
///
/// # Errors
/// Those of [`score`] and [`write_sample`].
pub fn infer(args: &Args, options: &Use) -> Result<()> {
    match options {
        Use::Infer(options) => score(args, options),
        Use::Sample(options) => write_sample(args, options),
    }
}

/// The model of a checkpoint on the first device, and the device.
///
/// # Errors
/// The checkpoint cannot be used.
fn load_model(args: &Args, checkpoint: &Which) -> Result<(Model, Device)> {
    let device = visible_devices().remove(0);
    begin_inference(&args.options, &device)?;
    let checkpoint = Checkpoints::new::<Project>(&args.options).find(checkpoint)?;
    let model = checkpoint.load_model(Model::new(args, &device))?;
    Ok((model.valid(), device))
}

/// Scores all files with a checkpoint, and writes the scores.
///
/// # Errors
/// The checkpoint cannot be used, a file is missing or damaged, or the output cannot be written.
pub fn score(args: &Args, options: &Infer) -> Result<()> {
    let (model, device) = load_model(args, &options.checkpoint)?;
    let read = |path: &Path| {
        cut(read_inputs(path)?, model.context())
            .with_context(|| format!("cannot predict for {}", path.display()))
    };
    predict_files(options, BATCH, read, |examples| {
        predict(&model, Batch::collate(examples.to_vec(), &device)?)
    })
}
