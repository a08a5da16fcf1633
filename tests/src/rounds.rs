//! Measuring sides against each other on a machine with other things to do.

use std::{env, process};

/// Which of `names` the command line asks for: all where it names none. Asked for help, it prints what
/// can be named and ends the process.
///
/// # Panics
/// It names another one.
pub fn chosen<'a>(names: &[&'a str]) -> Vec<&'a str> {
    // Cargo gives benchmarks an option of its own.
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

/// What each side gives in each of `rounds` rounds, in which all have their turn: by side, then by round.
/// Every second round has them in reverse, as a machine often grows slower or faster meanwhile.
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

/// How many times as large `one` is as `other`: the median over rounds, in each of which the machine is
/// about as fast for both.
///
/// # Panics
/// There is no round.
pub fn ratio(one: &[f64], other: &[f64]) -> f64 {
    let ratios = one.iter().zip(other).map(|(one, other)| one / other);
    median(&ratios.collect::<Vec<_>>())
}

/// The value in the middle, the upper one of two.
///
/// # Panics
/// There is none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// The smallest value and the largest one.
///
/// # Panics
/// There is none.
pub fn extremes(values: &[f64]) -> (f64, f64) {
    let least = values.iter().copied().reduce(f64::min);
    let most = values.iter().copied().reduce(f64::max);
    least.zip(most).expect("a value")
}
