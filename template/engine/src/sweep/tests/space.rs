//! Grids and draws.

use std::collections::BTreeMap;

use super::*;
use crate::sweep::{
    plan::Planned,
    space::{Draws, Values, runs},
};

#[test]
fn the_last_option_of_a_grid_varies_fastest() {
    let plan = plan("[grid]\nseed = [1, 2]\nepochs = [3, 4, 5]");
    assert_eq!(values(&plan), ["1 3", "1 4", "1 5", "2 3", "2 4", "2 5"]);
    assert_eq!(plan.describe(&plan.runs[1]), "seed 1, epochs 4");
    let lists = self::plan("[grid]\ndevices = [[0], [0, 1]]\nema = [1e-3, 0.5]");
    assert_eq!(values(&lists), ["0 0.001", "0 0.5", "0,1 0.001", "0,1 0.5"]);
}

#[test]
fn draws_depend_on_the_seed_and_not_on_other_options() {
    let draw = |seed: u64, options: &[&str]| -> Vec<BTreeMap<String, String>> {
        let options = options.join("\n");
        let plan = plan(&format!("[random]\nruns = 20\nseed = {seed}\n{options}"));
        let run = |run: &Planned| plan.keys.iter().cloned().zip(run.values.clone()).collect();
        plan.runs.iter().map(run).collect()
    };
    let ema = "ema = { min = 0.01, max = 0.9, log = true }";
    let keep = "keep = { min = 1, max = 1000, log = true }";
    let schedule = "strategy = { choices = ['mirrored', 'one-device'] }";
    let all = draw(3, &[ema, keep, schedule]);
    assert_eq!(all, draw(3, &[schedule, keep, ema]));
    assert_ne!(all, draw(4, &[ema, keep, schedule]));
    let alone = draw(3, &[ema]);
    assert!(
        all.iter()
            .zip(&alone)
            .all(|(all, alone)| all["ema"] == alone["ema"])
    );
    // Fixed for ever: the draws of an old sweep must not change.
    assert_eq!(all[0]["ema"], EXPECTED[0]);
    assert_eq!(all[0]["keep"], EXPECTED[1]);
    let more = plan(&format!("[random]\nruns = 30\nseed = 3\n{ema}"));
    assert!(
        more.runs
            .iter()
            .zip(&alone)
            .all(|(run, alone)| run.values[0] == alone["ema"])
    );
}

/// Computed with Python's hashlib and math.
const EXPECTED: [&str; 2] = ["0.01825", "70"];

#[test]
fn draws_cover_their_range() {
    let text = "[random]\nruns = 400\nkeep = { min = 1, max = 4 }\nseed = { min = 1, max = 1000, log = true }
                ema = { min = 1e-4, max = 0.1, log = true }\nstrategy = { choices = ['mirrored', 'one-device'] }";
    let plan = plan(text);
    let column = |column: usize| plan.runs.iter().map(move |run| run.values[column].clone());
    let count = |option: usize, value: &str| column(option).filter(|one| one == value).count();
    for value in ["1", "2", "3", "4"] {
        assert!(
            (60..140).contains(&count(0, value)),
            "{value}: {}",
            count(0, value)
        );
    }
    assert!((150..250).contains(&count(3, "mirrored")));
    let below = |option: usize, most: f64| {
        let numbers = column(option).map(|text| text.parse::<f64>().unwrap());
        numbers.filter(|number| *number < most).count()
    };
    // A third of each range, by logarithms.
    assert!((90..180).contains(&below(1, 10.0)), "{}", below(1, 10.0));
    assert!((90..180).contains(&below(2, 1e-3)), "{}", below(2, 1e-3));
    assert_eq!([below(2, 1e-4), below(2, 0.1 + 1e-12)], [0, 400]);
    assert!(
        column(2).all(|text| text.trim_start_matches(['0', '.']).len() <= 8),
        "four digits"
    );
}

#[test]
fn each_combination_has_the_same_draws() {
    let plan = plan("[grid]\nepochs = [1, 2]\n[random]\nruns = 2\nema = { min = 0.1, max = 0.9 }");
    let values = values(&plan);
    assert_eq!(values.len(), 4);
    assert_eq!(values[0].replace("1 ", "2 "), values[2]);
    assert_ne!(values[0], values[1]);
    let varied = definition("[grid]\nepochs = [1, 2]").varied;
    assert!(matches!(&varied[0].values, Values::Grid(values) if values.len() == 2));
    assert_eq!(runs(&varied, Draws::default()).len(), 2);
}
