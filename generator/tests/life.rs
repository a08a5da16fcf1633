//! A project's life: it is filled in, reformatted, moved and rebased, its engine is edited and its answers are
//! changed over four versions of its template, with commands that are killed at random. In the end
//! it is what `new` would have made, plus the user's edits.
//!
//! `KILN_LIFE_SEED` repeats one life.

#![cfg(unix)]

#[path = "life/kills.rs"]
mod kills;
#[path = "life/project.rs"]
mod project;
#[path = "life/random.rs"]
mod random;
#[path = "life/user.rs"]
mod user;
#[path = "life/versions.rs"]
mod versions;

use std::{thread, time::Instant};

use kills::Kills;
use project::Project;
use random::Random;
use versions::{LAST, Versions};

/// Sites that the user fills in: id, file, and a replacement of code.
const SITES: [(&str, &str, &str, &str); 5] = [
    (
        "model.weights",
        "src/model.rs",
        "WeightNames = &[];",
        "WeightNames = &[(\"^features\\\\.0\\\\.\", \"conv1.\")];",
    ),
    (
        "dataset.example",
        "src/dataset.rs",
        "pub const CLASSES: usize = 10;",
        "pub const CLASSES: usize = 5;",
    ),
    (
        "metric.best",
        "src/metric.rs",
        "metric: \"accuracy\",",
        "metric: \"loss\",",
    ),
    (
        "callbacks.schedule",
        "src/callbacks.rs",
        "Callbacks::<Report>::new()",
        "Callbacks::<Report>::new().every_epochs(1, |_, _| Ok(()))",
    ),
    (
        "optimizer.choice",
        "src/model.rs",
        "AdamConfig::new().init();",
        "AdamConfig::new().with_beta_1(0.8).init();",
    ),
];

/// One life; returns the number of kills in it.
fn live(versions: &Versions, seed: u64, kills: usize) -> Kills {
    println!("KILN_LIFE_SEED={seed}");
    let kills = Kills::new(Random(seed ^ 0xdead), kills);
    let mut project = Project::new(versions, Random(seed), kills);
    while project.version() < LAST {
        project.works();
        project.updates();
        project.is_as_expected();
    }
    project.works();
    project.is_as_expected();
    project.is_up_to_date();
    project.kills
}

/// Lives from a first seed until so many kills, side by side on the processor's cores; or the one of the
/// environment.
fn lives(first: u64, kills: usize) {
    let versions = &Versions::new();
    if let Ok(seed) = std::env::var("KILN_LIFE_SEED") {
        live(versions, seed.parse().unwrap(), kills);
        return;
    }
    let start = Instant::now();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let by_signal: usize = thread::scope(|scope| {
        let threads = (0..cores).map(|core| {
            let share = kills / cores + usize::from(core < kills % cores);
            scope.spawn(move || lives_of_core(versions, (first..).skip(core).step_by(cores), share))
        });
        let threads: Vec<_> = threads.collect();
        let ends = threads.into_iter().map(|thread| thread.join().unwrap());
        ends.sum()
    });
    println!(
        "{kills} kills, {by_signal} of them by signals, in {:?}",
        start.elapsed()
    );
}

/// Lives of these seeds until so many kills; returns how many of them were by signals.
fn lives_of_core(versions: &Versions, mut seeds: impl Iterator<Item = u64>, kills: usize) -> usize {
    let (mut count, mut by_signal) = (0, 0);
    while count < kills {
        let done = live(versions, seeds.next().unwrap(), kills - count);
        count += done.count;
        by_signal += done.by_signal;
    }
    by_signal
}

#[test]
fn a_short_life() {
    lives(1, 15);
}

#[test]
#[ignore = "long"]
fn lives_with_three_hundred_kills() {
    lives(100, 300);
}
