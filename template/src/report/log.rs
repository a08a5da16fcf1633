//! `metrics.jsonl`: a JSON object a line, for programs.

use std::{
    fs::{self, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Map, Value, json};

use crate::{
    distribute::{Mean, Metric},
    globals::Split,
};

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

/// Appends the line of a split.
pub fn append(
    log: &Path,
    split: Split,
    epoch: usize,
    step: usize,
    metrics: &[Mean],
    seconds: f64,
) -> Result<()> {
    let mut line = Map::new();
    line.insert("split".into(), json!(split.name()));
    line.insert("epoch".into(), json!(epoch));
    line.insert("step".into(), json!(step));
    line.insert(
        "examples".into(),
        json!(metrics.first().map_or(0, Metric::count)),
    );
    for metric in metrics {
        line.insert(metric.name().into(), json!(metric.result()));
    }
    line.insert("seconds".into(), json!(seconds));
    let line = format!("{}\n", Value::Object(line));
    let file = OpenOptions::new().create(true).append(true).open(log);
    file.and_then(|mut file| file.write_all(line.as_bytes()))
        .with_context(|| format!("cannot write {}", log.display()))
}
