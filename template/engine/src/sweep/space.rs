//! The values of the options that vary: grids, choices and ranges, and the runs that they make.

use sha2::{Digest, Sha256};

use crate::configuration::file::Setting;

/// Significant digits of a drawn number: enough for a search, and few enough to read.
const DIGITS: usize = 4;

/// An option that varies.
#[derive(Clone, Debug)]
pub(super) struct Varied {
    /// Its key in the file.
    pub key: String,
    /// The id of the option.
    pub id: String,
    /// File, line and column of its key.
    pub place: String,
    pub values: Values,
}

/// The values of an option that varies.
#[derive(Clone, Debug)]
pub(super) enum Values {
    /// Each value, combined with those of other options.
    Grid(Vec<Setting>),
    /// One of them at random.
    Choices(Vec<Setting>),
    /// A random number, and the setting of one.
    Range(Range, Setting),
}

/// A range of random numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    bounds: Bounds,
    /// Whether logarithms are drawn, as for a learning rate.
    pub is_log: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bounds {
    /// Both are drawn, too.
    Integers(i64, i64),
    Floats(f64, f64),
}

/// The draws of random options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Draws {
    /// Number of draws; 0 without random options.
    pub runs: usize,
    pub seed: u64,
}

impl Draws {
    /// 64 random bits for an option and draw. A hash does not depend on other options and their order, on the
    /// number of draws, or on the version of a generator.
    fn bits(self, key: &str, draw: usize) -> u64 {
        let mut hash = Sha256::new();
        hash.update(b"sweep");
        hash.update(self.seed.to_le_bytes());
        hash.update((draw as u64).to_le_bytes());
        hash.update(key.as_bytes());
        let hash: [u8; 32] = hash.finalize().into();
        hash.iter()
            .take(8)
            .fold(0, |bits, byte| bits << 8 | u64::from(*byte))
    }
}

/// A number in [0, 1).
fn unit(bits: u64) -> f64 {
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

impl Range {
    /// # Errors
    /// The range is empty, or has no logarithms.
    pub fn integers(low: i64, high: i64, is_log: bool) -> Result<Self, String> {
        ensure_range(low as f64, high as f64, low < high, is_log)?;
        let bounds = Bounds::Integers(low, high);
        Ok(Range { bounds, is_log })
    }

    /// # Errors
    /// The range is empty or infinite, or has no logarithms.
    pub fn floats(low: f64, high: f64, is_log: bool) -> Result<Self, String> {
        ensure_range(low, high, low < high, is_log)?;
        let bounds = Bounds::Floats(low, high);
        Ok(Range { bounds, is_log })
    }

    /// The number of 64 random bits, as text.
    fn number(&self, bits: u64) -> String {
        match (self.bounds, self.is_log) {
            (Bounds::Integers(low, high), false) => {
                let count = (i128::from(high) - i128::from(low) + 1) as u128;
                let drawn = (u128::from(bits) * count) >> 64;
                (i128::from(low) + drawn as i128).to_string()
            }
            (Bounds::Integers(low, high), true) => {
                let (from, to) = ((low as f64).ln(), (high as f64 + 1.0).ln());
                let drawn = (from + (to - from) * unit(bits)).exp().floor() as i64;
                drawn.clamp(low, high).to_string()
            }
            (Bounds::Floats(low, high), is_log) => {
                let drawn = match is_log {
                    true => (low.ln() + (high.ln() - low.ln()) * unit(bits)).exp(),
                    // Not `high - low`, which may be infinite.
                    false => low * (1.0 - unit(bits)) + high * unit(bits),
                };
                let rounded = format!("{drawn:.*e}", DIGITS - 1).parse().unwrap_or(drawn);
                format!("{:?}", f64::clamp(rounded, low, high))
            }
        }
    }
}

fn ensure_range(low: f64, high: f64, is_ordered: bool, is_log: bool) -> Result<(), String> {
    match (
        low.is_finite() && high.is_finite(),
        is_ordered,
        is_log && low <= 0.0,
    ) {
        (false, _, _) => Err("`min` and `max` must be finite".to_owned()),
        (_, false, _) => Err(format!(
            "`min` must be below `max`, and {low} is not below {high}"
        )),
        (_, _, true) => Err(format!(
            "log = true needs a `min` above 0, and this is {low}"
        )),
        _ => Ok(()),
    }
}

impl Varied {
    /// Number of values that are combined with those of other options.
    fn grid(&self) -> usize {
        match &self.values {
            Values::Grid(values) => values.len(),
            _ => 1,
        }
    }

    /// The value of a place in the grid, or of a draw.
    fn value(&self, place: usize, draw: usize, draws: Draws) -> Setting {
        let bits = draws.bits(&self.key, draw);
        match &self.values {
            Values::Grid(values) => values[place].clone(),
            Values::Choices(values) => {
                let index = (u128::from(bits) * values.len() as u128) >> 64;
                values[index as usize].clone()
            }
            Values::Range(range, setting) => Setting {
                words: vec![format!("--{}={}", setting.long, range.number(bits)).into()],
                place: self.place.clone(),
                ..setting.clone()
            },
        }
    }
}

/// Number of runs: all combinations of the grid, each with all draws. `None` beyond the integers.
pub(super) fn count(varied: &[Varied], draws: Draws) -> Option<usize> {
    let mut counts = varied.iter().map(Varied::grid);
    counts.try_fold(draws.runs.max(1), usize::checked_mul)
}

/// The settings of each run, in the order of `varied`. The last option of the grid varies fastest; a combination
/// follows another one after all draws, which are the same for each.
pub(super) fn runs(varied: &[Varied], draws: Draws) -> Vec<Vec<Setting>> {
    let all = count(varied, draws).unwrap_or(0);
    let per_combination = draws.runs.max(1);
    let run = |number: usize| {
        let (mut place, draw) = (number / per_combination, number % per_combination);
        let mut settings: Vec<Setting> = Vec::new();
        for option in varied.iter().rev() {
            settings.push(option.value(place % option.grid(), draw, draws));
            place /= option.grid();
        }
        settings.reverse();
        settings
    };
    (0..all).map(run).collect()
}
