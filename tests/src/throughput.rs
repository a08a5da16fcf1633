//! Trainings of generated crates for benchmarks: networks and data of the sizes that are asked for, and
//! what a training took.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;
use wait4::Wait4;

use crate::{
    log,
    rendered::{IDX_FILES, Project, idx},
    repository,
};

/// Pixels are spread by this factor, which has no small multiple near a power of two.
const SPREAD: u32 = 2_654_435_761;

/// A value that looks random, the same for the same place.
pub fn noise(at: usize) -> u8 {
    ((at as u32).wrapping_mul(SPREAD) >> 24) as u8
}

/// Puts a network of `tests/fixtures/speed` into a project. In `dense`, the variable `WIDTH` of the
/// environment says how wide its layers are.
///
/// # Panics
/// There is no such network, or it cannot be written.
pub fn fill_in(project: &Project, network: &str) {
    let fixtures = repository().join("tests/fixtures/speed");
    let sources = project.path().join("src");
    let network = format!("{network}.rs");
    for (from, to) in [(network.as_str(), "network.rs"), ("model.rs", "model.rs")] {
        fs::copy(fixtures.join(from), sources.join(to)).expect("a fixture");
    }
    let modules = "pub mod model;\npub mod network;";
    project.edit("lib.rs", "pub mod model;", modules);
}

/// Makes a folder like that of MNIST, with images of 28x28 of which a tenth validates.
///
/// # Panics
/// It cannot be written.
pub fn write_images(folder: &Path, images: u32) {
    fs::create_dir_all(folder).expect("a folder");
    for (files, images) in [(&IDX_FILES[..2], images), (&IDX_FILES[2..], 100)] {
        fs::write(folder.join(files[0]), idx(&[images, 28, 28], noise)).expect("a file");
        let labels = idx(&[images], |at| (at % 10) as u8);
        fs::write(folder.join(files[1]), labels).expect("a file");
    }
}

/// What a training took.
pub struct Trained {
    /// In all epochs but the first, which warms up.
    pub examples_a_second: f64,
    /// The most bytes that were in memory, or 0 where the system does not tell.
    pub memory: f64,
}

/// Trains with `options` after those that `program` has, and variables in the environment, into a fresh
/// folder `runs`.
///
/// # Panics
/// It fails, or has no second epoch.
pub fn train(
    mut program: Command,
    runs: &Path,
    options: &[String],
    variables: &[(&str, &str)],
) -> Trained {
    // Older checkpoints would be set aside one by one.
    let _ = fs::remove_dir_all(runs);
    let training = program
        .arg("train")
        .args(options)
        .arg("--output-dir")
        .arg(runs)
        .envs(variables.iter().copied())
        .stdout(Stdio::null())
        .spawn()
        .expect("the generated crate starts");
    // Looks at it only when it has ended: each look would take a core from it.
    let ended = training.wait4().expect("a process");
    assert!(ended.status.success(), "{program:?}: {}", ended.status);
    Trained {
        examples_a_second: rate(&log(runs)),
        memory: ended.rusage.maxrss as f64,
    }
}

fn rate(log: &[Value]) -> f64 {
    let epochs = log.iter().filter(|line| line["split"] == "train").skip(1);
    let counts = epochs.map(|line| ["examples", "seconds"].map(|key| line[key].as_f64()));
    let (mut examples, mut seconds) = (0.0, 0.0);
    for [of_epoch, in_epoch] in counts {
        examples += of_epoch.expect("examples");
        seconds += in_epoch.expect("seconds");
    }
    assert!(examples > 0.0, "no second epoch: {log:?}");
    examples / seconds
}
