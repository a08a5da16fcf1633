//! Machine-readable logs in JSON Lines format; `metrics.jsonl` has one line per epoch and split.

use std::{
    fs::{self, OpenOptions},
    io::{ErrorKind, Write},
    path::Path,
};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::throughput::rates::Rates;
use crate::{files::whole_file, globals::Split, metric::MergedMetric};

/// File name of the metrics log in the output folder.
pub const NAME: &str = "metrics.jsonl";

/// Truncates a log for a resume: removes the lines whose `key`, such as `epoch`, is `first` or more, which
/// the resumed run writes again.
///
/// # Errors
/// The log cannot be read or written.
pub fn cut(log: &Path, key: &str, first: usize) -> Result<()> {
    let text = match fs::read_to_string(log) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        text => text.with_context(|| format!("cannot resume {}", log.display()))?,
    };
    let is_before = |line: &&str| {
        // A kill may have cut the last line off.
        let line: Option<Value> = serde_json::from_str(line).ok();
        let at = line.and_then(|line| line[key].as_u64());
        at.is_some_and(|at| at < first as u64)
    };
    let kept: Vec<&str> = text.lines().filter(is_before).collect();
    let text = kept
        .iter()
        .fold(String::new(), |text, line| text + line + "\n");
    whole_file::write(log, text)
}

/// A line of the metrics log.
pub(super) struct Line<'a> {
    pub split: Split,
    pub epoch: usize,
    pub step: usize,
    /// Whether the metrics are of averaged weights.
    pub averaged: bool,
    pub metrics: &'a [MergedMetric],
    pub seconds: f64,
    /// The part of `seconds` spent waiting for batches or reading examples, averaged over replicas.
    pub data_seconds: f64,
    /// The time that training waited for checkpoints since the line before of the same split; `None` for other
    /// splits.
    pub checkpoint_seconds: Option<f64>,
    /// The throughput, with `--throughput`.
    pub rates: Option<&'a Rates>,
}

/// Appends a line to the metrics log.
///
/// # Errors
/// The log cannot be written.
pub(super) fn append(log: &Path, line: &Line) -> Result<()> {
    let mut object = Map::new();
    object.insert("split".into(), json!(line.split.name()));
    object.insert("epoch".into(), json!(line.epoch));
    object.insert("step".into(), json!(line.step));
    let examples = line.metrics.first().map_or(0, |metric| metric.examples);
    object.insert("examples".into(), json!(examples));
    if line.averaged {
        object.insert("weights".into(), json!("ema"));
    }
    for metric in line.metrics {
        object.insert(metric.name.clone(), json!(metric.value));
    }
    object.insert("seconds".into(), json!(line.seconds));
    object.insert("data_seconds".into(), json!(line.data_seconds));
    if let Some(seconds) = line.checkpoint_seconds {
        object.insert("checkpoint_seconds".into(), json!(seconds));
    }
    if let Some(rates) = line.rates {
        rates.write(&mut object);
    }
    let text = format!("{}\n", Value::Object(object));
    let file = OpenOptions::new().create(true).append(true).open(log);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", log.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_written_again_and_half_a_line_are_cut() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("steps.jsonl");
        cut(&log, "step", 1).unwrap();
        let kept = "{\"epoch\":1,\"step\":2}\n{\"epoch\":2,\"step\":4}\n";
        fs::write(&log, format!("{kept}{{\"epoch\":2,\"step\":5}}\n{{\"ep")).unwrap();
        cut(&log, "step", 5).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), kept);
    }
}
