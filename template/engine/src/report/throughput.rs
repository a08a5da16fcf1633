//! Throughput of training: examples, tokens and FLOPs per second, and the share of time spent waiting for data.

use std::time::Duration;

use anyhow::Result;
use burn::tensor::Device;
use serde_json::{Map, Value, json};

use super::{Current, Report, STARVING, steps::json_number, summary::thousands};
use crate::{
    flops::{self, Flops, peak},
    globals::{self, Split},
    options::Options,
    replica::{Counted, is_cpu},
    strategy::Strategy,
    task::Task,
};

/// Layers to name in the message about those that are not counted.
const NAMED: usize = 4;

/// Throughput and utilisation, for `--throughput`.
#[derive(Debug, Default)]
pub(super) struct Throughput {
    is_on: bool,
    /// Peak FLOP/s of all devices together; `None` if it is not known.
    peak: Option<f64>,
    /// Those of an example, from the first counted batch.
    flops: Option<Flops>,
}

/// The work of an interval of training.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Work {
    /// Examples over all replicas of all processes.
    pub examples: usize,
    /// Examples and tokens that the replicas of this process trained on.
    pub counted: Counted,
    pub time: Duration,
    /// The part of `time` spent waiting for batches or reading examples, averaged over replicas.
    pub waited: Duration,
}

/// Throughput in an interval of training.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rates {
    /// Examples per second.
    pub examples: f64,
    /// Tokens per second; `None` if batches do not tell their tokens.
    pub tokens: Option<f64>,
    /// FLOP/s; `None` without `--throughput`.
    pub flops: Option<f64>,
    /// Whether the FLOPs may be more.
    pub at_least: bool,
    /// Share of the peak FLOP/s, 0 to 1 (model FLOPs utilisation, MFU); `None` if the peak is not known.
    pub utilisation: Option<f64>,
    /// Share of the time spent waiting for data, 0 to 1.
    pub data_wait: f64,
}

impl Throughput {
    pub fn new(options: &Options) -> Self {
        Throughput {
            is_on: options.throughput,
            peak: options.peak_flops,
            flops: None,
        }
    }

    pub fn rates(&self, work: &Work) -> Rates {
        let seconds = work.time.as_secs_f64();
        let examples = work.examples as f64 / seconds;
        let Counted {
            examples: own,
            tokens,
        } = work.counted;
        let flops = self.flops.as_ref();
        let per_second = flops.map(|flops| flops.per_example * examples);
        let share = |peak| per_second.map(|flops| flops / peak);
        let waited = work.waited.as_secs_f64() / seconds;
        Rates {
            examples,
            // Those of other processes are alike.
            tokens: (tokens > 0).then(|| examples * tokens as f64 / own.max(1) as f64),
            flops: per_second,
            at_least: flops.is_some_and(|flops| !flops.incomplete.is_empty()),
            utilisation: self.peak.and_then(share),
            data_wait: if waited.is_finite() {
                waited.clamp(0.0, 1.0)
            } else {
                0.0
            },
        }
    }

    /// The FLOPs of an example, and the peak, for the terminal.
    fn describe(&self, flops: &Flops) -> String {
        let names = &flops.incomplete;
        let at_least = if names.is_empty() { "" } else { "at least " };
        let count = format!(
            "{at_least}{}FLOP per example, forward and backward",
            with_prefix(flops.per_example)
        );
        let peak = match self.peak {
            Some(peak) => format!("; peak {}FLOP/s", with_prefix(peak)),
            None => "; the peak of this device is not known: give --peak-flops for the utilisation"
                .into(),
        };
        if names.is_empty() {
            return count + &peak;
        }
        let mut list = names[..names.len().min(NAMED)].join(", ");
        if names.len() > NAMED {
            list += &format!(" and {} more", names.len() - NAMED);
        }
        format!(
            "{count}{peak}\nnot counted in full: {list}. `kiln_engine::layers` has functions whose FLOPs are counted; \
             or define `flops_per_example` of `Task` in src/globals.rs"
        )
    }
}

impl Rates {
    /// For a line on the terminal, with the wait for data if it is long.
    pub fn text(&self) -> Vec<String> {
        let mut parts = self.throughput();
        if self.data_wait > STARVING {
            parts.push(format!("{} waiting for data", percent(self.data_wait)));
        }
        parts
    }

    /// Examples or tokens per second, and FLOP/s.
    pub fn throughput(&self) -> Vec<String> {
        let rate = |rate: f64, what| format!("{} {what}/s", thousands(rate.round() as usize));
        let mut parts = vec![match self.tokens {
            Some(tokens) => rate(tokens, "tokens"),
            None => rate(self.examples, "examples"),
        }];
        parts.extend(self.flops.map(|flops| {
            let at_least = if self.at_least { "≥" } else { "" };
            let share = self
                .utilisation
                .map(|share| format!(" ({} of peak)", percent(share)));
            format!(
                "{at_least}{}FLOP/s{}",
                with_prefix(flops),
                share.unwrap_or_default()
            )
        }));
        parts
    }

    /// Adds the rates to a JSON object; those that are not known are left out.
    pub fn write(&self, object: &mut Map<String, Value>) {
        for (name, value) in self.named() {
            object.insert(name.into(), json_number(value));
        }
        if self.flops.is_some() {
            object.insert("flops_complete".into(), json!(!self.at_least));
        }
    }

    /// The rates that are known, by name.
    pub fn named(&self) -> Vec<(&'static str, f64)> {
        let all = [
            ("examples_per_second", Some(self.examples)),
            ("tokens_per_second", self.tokens),
            ("flops_per_second", self.flops),
            ("mfu", self.utilisation),
            ("data_wait", Some(self.data_wait)),
        ];
        let known = all.into_iter();
        known
            .filter_map(|(name, value)| Some((name, value?)))
            .collect()
    }
}

impl Report {
    /// Determines the peak of the devices, and asks the first replica for a count of FLOPs, with
    /// `--throughput`.
    ///
    /// # Errors
    /// A replica failed.
    pub(super) fn start_throughput<T: Task>(&mut self) -> Result<()> {
        if !self.throughput.is_on || !self.speaks {
            return Ok(());
        }
        let strategy = globals::strategy()?;
        if self.throughput.peak.is_none() {
            self.throughput.peak = peak_of(&self.steps.devices, strategy.workers().count());
        }
        match T::flops_per_example() {
            Some(flops) => self.set_flops(Flops::given(flops)),
            None => strategy.run_on_first(|_| {
                flops::arm();
                Ok(())
            })?,
        }
        Ok(())
    }

    fn set_flops(&mut self, flops: Flops) {
        self.say(&self.throughput.describe(&flops));
        self.throughput.flops = Some(flops);
    }

    /// The throughput of an epoch of training, with `--throughput`.
    pub(super) fn rates_of_epoch(&self, current: &Current) -> Option<Rates> {
        if current.split != Split::Train || !self.throughput.is_on {
            return None;
        }
        Some(self.throughput.rates(&Work {
            examples: current.examples,
            counted: current.counted,
            time: current.started.elapsed(),
            waited: current.waited,
        }))
    }

    /// Collects what replicas counted: reading times, examples, tokens, and once the FLOPs.
    ///
    /// # Errors
    /// A replica failed.
    pub(super) fn collect_counts(&mut self) -> Result<()> {
        let strategy = globals::strategy()?;
        let replicas = strategy.replicas();
        let (waited, counted) = (replicas.take_reading_time(), replicas.take_counted());
        self.add_wait(waited);
        self.steps.work.counted += counted;
        if let Some(current) = &mut self.current {
            current.counted += counted;
        }
        if self.speaks && self.throughput.is_on && self.throughput.flops.is_none() {
            // Not by the strategy: that is an operation of all processes, and only the chief reports.
            let counted = replicas.run_on_first(|_| Ok(flops::take()))?;
            counted.into_iter().for_each(|flops| self.set_flops(flops));
        }
        Ok(())
    }
}

/// The devices of this process, each once.
///
/// # Errors
/// A replica failed.
pub(super) fn devices_of(strategy: &(dyn Strategy + 'static)) -> Result<Vec<Device>> {
    let devices = strategy.run_on_all(|replica| {
        Ok(match replica.pipeline() {
            Some(pipeline) => pipeline.devices().to_vec(),
            None => vec![replica.device().clone()],
        })
    })?;
    let mut distinct: Vec<Device> = Vec::new();
    for device in devices.into_iter().flatten() {
        if !distinct.contains(&device) {
            distinct.push(device);
        }
    }
    Ok(distinct)
}

/// The peak FLOP/s of a job whose processes each have such devices: by name, or measured on a CPU with all replicas;
/// `None` if it is not known.
fn peak_of(devices: &[Device], processes: usize) -> Option<f64> {
    if is_cpu(devices) {
        // Other processes may compute at the same time.
        return (processes == 1).then(peak::measure_cpu);
    }
    of_gpus().map(|peak| peak * (devices.len() * processes) as f64)
}

/// The peak FLOP/s of a GPU of this machine, if all are alike.
fn of_gpus() -> Option<f64> {
    if !cfg!(feature = "cuda") {
        return None;
    }
    let names = peak::nvidia_gpus();
    let first = names.first()?;
    let are_alike = names.iter().all(|name| name == first);
    are_alike.then(|| peak::of_gpu(first)).flatten()
}

/// A number with three digits and the prefix of its unit: `52.3 G`.
fn with_prefix(number: f64) -> String {
    const PREFIXES: [(f64, &str); 5] =
        [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let prefix = PREFIXES.iter().find(|(unit, _)| number >= *unit);
    let (unit, prefix) = prefix.copied().unwrap_or((1.0, ""));
    let number = number / unit;
    let digits = match number {
        100.0.. => 0,
        10.0.. => 1,
        _ => 2,
    };
    format!("{number:.digits$} {prefix}")
}

fn percent(share: f64) -> String {
    let digits = usize::from(share < 0.0995);
    format!("{:.digits$}%", 100.0 * share)
}

#[cfg(test)]
mod tests;
