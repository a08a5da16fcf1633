//! Predictions with a checkpoint: one device, no strategy.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

use anyhow::{Context, Result, ensure};
use burn::{
    module::Module,
    tensor::{Device, Tensor},
};
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    callbacks::prepare_inputs,
    checkpoint::Checkpoints,
    cli::{Args, Format, Infer},
    data::{Collate, read_idx_file},
    dataset::{Batch, Example, Image, prepare},
    distribute::visible_devices,
    model::Model,
};

/// Examples that go through the model at once.
const BATCH: usize = 256;

/// What is written of one example, beside its file and its place there.
#[derive(Serialize)]
pub struct Prediction {
    pub class: usize,
    /// What the model gives to that class, 0 to 1.
    pub probability: f32,
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

/// Predicts for each example of a batch, in order.
pub fn predict(model: &Model, batch: Batch) -> Result<Vec<Prediction>> {
    // The model ends with softmax; a second one would pull all probabilities together.
    let probabilities = model.forward(prepare_inputs(batch)?.features); // [batch, classes]
    let (probability, class) = probabilities.max_dim_with_indices(1); // [batch, 1] each
    let classes = class.into_data();
    let classes = classes.iter::<i64>().map(|class| class as usize);
    let predictions = classes.zip(values(probability));
    Ok(predictions
        .map(|(class, probability)| Prediction { class, probability })
        .collect())
}

/// Predicts for all files with a checkpoint, and writes the predictions.
///
/// # Errors
/// The checkpoint cannot be used, a file is missing or damaged, or the output cannot be written.
pub fn infer(args: &Args, options: &Infer) -> Result<()> {
    let device = visible_devices().remove(0);
    let checkpoint = Checkpoints::new(args).find(&options.checkpoint)?;
    let model = checkpoint
        .load_model(Model::new(args.dropout, &device))?
        .valid();
    let mut writer = Writer::new(options)?;
    for path in &options.files {
        let inputs = read_inputs(path)?;
        for (number, examples) in inputs.chunks(BATCH).enumerate() {
            let predictions = predict_examples(&model, examples, &device)
                .with_context(|| format!("cannot predict for {}", path.display()))?;
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

fn values(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
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
