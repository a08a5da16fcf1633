//! Throughput of training for `--throughput`: the FLOPs of an example, the peak of the devices, and rates from both.

pub mod rates;

use anyhow::Result;
use burn::tensor::Device;

use self::rates::{Rates, Work, with_prefix};
use super::{Report, pass::Pass};
use crate::{
    device::is_cpu,
    distribution::Strategy,
    flops::{self, Flops, peak},
    globals::{self, Split},
    options::Options,
    replica::Counted,
    task::Task,
};

/// Layers to name in the message about those that are not counted.
const NAMED: usize = 4;

/// Throughput and utilisation, for `--throughput`.
#[derive(Debug, Default)]
pub struct Throughput {
    is_on: bool,
    /// Peak FLOP/s of all devices together; `None` if it is not known.
    peak: Option<f64>,
    /// Those of an example, from the first counted batch.
    flops: Option<Flops>,
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
    pub(super) fn rates_of_epoch(&self, current: &Pass) -> Option<Rates> {
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
pub fn devices_of(strategy: &(dyn Strategy + 'static)) -> Result<Vec<Device>> {
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

#[cfg(test)]
mod tests;
