//! A pass over a split: its progress bar, its times, and its line at the end.

use std::{
    mem,
    time::{Duration, Instant},
};

use anyhow::Result;

use super::{
    Report, STARVING, log,
    profile::{self, Phase},
    throughput::rates::Rates,
};
use crate::{
    console::{self, Bar, terminal},
    globals::Split,
    loss::Losses,
    metric::MergedMetric,
    replica::Counted,
    tracking::Outcome,
};

/// A pass in progress.
pub(super) struct Pass {
    pub split: Split,
    epoch: usize,
    pub started: Instant,
    bar: Bar,
    /// Time spent waiting for batches.
    pub waited: Duration,
    /// Examples in updates, over all replicas of all processes.
    pub examples: usize,
    /// Examples and tokens that the replicas of this process trained on.
    pub counted: Counted,
    /// Whether averaged weights are evaluated.
    averaged: bool,
}

impl Report {
    /// Begins a pass of `steps` steps over a split.
    pub fn begin(&mut self, split: Split, epoch: usize, steps: usize) {
        let prefix = [split.name(), &self.place(split, epoch)].join(" ");
        match split {
            Split::Train => self.steps.begin_epoch(Instant::now()),
            Split::Validation => {}
            Split::Test => self.end_run(Outcome::Failed), // until it ends
        }
        self.current = Some(Pass {
            split,
            epoch,
            started: Instant::now(),
            bar: Bar::show(self.speaks, prefix.trim_end(), steps),
            waited: Duration::ZERO,
            examples: 0,
            counted: Counted::default(),
            averaged: false,
        });
    }

    /// Notes that the pass in progress evaluates averaged weights.
    pub fn note_averaged_weights(&mut self) {
        if let Some(current) = &mut self.current {
            current.averaged = true;
        }
    }

    /// Advances the progress bar by one step, and shows its losses unless they are still to be read from a
    /// GPU.
    pub fn step(&mut self, losses: &Losses) {
        if !losses.is_unread() {
            self.show(losses);
        }
        if let Some(current) = &self.current {
            current.bar.advance();
        }
    }

    /// Shows losses in the progress bar, and in training the rates and the memory of the last line.
    pub(super) fn show(&self, losses: &Losses) {
        if let Some(current) = &self.current
            && !current.bar.is_hidden()
        {
            let losses = losses
                .iter()
                .map(|(name, loss)| format!("{name} {loss:.4}"));
            let (rates, memory) = match current.split {
                Split::Train => (&self.rates[..], &self.memory[..]),
                Split::Validation | Split::Test => (&[][..], &[][..]),
            };
            current.bar.set_message(losses, rates, memory);
        }
    }

    /// Ends the pass after `step` training steps in total and reports its metrics, merged over all
    /// replicas.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn end(&mut self, step: usize, metrics: &[MergedMetric]) -> Result<()> {
        self.collect_counts()?;
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        current.bar.clear();
        if current.split == Split::Train {
            self.steps.end_epoch(Instant::now());
        }
        if !self.speaks {
            return Ok(());
        }
        let seconds = current.started.elapsed().as_secs_f64();
        let waited = current.waited.as_secs_f64();
        let rates = self.rates_of_epoch(&current);
        let line = log::Line {
            split: current.split,
            epoch: current.epoch,
            step,
            averaged: current.averaged,
            metrics,
            seconds,
            data_seconds: waited,
            checkpoint_seconds: (current.split == Split::Train)
                .then(|| mem::take(&mut self.checkpoint_wait).as_secs_f64()),
            rates: rates.as_ref(),
        };
        if self.lock.is_some() {
            log::append(&self.log, &line)?;
        }
        self.trackers
            .log(|tracker| tracker.metrics(current.split, step, metrics))?;
        if current.split == Split::Test {
            self.end_run(Outcome::Finished);
        }
        self.tell(&current, metrics, seconds, rates.as_ref());
        match current.split {
            Split::Test if self.lock.is_some() => self.draw_curves(),
            Split::Test => Ok(()),
            Split::Train | Split::Validation => Ok(()),
        }
    }

    /// Ends a pass that was interrupted, without reporting metrics.
    pub fn abandon(&mut self) {
        if let Some(current) = self.current.take() {
            current.bar.clear();
            self.end_run(Outcome::Killed);
        }
    }

    /// Gets the next batch with `next` and measures the waiting time.
    pub fn wait_for<T>(&mut self, next: impl FnOnce() -> T) -> T {
        let _data = profile::span(Phase::Data);
        let started = Instant::now();
        let batch = next();
        self.add_wait(started.elapsed());
        batch
    }

    pub(super) fn add_wait(&mut self, waited: Duration) {
        if let Some(current) = &mut self.current {
            current.waited += waited;
            if current.split == Split::Train {
                self.steps.work.waited += waited;
            }
        }
    }

    /// Prints the metrics of a split; training and validation share one line per epoch.
    fn tell(
        &mut self,
        current: &Pass,
        metrics: &[MergedMetric],
        seconds: f64,
        rates: Option<&Rates>,
    ) {
        let (split, epoch) = (current.split, current.epoch);
        let weights = match current.averaged {
            true => " (averaged weights)",
            false => "",
        };
        let values = metrics
            .iter()
            .map(|metric| format!("{} {:.4}", metric.name, metric.value));
        let mut fields = vec![format!("{}{weights}", split.name())];
        fields.extend(values);
        let (head, groups) = match split {
            Split::Train => {
                fields.push(format!("{seconds:.2} s"));
                fields.extend(rates.iter().flat_map(|rates| rates.throughput()));
                let waited = current.waited.as_secs_f64();
                if waited > STARVING * seconds {
                    fields.push(format!("{waited:.2} s waiting for data"));
                }
                self.line = fields;
                return;
            }
            Split::Validation => {
                let head = format!("epoch {}", self.place(split, epoch));
                (head, vec![mem::take(&mut self.line), fields])
            }
            Split::Test => {
                let examples = metrics.first().map_or(0, |metric| metric.examples);
                fields.push(format!("({examples} examples)"));
                (fields.remove(0), vec![fields])
            }
        };
        print_line(&head, &groups);
    }

    /// Reports the training of an epoch that has no validation.
    pub fn end_without_validation(&mut self, epoch: usize) {
        if self.speaks {
            let head = format!("epoch {}", self.place(Split::Train, epoch));
            let line = mem::take(&mut self.line);
            print_line(&head, &[line]);
        }
    }

    /// The epoch among all of them, in a fixed width; empty for a test, which has none.
    pub(super) fn place(&self, split: Split, epoch: usize) -> String {
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

/// Prints a line with its groups of values, wrapped to the width of the terminal.
fn print_line(head: &str, groups: &[Vec<String>]) {
    terminal::print(console::wrap(head, groups, terminal::width()));
}
