//! What `infer` writes.

use std::{
    io::{self, BufWriter, ErrorKind, Write},
    path::Path,
};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::whole_file;
use crate::cli::{Format, Infer};

/// Reads each of the files that `options` name, predicts for up to `batch` of its examples at once, and
/// writes the predictions, until nobody reads them any more.
///
/// # Errors
/// That of `read`; that of `predict`, with the file; or the output cannot be written.
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
                if !output.write(path, number * batch, &predictions)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    })
}

/// Predictions on their way to a file or the standard output, one a row or line.
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
    /// Gives `predict` what writes to where `options` say, in their format. A failure leaves a file what it
    /// was.
    ///
    /// # Errors
    /// That of `predict`, or the output cannot be written.
    pub fn write_all(options: &Infer, predict: impl FnOnce(&mut Self) -> Result<()>) -> Result<()> {
        let write_to = |output: Box<dyn Write>| {
            let mut predictions = Self::to(output, options.format);
            predict(&mut predictions)?;
            predictions.flush()
        };
        match &options.output {
            None => write_to(Box::new(io::stdout())),
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

    /// Writes the fields of each prediction after its file and its place there, of which the first one's is
    /// `first`; false where nobody reads any more, as after `| head`, and nothing else need be predicted.
    ///
    /// # Errors
    /// A prediction has no fields, or the output cannot be written.
    pub fn write(
        &mut self,
        file: &Path,
        first: usize,
        predictions: &[impl Serialize],
    ) -> Result<bool> {
        for (place, prediction) in predictions.iter().enumerate() {
            let mut row = Map::new();
            row.insert("file".into(), json!(file.display().to_string()));
            row.insert("index".into(), json!(first + place));
            match serde_json::to_value(prediction)? {
                Value::Object(fields) => row.extend(fields),
                other => bail!("a prediction is no struct with fields, but {other}"),
            }
            if !is_read(self.write_row(&row))? {
                return Ok(false);
            }
        }
        Ok(true)
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
        is_read(flushed).map(drop)
    }
}

fn io_error(error: csv::Error) -> io::Error {
    let text = error.to_string();
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        _ => io::Error::other(text),
    }
}

/// Whether what was written reached someone; false where the reader of a pipe has gone.
fn is_read(written: io::Result<()>) -> Result<bool> {
    match written {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        written => {
            written.context("cannot write the predictions")?;
            Ok(true)
        }
    }
}

/// A value as CSV shows it: text without quotes, everything else as in JSON.
fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use anyhow::ensure;
    use clap::Parser;

    use super::*;
    use crate::cli::{Args, Command};

    #[derive(Clone, Copy, Serialize)]
    struct Prediction {
        name: &'static str,
        share: f32,
    }

    const PREDICTION: Prediction = Prediction {
        name: "a, b",
        share: 0.5,
    };

    /// What predictions for the files `x` and `y`, of 3 examples and 1, are written to `output` as: two at
    /// once, or none where `y` is damaged.
    fn predict(output: &Path, format: &str, y_is_damaged: bool) -> Result<String> {
        let infer = ["test", "infer", "x", "y", "--format", format, "--output"];
        let args = [&infer[..], &[output.to_str().unwrap()]].concat();
        let Some(Command::Infer(options)) = Args::parse_from(args).command else {
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
            "x,0,\"a, b\",0.5",
            "x,1,\"a, b\",0.5",
            "x,2,\"a, b\",0.5",
            "y,0,\"a, b\",0.5",
        ];
        assert_eq!(written("csv").lines().collect::<Vec<_>>(), rows);
        let lines = [("x", 0), ("x", 1), ("x", 2), ("y", 0)].map(|(file, index)| {
            format!("{{\"file\":\"{file}\",\"index\":{index},\"name\":\"a, b\",\"share\":0.5}}")
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

    /// Fails as a pipe that nobody reads, or as a full disk.
    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What comes of so many predictions, and of the end after them.
    fn outcomes(kind: ErrorKind, format: Format, count: usize) -> [Result<bool>; 2] {
        let mut predictions = Predictions::to(Box::new(Failing(kind)), format);
        let written = predictions.write(Path::new("x"), 0, &vec![PREDICTION; count]);
        [written, predictions.flush().map(|()| true)]
    }

    #[test]
    fn a_reader_that_leaves_is_no_failure_and_a_full_disk_is_one() {
        const MORE_THAN_A_BUFFER: usize = 10_000;
        for format in [Format::Csv, Format::Jsonl] {
            let [written, ended] = outcomes(ErrorKind::BrokenPipe, format, MORE_THAN_A_BUFFER);
            assert!(!written.unwrap() && ended.unwrap());
            let [written, ended] = outcomes(ErrorKind::BrokenPipe, format, 1);
            assert!(written.unwrap() && ended.unwrap());
            let [written, _] = outcomes(ErrorKind::StorageFull, format, MORE_THAN_A_BUFFER);
            let error = written.unwrap_err().to_string();
            assert_eq!(error, "cannot write the predictions");
            let [written, ended] = outcomes(ErrorKind::StorageFull, format, 1);
            assert!(written.unwrap() && ended.is_err());
        }
    }

    #[test]
    fn a_prediction_without_fields_is_refused() {
        let mut predictions = Predictions::to(Box::new(io::sink()), Format::Csv);
        let error = predictions.write(Path::new("x"), 0, &[0.5]).unwrap_err();
        let message = error.to_string();
        assert_eq!(message, "a prediction is no struct with fields, but 0.5");
    }
}
