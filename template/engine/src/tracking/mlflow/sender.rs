//! The thread that sends points of metrics, and the state of the run on the server.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use super::{
    api::{Api, Failure},
    queue::Queue,
};
use crate::console::terminal;

/// The most points in a request of `runs/log-batch`.
const METRICS: usize = 1_000;

/// The most parameters or tags in a request of `runs/log-batch`.
const PARAMETERS: usize = 100;

/// The longest value of a parameter in all versions of MLflow since 1.28, in characters.
const PARAMETER_LEN: usize = 500;

/// The longest value of a tag in all versions of MLflow since 1.28, in characters.
const TAG_LEN: usize = 5_000;

/// The longest name of a metric, parameter or tag, in characters.
const NAME_LEN: usize = 250;

/// The time for a request.
pub const REQUEST: Duration = Duration::from_secs(10);

/// Time between requests, in which points gather.
const INTERVAL: Duration = Duration::from_secs(1);

/// Times between attempts to reach a server that is away.
const FIRST_RETRY: Duration = Duration::from_secs(2);
const LAST_RETRY: Duration = Duration::from_secs(60);

/// Sends points to a run.
pub struct Sender {
    pub api: Api,
    pub run: String,
    /// Parameters and tags of the run.
    pub parameters: Vec<(String, String)>,
    pub tags: Vec<(String, String)>,
    pub queue: Arc<Queue>,
    /// The last step of each metric on the server; `None` if it is to be asked, as after a failure, which may have
    /// been of the response only.
    pub known: Option<HashMap<String, i64>>,
    pub is_warned: bool,
}

impl Sender {
    /// Sends until the queue is closed.
    pub fn run(mut self) {
        let (mut pause, mut retry) = (Duration::ZERO, FIRST_RETRY);
        while let Some(left) = self.queue.wait(pause) {
            match self.send(left.unwrap_or(REQUEST).min(REQUEST)) {
                Ok(is_full) => {
                    pause = if is_full { Duration::ZERO } else { INTERVAL };
                    retry = FIRST_RETRY;
                }
                Err(failure) => {
                    self.known = None;
                    self.warn(&failure);
                    if left.is_some() {
                        return;
                    }
                    pause = retry;
                    retry = (2 * retry).min(LAST_RETRY);
                }
            }
        }
    }

    /// Warns of the first failure.
    pub fn warn(&mut self, failure: &Failure) {
        if !std::mem::replace(&mut self.is_warned, true) {
            terminal::warn(format_args!(
                "warning: MLflow at {}: {failure}\nTraining goes on; metrics are kept in {} until the server takes \
                 them",
                self.api.uri(),
                super::UNSENT
            ));
        }
    }

    /// Sends the first points of the queue, but those that the server has; returns whether there are as many as
    /// a request can have.
    fn send(&mut self, timeout: Duration) -> Result<bool, Failure> {
        if self.known.is_none() {
            self.connect(timeout)?;
        }
        let unreadable =
            |error: std::io::Error| Failure::Unreachable(format!("{}: {error}", super::UNSENT));
        let (lines, bytes) = self.queue.first(METRICS).map_err(unreadable)?;
        let is_full = lines.len() == METRICS;
        let new = lines.iter().filter(|line| self.is_new(&line.json));
        let new: Vec<&str> = new.map(|line| line.text.as_str()).collect();
        if !new.is_empty() {
            let body = format!(
                "{{\"run_id\":{},\"metrics\":[{}]}}",
                json!(self.run),
                new.join(",")
            );
            self.api.post_text("runs/log-batch", body, timeout)?;
        }
        self.queue.remove(bytes).map_err(unreadable)?;
        Ok(is_full)
    }

    /// Whether the server lacks a point, as far as it was asked.
    fn is_new(&self, point: &Value) -> bool {
        let key = point["key"].as_str().unwrap_or_default();
        let last = self.known.as_ref().and_then(|known| known.get(key));
        last.is_none_or(|last| point["step"].as_i64() > Some(*last))
    }

    /// Asks for the last step of each metric, adds parameters and tags that the run lacks, and marks it as running.
    /// Parameters of a run cannot change: another value becomes the tag `resumed.NAME`.
    pub fn connect(&mut self, timeout: Duration) -> Result<(), Failure> {
        let run = self
            .api
            .get("runs/get", &[("run_id", &self.run)], timeout)?;
        let (info, data) = (&run["run"]["info"], &run["run"]["data"]);
        if info["lifecycle_stage"] == "deleted" {
            return Err(Failure::deleted(&self.run));
        }
        let there = values(&data["params"]);
        let mut tags = self.tags.clone();
        let mut new = Vec::new();
        for (name, value) in &self.parameters {
            match there.get(name.as_str()) {
                None => new.push((name.clone(), value.clone())),
                Some(earlier) if earlier == value => {}
                Some(_) => tags.push((key(&format!("resumed.{name}")), value.clone())),
            }
        }
        for (kind, all) in [("params", &new), ("tags", &tags)] {
            for some in all.chunks(PARAMETERS) {
                let some = some
                    .iter()
                    .map(|(key, value)| json!({ "key": key, "value": value }));
                let body = json!({ "run_id": self.run, kind: some.collect::<Vec<_>>() });
                self.api.post("runs/log-batch", &body, timeout)?;
            }
        }
        if info["status"] != "RUNNING" {
            let body = json!({ "run_id": self.run, "status": "RUNNING" });
            self.api.post("runs/update", &body, timeout)?;
        }
        self.known = Some(last_steps(&data["metrics"]));
        Ok(())
    }
}

/// The parameters of a run by name.
fn values(parameters: &Value) -> HashMap<&str, &str> {
    let all = parameters.as_array().into_iter().flatten();
    let all = all.filter_map(|one| Some((one["key"].as_str()?, one["value"].as_str()?)));
    all.collect()
}

/// The last step of each metric of a run.
fn last_steps(metrics: &Value) -> HashMap<String, i64> {
    let all = metrics.as_array().into_iter().flatten();
    let all = all.filter_map(|one| {
        // A step of 0 may be absent, and protobuf's JSON may have integers as text.
        let step = &one["step"];
        let step = step.as_i64().or_else(|| step.as_str()?.parse().ok());
        Some((one["key"].as_str()?.to_owned(), step.unwrap_or_default()))
    });
    all.collect()
}

/// A point of a metric as `runs/log-batch` takes it.
pub fn point(tag: &str, step: usize, value: f64) -> Value {
    json!({
        "key": key(tag),
        "value": number(value),
        "timestamp": milliseconds(),
        "step": step,
    })
}

/// A name with the characters that MLflow allows; `_` for others.
pub fn key(name: &str) -> String {
    let allowed =
        |character: char| match character.is_ascii_alphanumeric() || "_-. /".contains(character) {
            true => character,
            false => '_',
        };
    name.chars().map(allowed).take(NAME_LEN).collect()
}

/// A number in protobuf's JSON, which has texts for what JSON lacks.
fn number(value: f64) -> Value {
    match value {
        value if value.is_nan() => json!("NaN"),
        f64::INFINITY => json!("Infinity"),
        f64::NEG_INFINITY => json!("-Infinity"),
        value => json!(value),
    }
}

/// The value of a parameter, cut to what MLflow takes.
pub fn parameter(value: &Value) -> String {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    cut(&text, PARAMETER_LEN)
}

/// The value of a tag, cut to what MLflow takes.
pub fn tag(value: &str) -> String {
    cut(value, TAG_LEN)
}

fn cut(text: &str, len: usize) -> String {
    match text.chars().count() <= len {
        true => text.to_owned(),
        false => text.chars().take(len - 1).chain(['…']).collect(),
    }
}

/// Milliseconds since 1970.
pub fn milliseconds() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_millis() as u64
}
