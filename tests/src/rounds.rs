//! Interleaved measurements, for machines with varying load.

use std::{env, process};

/// The names selected on the command line; all if none is given. With `--help`, prints the names and exits.
///
/// # Panics
/// A given name is unknown.
pub fn chosen<'a>(names: &[&'a str]) -> Vec<&'a str> {
    // Cargo passes an option of its own to benchmarks.
    let words: Vec<String> = env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("Measures what is named, or all: {}", names.join(", "));
        process::exit(0);
    }
    for word in &words {
        assert!(
            names.contains(&word.as_str()),
            "{word:?} is none of {names:?}"
        );
    }
    let asked_for = |name: &&str| words.is_empty() || words.iter().any(|word| word == name);
    names.iter().copied().filter(asked_for).collect()
}

/// The results of each side in each of `rounds` rounds, by side, then by round. All sides run once
/// per round, in reverse order in every second round, as the speed of a machine often drifts.
pub fn in_turn(rounds: usize, sides: &[impl Fn() -> f64]) -> Vec<Vec<f64>> {
    let mut measured = vec![Vec::new(); sides.len()];
    for round in 0..rounds {
        for place in 0..sides.len() {
            let side = match round % 2 {
                0 => place,
                _ => sides.len() - 1 - place,
            };
            measured[side].push(sides[side]());
        }
    }
    measured
}

/// The ratio of `one` to `other`: the median over rounds, in each of which the machine is about as
/// fast for both.
///
/// # Panics
/// There are no rounds.
pub fn ratio(one: &[f64], other: &[f64]) -> f64 {
    let ratios = one.iter().zip(other).map(|(one, other)| one / other);
    median(&ratios.collect::<Vec<_>>())
}

/// The median; of two middle values, the greater.
///
/// # Panics
/// `values` is empty.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The least and the greatest value.
///
/// # Panics
/// `values` is empty.
pub fn extremes(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().reduce(f64::min);
    let most = values.iter().copied().reduce(f64::max);
    least.zip(most).expect("a value")
}
