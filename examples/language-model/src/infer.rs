//! How well a checkpoint predicts a text: one device, no strategy.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use burn::{module::Module, tensor::Device};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    callbacks::prepare_inputs,
    checkpoint::Checkpoints,
    cli::{Args, Format, Infer},
    data::{Collate, Dataset},
    dataset::{Batch, Example, Windows, read_text},
    distribute::visible_devices,
    loss::create_loss_objects,
    model::Model,
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
    let mut writer = Writer::new(options)?;
    for path in &options.files {
        let inputs = cut(read_inputs(path)?, model.context())
            .with_context(|| format!("cannot score {}", path.display()))?;
        for (number, examples) in inputs.chunks(BATCH).enumerate() {
            let predictions = predict_examples(&model, examples, &device)
                .with_context(|| format!("cannot score {}", path.display()))?;
            for (place, prediction) in predictions.iter().enumerate() {
                writer.write(path, number * BATCH + place, prediction)?;
            }
        }
    }
    writer.finish()
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

/// Writes predictions to a file or the standard output.
enum Writer {
    Csv {
        writer: Box<csv::Writer<Box<dyn Write>>>,
        has_header: bool,
    },
    Jsonl(BufWriter<Box<dyn Write>>),
}

impl Writer {
    fn new(options: &Infer) -> Result<Self> {
        let output: Box<dyn Write> = match &options.output {
            None => Box::new(io::stdout()),
            Some(path) => {
                let file = File::create(path);
                Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
            }
        };
        Ok(match options.format {
            Format::Csv => Writer::Csv {
                writer: Box::new(csv::Writer::from_writer(output)),
                has_header: false,
            },
            Format::Jsonl => Writer::Jsonl(BufWriter::new(output)),
        })
    }

    fn write(&mut self, file: &Path, index: usize, prediction: &Prediction) -> Result<()> {
        let mut row = Map::new();
        row.insert("file".into(), json!(file.display().to_string()));
        row.insert("index".into(), json!(index));
        if let Value::Object(fields) = serde_json::to_value(prediction)? {
            row.extend(fields);
        }
        match self {
            Writer::Csv { writer, has_header } => {
                if !*has_header {
                    writer.write_record(row.keys())?;
                    *has_header = true;
                }
                writer.write_record(row.values().map(cell))?;
            }
            Writer::Jsonl(writer) => writeln!(writer, "{}", Value::Object(row))?,
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        match self {
            Writer::Csv { mut writer, .. } => writer.flush(),
            Writer::Jsonl(mut writer) => writer.flush(),
        }
        .context("cannot write the predictions")
    }
}

/// A value as CSV shows it: text without quotes, everything else as in JSON.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
