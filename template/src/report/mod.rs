//! What a run tells: progress bars on a terminal, a line an epoch, and a log for programs.

pub mod curves;
mod log;
pub mod picture;
pub mod profile;
pub mod summary;
pub mod tensorboard;

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Result;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{
    cli::Args,
    distribute::{Losses, MergedMetric},
    globals::Split,
};

const BAR: &str = "{prefix:>16} {bar:30} {pos}/{len}  {per_sec}  {eta} left  {msg}";

/// Reports a run on the terminal and in `metrics.jsonl`.
pub struct Report {
    log: PathBuf,
    epochs: usize,
    current: Option<Current>,
    line: String,
}

/// The split that runs now.
struct Current {
    split: Split,
    epoch: usize,
    started: Instant,
    bar: ProgressBar,
    /// For batches, while replicas had nothing to do.
    waited: Duration,
}

impl Report {
    /// # Errors
    /// The output folder cannot be made.
    pub fn new(args: &Args) -> Result<Self> {
        let log = log::prepare(&args.output_dir)?;
        Ok(Report {
            log,
            epochs: args.epochs,
            current: None,
            line: String::new(),
        })
    }

    /// Begins a log of its own for this training; an older one is kept under another name.
    ///
    /// # Errors
    /// The older log cannot be renamed.
    pub fn start_training(&mut self) -> Result<()> {
        log::rotate(&self.log)
    }

    /// Goes on with the log of a training that is resumed in `epoch`.
    ///
    /// # Errors
    /// The log cannot be read or written.
    pub fn resume_training(&mut self, epoch: usize) -> Result<()> {
        log::cut(&self.log, epoch)
    }

    /// Waits for the next batch with `next`, and counts the time.
    pub fn wait_for<T>(&mut self, next: impl FnOnce() -> T) -> T {
        let started = Instant::now();
        let batch = next();
        if let Some(current) = &mut self.current {
            current.waited += started.elapsed();
        }
        batch
    }

    /// Begins a split of `steps` steps.
    pub fn begin(&mut self, split: Split, epoch: usize, steps: usize) {
        // Indicatif draws nothing where the output is not a terminal.
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(BAR) {
            bar.set_style(style);
        }
        bar.set_prefix(format!("{} {}", split.name(), self.place(split, epoch)));
        self.current = Some(Current {
            split,
            epoch,
            started: Instant::now(),
            bar,
            waited: Duration::ZERO,
        });
    }

    /// Counts a step with its losses.
    pub fn step(&mut self, losses: &Losses) {
        if let Some(current) = &self.current {
            let losses = losses
                .iter()
                .map(|(name, loss)| format!("{name} {loss:.4}"));
            current
                .bar
                .set_message(losses.collect::<Vec<_>>().join("  "));
            current.bar.inc(1);
        }
    }

    /// Ends the split after `step` training steps in all, with its metrics over all replicas.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn end(&mut self, step: usize, metrics: &[MergedMetric]) -> Result<()> {
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        current.bar.finish_and_clear();
        let seconds = current.started.elapsed().as_secs_f64();
        log::append(
            &self.log,
            current.split,
            current.epoch,
            step,
            metrics,
            seconds,
        )?;
        self.tell(&current, metrics, seconds);
        Ok(())
    }

    /// Says something in a line of its own.
    pub fn say(&self, text: &str) {
        println!("{text}");
    }

    /// Training and validation share a line an epoch.
    fn tell(&mut self, current: &Current, metrics: &[MergedMetric], seconds: f64) {
        let values = metrics
            .iter()
            .map(|metric| format!("{} {:.4}", metric.name, metric.value));
        let values = values.collect::<Vec<_>>().join("  ");
        let (split, epoch) = (current.split, current.epoch);
        match split {
            Split::Train => {
                let place = self.place(split, epoch);
                self.line = format!("epoch {place}  train  {values}  {seconds:.2} s");
            }
            Split::Validation => {
                let line = std::mem::take(&mut self.line);
                println!("{line}  |  validation  {values}");
            }
            Split::Test => {
                let examples = metrics.first().map_or(0, |metric| metric.examples);
                println!("test  {values}  ({examples} examples)");
            }
        }
    }

    fn place(&self, split: Split, epoch: usize) -> String {
        match split {
            Split::Test => String::new(),
            _ => format!(
                "{epoch:>width$}/{}",
                self.epochs,
                width = self.epochs.to_string().len()
            ),
        }
    }
}
