//! Predictions of `infer`, as CSV or JSON Lines.

use std::{
    io::{self, BufWriter, Write},
    path::Path,
    slice,
};

use anyhow::{Context, Result, bail};
use burn::{module::Module, tensor::Device};
use ciborium::Value as Cbor;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::{
    checkpoint::Checkpoints,
    console::stdout::stdout,
    data::Collate,
    files::whole_file,
    kernel_cache,
    options::{Format, Infer, Options},
    precision,
    replica::{open_devices, visible_devices},
    task::Task,
};

const CANNOT: &str = "cannot write the predictions";

/// Examples in a batch of [`infer`].
const BATCH: usize = 256;

/// Predicts on one device, without a strategy: loads a checkpoint into the model created by `model`, reads
/// examples from files with `read`, and writes the predictions of `predict` for each batch.
///
/// # Errors
/// The checkpoint cannot be used, a file is missing or damaged, examples of one file do not fit in a batch,
/// or the output cannot be written.
pub fn infer<T: Task, P: Serialize>(
    options: &Options,
    infer: &Infer,
    model: impl FnOnce(&Device) -> T::Model,
    read: impl Fn(&Path) -> Result<Vec<T::Example>>,
    predict: impl Fn(&T::Model, T::Batch) -> Result<Vec<P>>,
) -> Result<()> {
    kernel_cache::keep(options)?;
    let device = visible_devices().remove(0);
    open_devices(slice::from_ref(&device))?;
    precision::begin_inference(options, &device)?;
    kernel_cache::await_first_step(slice::from_ref(&device), true)?;
    let checkpoint = Checkpoints::new::<T>(options).find(&infer.checkpoint)?;
    checkpoint.note_averaged_predictions()?;
    let model = checkpoint.load_model(model(&device))?.valid();
    predict_files(infer, BATCH, read, |examples| {
        let predictions = predict(&model, T::Batch::collate(examples.to_vec(), &device)?);
        kernel_cache::note_first_step();
        predictions
    })
}

/// Reads each file of `options`, predicts for batches of up to `batch` examples, and writes the
/// predictions.
///
/// # Errors
/// The error of `read`, of `predict` with the file, or of [`Predictions::write`].
pub fn predict_files<E, P: Serialize>(
    options: &Infer,
    batch: usize,
    read: impl Fn(&Path) -> Result<Vec<E>>,
    predict: impl Fn(&[E]) -> Result<Vec<P>>,
) -> Result<()> {
    Predictions::write_all(options, |output| {
        for path in &options.files {
            for (number, examples) in read(path)?.chunks(batch).enumerate() {
                let predictions = predict(examples)
                    .with_context(|| format!("cannot predict for {}", path.display()))?;
                output.write(path, number * batch, &predictions)?;
            }
        }
        Ok(())
    })
}

/// A writer of predictions to a file or the standard output, one per row or line.
pub struct Predictions {
    output: Output,
}

enum Output {
    Csv {
        writer: Box<csv::Writer<Box<dyn Write>>>,
        has_header: bool,
    },
    Jsonl(BufWriter<Box<dyn Write>>),
}

impl Predictions {
    /// Calls `predict` with a writer to the output of `options`, in their format. A failure leaves a file
    /// unchanged.
    ///
    /// # Errors
    /// The error of `predict`, or the output cannot be written: the disk is full, or the standard output is
    /// closed or a broken pipe, as after `| head`.
    pub fn write_all(options: &Infer, predict: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let write_to = |output: Box<dyn Write>| {
            let mut predictions = Self::to(output, options.format);
            predict(&mut predictions)?;
            predictions.flush()
        };
        match &options.output {
            None => write_to(Box::new(stdout().context(CANNOT)?)),
            Some(path) => whole_file::write_with(path, write_to),
        }
    }

    fn to(output: Box<dyn Write>, format: Format) -> Self {
        let output = match format {
            Format::Csv => Output::Csv {
                writer: Box::new(csv::Writer::from_writer(output)),
                has_header: false,
            },
            Format::Jsonl => Output::Jsonl(BufWriter::new(output)),
        };
        Predictions { output }
    }

    /// Writes the fields of each prediction after its file and index, which starts at `first`.
    ///
    /// # Errors
    /// A prediction has no fields or is not finite, or the output cannot be written.
    pub fn write(
        &mut self,
        file: &Path,
        first: usize,
        predictions: &[impl Serialize],
    ) -> Result<()> {
        for (index, prediction) in (first..).zip(predictions) {
            let place = || format!("cannot predict for example {index} of {}", file.display());
            ensure_finite(prediction).with_context(place)?;
            let mut row = Map::new();
            row.insert("file".into(), json!(file.display().to_string()));
            row.insert("index".into(), json!(index));
            // By way of text, in which an f32 has the digits that it needs, and not those of an f64.
            match serde_json::from_str(&serde_json::to_string(prediction)?)? {
                Value::Object(fields) => row.extend(fields),
                other => bail!("a prediction must be a struct with named fields, not {other}"),
            }
            self.write_row(&row).context(CANNOT)?;
        }
        Ok(())
    }

    fn write_row(&mut self, row: &Map<String, Value>) -> io::Result<()> {
        match &mut self.output {
            Output::Csv { writer, has_header } => {
                if !*has_header {
                    writer.write_record(row.keys()).map_err(io_error)?;
                    *has_header = true;
                }
                writer
                    .write_record(row.values().map(cell))
                    .map_err(io_error)
            }
            Output::Jsonl(writer) => writeln!(writer, "{}", json!(row)),
        }
    }

    fn flush(&mut self) -> Result<()> {
        let flushed = match &mut self.output {
            Output::Csv { writer, .. } => writer.flush(),
            Output::Jsonl(writer) => writer.flush(),
        };
        flushed.context(CANNOT)
    }
}

/// Checks that every number of a prediction is finite.
///
/// # Errors
/// A number is NaN or infinite, with its field; or the prediction cannot be serialised.
pub fn ensure_finite(prediction: &impl Serialize) -> Result<()> {
    // JSON would have `null`, as for a missing value; CBOR keeps the number.
    let prediction = Cbor::serialized(prediction)?;
    if let Some((field, number)) = not_finite(&prediction) {
        let field = field.trim_start_matches('.');
        bail!("the model's output is not finite: `{field}` is {number}; check the checkpoint");
    }
    Ok(())
}

/// The field and value of the first number that is not finite.
fn not_finite(value: &Cbor) -> Option<(String, f64)> {
    let within = |place: String, value| {
        let (inner, number) = not_finite(value)?;
        Some((place + &inner, number))
    };
    match value {
        Cbor::Float(number) if !number.is_finite() => Some((String::new(), *number)),
        Cbor::Array(items) => {
            let mut items = items.iter().enumerate();
            items.find_map(|(place, item)| within(format!("[{place}]"), item))
        }
        Cbor::Map(fields) => fields
            .iter()
            .find_map(|(name, value)| within(format!(".{}", name.as_text()?), value)),
        _ => None,
    }
}

fn io_error(error: csv::Error) -> io::Error {
    let text = error.to_string();
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        _ => io::Error::other(text),
    }
}

/// A value in CSV: text without quotes, everything else as in JSON.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::{f64, fs, io::ErrorKind};

    use anyhow::ensure;
    use clap::Parser;

    use super::*;
    use crate::{options::Command, test_task::Cli};

    #[derive(Clone, Copy, Serialize)]
    struct Prediction {
        name: &'static str,
        share: f32,
    }

    const PREDICTION: Prediction = Prediction {
        name: "a, b",
        share: 0.1,
    };

    /// The output of predictions for the files `x` and `y`, of 3 examples and 1, in batches of two; an error
    /// if `y` is damaged.
    fn predict(output: &Path, format: &str, y_is_damaged: bool) -> Result<String> {
        let infer = ["test", "infer", "x", "y", "--format", format, "--output"];
        let args = [&infer[..], &[output.to_str().unwrap()]].concat();
        let Some(Command::Infer(options)) = Cli::parse_from(args).command else {
            panic!("another command");
        };
        let read = |path: &Path| match path == Path::new("x") {
            true => Ok(vec![1, 2, 3]),
            false => Ok(vec![if y_is_damaged { 0 } else { 4 }]),
        };
        let predict = |examples: &[i32]| {
            ensure!(examples.len() <= 2 && examples[0] > 0, "it is damaged");
            Ok(vec![PREDICTION; examples.len()])
        };
        predict_files(&options, 2, read, predict)?;
        Ok(fs::read_to_string(output)?)
    }

    #[test]
    fn rows_have_a_header_and_lines_have_names() {
        let folder = tempfile::tempdir().unwrap();
        let written = |format| predict(&folder.path().join("new"), format, false).unwrap();
        let rows = [
            "file,index,name,share",
            "x,0,\"a, b\",0.1",
            "x,1,\"a, b\",0.1",
            "x,2,\"a, b\",0.1",
            "y,0,\"a, b\",0.1",
        ];
        assert_eq!(written("csv").lines().collect::<Vec<_>>(), rows);
        let lines = [("x", 0), ("x", 1), ("x", 2), ("y", 0)].map(|(file, index)| {
            format!("{{\"file\":\"{file}\",\"index\":{index},\"name\":\"a, b\",\"share\":0.1}}")
        });
        assert_eq!(written("jsonl").lines().collect::<Vec<_>>(), lines);
    }

    #[test]
    fn a_failure_leaves_the_file_that_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("predictions.csv");
        fs::write(&output, "of yesterday").unwrap();
        let error = predict(&output, "csv", true).unwrap_err();
        assert_eq!(format!("{error:#}"), "cannot predict for y: it is damaged");
        assert_eq!(fs::read_to_string(&output).unwrap(), "of yesterday");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// Fails like a broken pipe or a full disk.
    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The results of `count` predictions, and of the end after them.
    fn outcomes(kind: ErrorKind, format: Format, count: usize) -> [Result<()>; 2] {
        let mut predictions = Predictions::to(Box::new(Failing(kind)), format);
        let written = predictions.write(Path::new("x"), 0, &vec![PREDICTION; count]);
        [written, predictions.flush()]
    }

    #[test]
    fn a_reader_that_leaves_and_a_full_disk_are_failures() {
        const MORE_THAN_A_BUFFER: usize = 10_000;
        for format in [Format::Csv, Format::Jsonl] {
            for kind in [ErrorKind::BrokenPipe, ErrorKind::StorageFull] {
                let [written, _] = outcomes(kind, format, MORE_THAN_A_BUFFER);
                assert_eq!(written.unwrap_err().to_string(), CANNOT);
                let [written, ended] = outcomes(kind, format, 1);
                written.unwrap();
                assert_eq!(ended.unwrap_err().to_string(), CANNOT);
            }
        }
    }

    /// A prediction with numbers at all depths, and one that may be missing.
    #[derive(Clone, Default, Serialize)]
    struct Nested {
        score: f64,
        maybe: Option<f32>,
        boxes: Vec<Region>,
    }

    #[derive(Clone, Default, Serialize)]
    struct Region {
        corner: (f32, f32),
    }

    #[test]
    fn a_prediction_that_is_not_finite_is_refused_and_one_without_a_value_is_not() {
        let regions = |right| {
            let corner = (0.0, right);
            vec![Region::default(), Region { corner }]
        };
        let damaged = [
            ("`score` is NaN", f64::NAN, None, 0.0),
            ("`score` is -inf", f64::NEG_INFINITY, None, 0.0),
            ("`maybe` is NaN", 0.0, Some(f32::NAN), 0.0),
            ("`boxes[1].corner[1]` is inf", 0.0, None, f32::INFINITY),
        ];
        for format in [Format::Csv, Format::Jsonl] {
            for (message, score, maybe, right) in damaged {
                let boxes = regions(right);
                let bad = Nested {
                    score,
                    maybe,
                    boxes,
                };
                let mut predictions = Predictions::to(Box::new(io::sink()), format);
                let rows = [Nested::default(), bad];
                let error = predictions.write(Path::new("x"), 5, &rows).unwrap_err();
                let expected = format!(
                    "cannot predict for example 6 of x: the model's output is not finite: {message}; \
                     check the checkpoint"
                );
                assert_eq!(format!("{error:#}"), expected);
            }
        }
    }

    #[test]
    fn a_prediction_without_fields_is_refused() {
        let mut predictions = Predictions::to(Box::new(io::sink()), Format::Csv);
        let error = predictions.write(Path::new("x"), 0, &[0.5]).unwrap_err();
        let message = error.to_string();
        assert_eq!(
            message,
            "a prediction must be a struct with named fields, not 0.5"
        );
    }
}
