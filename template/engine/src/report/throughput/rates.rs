//! Rates of training: examples, tokens and FLOPs per second, and the share of time spent waiting for data.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::super::{STARVING, json::json_number};
use crate::{console::thousands, replica::Counted};

/// The work of an interval of training.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
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
pub struct Rates {
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

/// A number with three digits and the prefix of its unit: `52.3 G`.
pub fn with_prefix(number: f64) -> String {
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

pub fn percent(share: f64) -> String {
    let digits = usize::from(share < 0.0995);
    format!("{:.digits$}%", 100.0 * share)
}
