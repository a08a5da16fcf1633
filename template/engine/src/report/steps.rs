//! Per-step logging: JSON lines in `steps.jsonl`, TensorBoard scalars, and lines on the terminal if no
//! progress bar is visible, so that the output of a batch job shows progress.

use std::{
    fs::{File, OpenOptions},
    io::{self, IsTerminal, Write},
    mem,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use burn::tensor::Device;
use serde_json::{Map, Value, json};

use super::{
    Report,
    json::json_number,
    throughput::rates::{Rates, Work},
};
use crate::{
    checkpoint::Progress,
    console::{self, terminal},
    globals::{self, LastUpdate, Split},
    loss::Losses,
    performance::memory::Memory,
};

/// Time between lines without `--log-every`.
const INTERVAL: Duration = Duration::from_secs(5);

/// Decides when a line is due, and accumulates statistics since the last one.
pub struct StepLog {
    path: PathBuf,
    file: Option<File>,
    /// Updates between lines; `None` for one line per [`INTERVAL`].
    every: Option<usize>,
    /// Updates in the whole training.
    total: usize,
    /// The devices of this process.
    pub(super) devices: Vec<Device>,
    last_line: Instant,
    /// Work since the last line, excluding the time since `running`.
    pub(super) work: Work,
    /// Start of the interval being timed, within a training epoch; validation is not timed.
    running: Option<Instant>,
    /// The latest known losses; with a parameter server they may lag behind the updates.
    losses: Losses,
}

/// The log entry of an update.
struct Line {
    progress: Progress,
    losses: Losses,
    update: LastUpdate,
    rates: Rates,
    memory: Memory,
}

impl StepLog {
    pub fn new(folder: &Path, every: Option<usize>) -> Self {
        StepLog {
            path: folder.join("steps.jsonl"),
            file: None,
            every,
            total: 0,
            devices: Vec::new(),
            last_line: Instant::now(),
            work: Work::default(),
            running: None,
            losses: Losses::new(),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Sets the number of updates in the whole training.
    pub fn set_total(&mut self, steps: usize) {
        self.total = steps;
    }

    pub fn begin_epoch(&mut self, now: Instant) {
        self.running = Some(now);
    }

    pub fn end_epoch(&mut self, now: Instant) {
        let last = self.take_running(now);
        self.work.time += last;
        self.running = None;
    }

    /// Time since the epoch began or since the last call.
    fn take_running(&mut self, now: Instant) -> Duration {
        let since = self.running.replace(now);
        since.map_or(Duration::ZERO, |since| now - since)
    }

    /// Counts an update; returns whether a line is due.
    fn count(&mut self, step: usize, examples: usize, losses: &Losses, now: Instant) -> bool {
        self.work.examples += examples;
        if !losses.is_empty() {
            self.losses.clone_from(losses);
        }
        match self.every {
            Some(steps) => step.is_multiple_of(steps),
            None => now - self.last_line >= INTERVAL,
        }
    }

    /// The work since the last line, for a line at `now`.
    fn take_work(&mut self, now: Instant) -> Work {
        let last = self.take_running(now);
        self.work.time += last;
        self.last_line = now;
        mem::take(&mut self.work)
    }

    fn append(&mut self, line: &Line) -> Result<()> {
        let cannot = || format!("cannot write {}", self.path.display());
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                let mut options = OpenOptions::new();
                let file = options.create(true).append(true).open(&self.path);
                self.file.insert(file.with_context(cannot)?)
            }
        };
        let text = format!("{}\n", line.json());
        file.write_all(text.as_bytes()).with_context(cannot)
    }
}

impl Line {
    fn json(&self) -> Value {
        let object = |values: &mut dyn Iterator<Item = (&str, f64)>| {
            let values = values.map(|(name, value)| (name.to_owned(), json_number(value)));
            Value::Object(values.collect::<Map<_, _>>())
        };
        let rates = &self.update.learning_rates;
        let mut line = Map::new();
        let fixed = json!({
            "epoch": self.progress.epoch,
            "step": self.progress.step,
            "losses": object(&mut self.losses.iter()),
            "learning_rates": object(&mut rates.iter().copied()),
            "gradient_norm": self.update.gradient_norm.map(json_number),
        });
        if let Value::Object(fixed) = fixed {
            line.extend(fixed);
        }
        self.rates.write(&mut line);
        let memory = self.memory.named();
        line.extend(memory.map(|(name, bytes)| (name.into(), json!(bytes))));
        // Unlike that of GPUs, the memory of the process is in each line, as null if it is unknown.
        line.entry("memory").or_insert(Value::Null);
        Value::Object(line)
    }

    /// The tags and values for TensorBoard.
    fn scalars(&self) -> Vec<(String, f64)> {
        let losses = self.losses.iter();
        let mut scalars: Vec<_> = losses
            .map(|(name, loss)| (format!("step/{name}"), loss))
            .collect();
        let rates = self.update.learning_rates.iter();
        scalars.extend(rates.map(|(name, rate)| (format!("step/learning_rate/{name}"), *rate)));
        let norm = self.update.gradient_norm;
        scalars.extend(norm.map(|norm| ("step/gradient_norm".to_owned(), norm)));
        let rates = self.rates.named().into_iter();
        scalars.extend(rates.map(|(name, rate)| (format!("step/{name}"), rate)));
        let memory = self.memory.named();
        scalars.extend(memory.map(|(name, bytes)| (format!("step/{name}"), bytes as f64)));
        scalars
    }

    /// The fields of the line for the terminal, without the epoch.
    fn fields(&self, total: usize) -> Vec<String> {
        let width = total.to_string().len();
        let mut parts = vec![format!("step {:>width$}/{total}", self.progress.step)];
        let losses = self.losses.iter();
        parts.extend(losses.map(|(name, loss)| format!("{name} {loss:.4}")));
        let rates = self.update.learning_rates.iter();
        let mut rates: Vec<_> = rates.map(|(_, rate)| format!("{rate:.1e}")).collect();
        // Several optimizers often share a schedule.
        rates.dedup();
        parts.push(format!("lr {}", rates.join(", ")));
        let norm = self.update.gradient_norm;
        parts.extend(norm.map(|norm| match (0.01..1e4).contains(&norm) {
            true => format!("|g| {norm:.2}"),
            false => format!("|g| {norm:.1e}"),
        }));
        parts.extend(self.rates.text());
        parts.extend(self.memory.text());
        parts
    }
}

impl Report {
    /// Counts an update on `examples` examples, over all replicas, and logs it if a line is due by
    /// `--log-every` or the clock; returns whether it was. Only then are losses and norms read from a GPU.
    /// With a parameter server, the losses are the latest known ones, and learning rate and gradient norm are
    /// those of the server's last update.
    ///
    /// # Errors
    /// A file cannot be written, or the update failed.
    pub fn update(&mut self, progress: Progress, examples: usize, losses: &Losses) -> Result<bool> {
        let step = progress.step;
        if let Some(current) = &mut self.current {
            current.examples += examples;
        }
        if !self.speaks || !self.steps.count(step, examples, losses, Instant::now()) {
            return Ok(false);
        }
        let losses = self.steps.losses.clone();
        let update = globals::strategy()?.last_update(&losses)?;
        // After the read, which waits for the updates queued on a GPU.
        self.collect_counts()?;
        let work = self.steps.take_work(Instant::now());
        let rates = self.throughput.rates(&work);
        let memory = Memory::now(&self.steps.devices);
        self.rates = rates.text();
        self.memory = memory.text().collect();
        self.show(&losses);
        let line = Line {
            progress,
            losses,
            update,
            rates,
            memory,
        };
        self.steps.append(&line)?;
        for (tag, value) in line.scalars() {
            self.scalar(step, &tag, value)?;
        }
        // The progress bar is on the standard error, and lines are on the standard output.
        if !(io::stderr().is_terminal() && io::stdout().is_terminal()) {
            let head = format!("epoch {}", self.place(Split::Train, progress.epoch));
            let fields = line.fields(self.steps.total);
            self.say(&console::wrap(&head, &[fields], terminal::width()));
        }
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use burn::tensor::Tensor;

    use super::*;
    use crate::performance::memory::DeviceMemory;

    fn losses(loss: f32) -> Losses {
        Losses::new().with("loss", &Tensor::from_floats([loss], &Device::flex()))
    }

    fn line(loss: f32, gradient_norm: Option<f64>) -> Line {
        Line {
            progress: Progress {
                step: 120,
                epoch: 3,
                ..Progress::START
            },
            losses: losses(loss),
            update: LastUpdate {
                gradient_norm,
                learning_rates: vec![("generator", 2e-3), ("discriminator", 2e-3)],
            },
            rates: Rates {
                examples: 5_312.4,
                tokens: None,
                flops: None,
                at_least: false,
                utilisation: None,
                data_wait: 0.03,
            },
            memory: Memory {
                process: Some(96_468_992),
                device: Some(DeviceMemory {
                    reserved: 3_145_728,
                    in_use: 2_000_000,
                }),
            },
        }
    }

    fn rate_of(work: Work) -> f64 {
        work.examples as f64 / work.time.as_secs_f64()
    }

    #[test]
    fn a_line_is_due_every_so_many_updates() {
        let mut log = StepLog::new(Path::new(""), Some(3));
        let now = Instant::now();
        let due = |step: &usize| log.count(*step, 8, &losses(1.0), now);
        assert_eq!((1..=7).filter(due).collect::<Vec<_>>(), [3, 6]);
    }

    #[test]
    fn a_line_is_due_every_few_seconds_by_default() {
        let mut log = StepLog::new(Path::new(""), None);
        let start = log.last_line;
        let due = |seconds: &u64| {
            let now = start + Duration::from_secs(*seconds);
            let is_due = log.count(*seconds as usize, 8, &losses(1.0), now);
            if is_due {
                log.take_work(now);
            }
            is_due
        };
        assert_eq!((1..=14).filter(due).collect::<Vec<_>>(), [5, 10]);
    }

    #[test]
    fn examples_per_second_are_those_since_the_last_line_without_validation() {
        let mut log = StepLog::new(Path::new(""), Some(4));
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        log.begin_epoch(start);
        let mut rate = |step, examples, now| {
            log.count(step, examples, &losses(1.0), now)
                .then(|| rate_of(log.take_work(now)))
        };
        assert_eq!(rate(3, 10, at(1)), None);
        assert_eq!(rate(4, 10, at(2)), Some(10.0));
        assert_eq!(rate(5, 30, at(3)), None);
        log.end_epoch(at(3));
        log.begin_epoch(at(8));
        assert!(log.count(8, 60, &losses(1.0), at(10)));
        assert_eq!(rate_of(log.take_work(at(10))), 30.0);
    }

    #[test]
    fn losses_that_are_not_known_yet_are_those_before() {
        let mut log = StepLog::new(Path::new(""), Some(1));
        let now = Instant::now();
        log.count(1, 8, &losses(0.5), now);
        log.count(2, 8, &Losses::new(), now);
        assert_eq!(log.losses.get("loss"), Some(0.5));
    }

    #[test]
    fn a_line_is_json_also_where_numbers_are_not_finite() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = StepLog::new(folder.path(), None);
        log.append(&line(0.5, None)).unwrap();
        log.append(&line(f32::NAN, Some(f64::INFINITY))).unwrap();
        let text = fs::read_to_string(log.path()).unwrap();
        let lines: Vec<Value> = text
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let expected = json!({
            "epoch": 3,
            "step": 120,
            "losses": { "loss": 0.5 },
            "learning_rates": { "generator": 2e-3, "discriminator": 2e-3 },
            "gradient_norm": null,
            "examples_per_second": 5_312.4,
            "data_wait": 0.03,
            "memory": 96_468_992,
            "device_memory": 3_145_728,
            "device_memory_in_use": 2_000_000,
        });
        assert_eq!(lines[0], expected);
        assert_eq!(lines[1]["losses"]["loss"], "NaN");
        assert_eq!(lines[1]["gradient_norm"], "inf");
    }

    #[test]
    fn a_line_is_short_on_the_terminal() {
        let expected = "step  120/1720  loss 0.1250  lr 2.0e-3  |g| 0.83  5,312 examples/s  92 MiB  \
                        3 MiB on the GPU";
        assert_eq!(line(0.125, Some(0.83)).fields(1_720).join("  "), expected);
        let tags: Vec<_> = line(0.125, None).scalars();
        let tags: Vec<_> = tags.iter().map(|(tag, _)| tag.as_str()).collect();
        let expected = [
            "step/loss",
            "step/learning_rate/generator",
            "step/learning_rate/discriminator",
            "step/examples_per_second",
            "step/data_wait",
            "step/memory",
            "step/device_memory",
            "step/device_memory_in_use",
        ];
        assert_eq!(tags, expected);
    }
}
