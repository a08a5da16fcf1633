//! `metrics.jsonl`: a JSON object a line, for programs.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use super::whole_file;
use crate::{distribute::MergedMetric, globals::Split};

/// Makes the output folder and gives the path of its log.
pub fn prepare(folder: &Path) -> Result<PathBuf> {
    let cannot = || format!("cannot make the output folder {}", folder.display());
    fs::create_dir_all(folder).with_context(cannot)?;
    Ok(folder.join("metrics.jsonl"))
}

/// Renames an older log to `metrics.1.jsonl`, or the next number that is free.
pub fn rotate(log: &Path) -> Result<()> {
    if !log.exists() {
        return Ok(());
    }
    let numbered = |number: usize| log.with_file_name(format!("metrics.{number}.jsonl"));
    let free = (1..).map(numbered).find(|path| !path.exists());
    let free = free.context("no number is free for the older log")?;
    fs::rename(log, &free).with_context(|| format!("cannot rename {}", log.display()))
}

/// Leaves out the lines of `epoch` and later ones: they are written again.
pub fn cut(log: &Path, epoch: usize) -> Result<()> {
    if !log.exists() {
        return Ok(());
    }
    let cannot = || format!("cannot go on with {}", log.display());
    let text = fs::read_to_string(log).with_context(cannot)?;
    let is_before = |line: &&str| {
        // A kill may have cut the last line off.
        let line: Option<Value> = serde_json::from_str(line).ok();
        let at = line.and_then(|line| line["epoch"].as_u64());
        at.is_some_and(|at| at < epoch as u64)
    };
    let kept: Vec<&str> = text.lines().filter(is_before).collect();
    let text = kept
        .iter()
        .fold(String::new(), |text, line| text + line + "\n");
    whole_file::write(log, text)
}

/// What is said of a split.
pub struct Line<'a> {
    pub split: Split,
    pub epoch: usize,
    pub step: usize,
    pub metrics: &'a [MergedMetric],
    pub seconds: f64,
    /// Of these, those in which the replicas waited for batches, or read examples themselves, in the mean.
    pub data_seconds: f64,
}

/// Appends the line of a split.
pub fn append(log: &Path, line: &Line) -> Result<()> {
    let mut object = Map::new();
    object.insert("split".into(), json!(line.split.name()));
    object.insert("epoch".into(), json!(line.epoch));
    object.insert("step".into(), json!(line.step));
    let examples = line.metrics.first().map_or(0, |metric| metric.examples);
    object.insert("examples".into(), json!(examples));
    for metric in line.metrics {
        object.insert(metric.name.clone(), json!(metric.value));
    }
    object.insert("seconds".into(), json!(line.seconds));
    object.insert("data_seconds".into(), json!(line.data_seconds));
    let text = format!("{}\n", Value::Object(object));
    let file = OpenOptions::new().create(true).append(true).open(log);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("cannot write {}", log.display()))
}
