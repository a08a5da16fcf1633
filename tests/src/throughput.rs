//! Trainings of generated crates for benchmarks: networks and data of the sizes that are asked for, and
//! what a training took.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::Path,
    process::{self, Command, Stdio},
};

use serde_json::Value;
use wait4::{ResourceUsage, Wait4};

use crate::{
    log,
    rendered::{IDX_FILES, Project, write_idx},
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
    let create = |file| BufWriter::new(File::create(folder.join(file)).expect("a file"));
    for (files, images) in [(&IDX_FILES[..2], images), (&IDX_FILES[2..], 100)] {
        // Never all in memory, which would count as that of a training.
        write_idx(create(files[0]), &[images, 28, 28], noise).expect("images");
        write_idx(create(files[1]), &[images], |at| (at % 10) as u8).expect("labels");
    }
}

/// What a training took.
pub struct Trained {
    /// In all epochs but the first, which warms up.
    pub examples_a_second: f64,
    /// The most bytes that were in memory, where Linux tells.
    pub memory: Option<f64>,
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
        memory: memory(&ended.rusage),
    }
}

/// The most bytes that a process had in memory. It begins as a copy of this one and counts what this one
/// had (getrusage(2)), so less than that is not told.
fn memory(of_process: &ResourceUsage) -> Option<f64> {
    let own = bytes_of(process::id(), "VmHWM")?;
    (of_process.maxrss > own).then_some(of_process.maxrss as f64)
}

/// Bytes of memory of a process, as Linux tells in its status (proc_pid_status(5)): `RssAnon` is what is
/// resident now and of no file, `VmHWM` the most that was.
pub fn bytes_of(process: u32, what: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let (_, size) = lines.find(|(key, _)| *key == what)?;
    let kibibytes: u64 = size.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1_024)
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
