//! Trainings of generated crates for benchmarks, with networks and data of given sizes, and their throughput.

use std::{
    fs::{self, File},
    io::BufWriter,
    path::Path,
    process::{self, Command, Stdio},
};

use serde_json::Value;
use wait4::{ResourceUsage, Wait4};

use crate::{
    idx::{IDX_FILES, write_idx},
    log,
    rendered::Project,
    repository,
    runs::latest,
};

/// A multiplicative hash constant: no small multiple of it is near a power of two.
const SPREAD: u32 = 2_654_435_761;

/// A deterministic pseudo-random value for a position.
pub fn noise(at: usize) -> u8 {
    ((at as u32).wrapping_mul(SPREAD) >> 24) as u8
}

/// Puts a network of `tests/fixtures/speed` into a project. The environment variable `WIDTH` sets
/// the width of the layers of `dense`.
///
/// # Panics
/// The network does not exist or cannot be written.
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

/// Writes a folder in the layout of MNIST, with images of 28x28 pixels; a tenth is for validation.
///
/// # Panics
/// A file cannot be written.
pub fn write_images(folder: &Path, images: u32) {
    fs::create_dir_all(folder).expect("a folder");
    let create = |file| BufWriter::new(File::create(folder.join(file)).expect("a file"));
    for (files, images) in [(&IDX_FILES[..2], images), (&IDX_FILES[2..], 100)] {
        // Written in parts, as the peak memory of this process would count as that of a training.
        write_idx(create(files[0]), &[images, 28, 28], noise).expect("images");
        write_idx(create(files[1]), &[images], |at| (at % 10) as u8).expect("labels");
    }
}

/// The results of a training.
pub struct Trained {
    /// Throughput in all epochs except the first, which is for warm-up.
    pub examples_a_second: f64,
    /// The seconds that training waited for checkpoints, in an epoch except the first.
    pub checkpoint_seconds: f64,
    /// The size of the last checkpoint on disk.
    pub checkpoint_bytes: f64,
    /// Peak memory in bytes, on Linux.
    pub memory: Option<f64>,
}

/// Trains with `options` after those of `program`, and environment variables, into a new folder `runs`.
///
/// # Panics
/// The training fails or has no second epoch.
pub fn train(
    mut program: Command,
    runs: &Path,
    options: &[String],
    variables: &[(&str, &str)],
) -> Trained {
    // Old checkpoints would be moved aside one by one.
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
    // The result is read only at the end, as polling would take a core from the training.
    let ended = training.wait4().expect("a process");
    assert!(ended.status.success(), "{program:?}: {}", ended.status);
    Trained {
        examples_a_second: rate(&log(runs)),
        checkpoint_seconds: checkpoint_seconds(&log(runs)),
        checkpoint_bytes: checkpoint_bytes(runs),
        memory: memory(&ended.rusage),
    }
}

/// The peak memory of a process. It starts as a copy of this process and inherits its peak
/// (getrusage(2)), so smaller values are not reported.
fn memory(of_process: &ResourceUsage) -> Option<f64> {
    let own = bytes_of(process::id(), "VmHWM")?;
    (of_process.maxrss > own).then_some(of_process.maxrss as f64)
}

/// A memory size of a process in Linux's status (proc_pid_status(5)), in bytes: `RssAnon` is the
/// resident anonymous memory, `VmHWM` the peak.
pub fn bytes_of(process: u32, what: &str) -> Option<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let (_, size) = lines.find(|(key, _)| *key == what)?;
    let kibibytes: u64 = size.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1_024)
}

/// The lines of training in all epochs except the first.
fn later_epochs(log: &[Value]) -> impl Iterator<Item = &Value> {
    log.iter().filter(|line| line["split"] == "train").skip(1)
}

fn checkpoint_bytes(runs: &Path) -> f64 {
    let checkpoint = latest(runs).expect("a checkpoint");
    let files = fs::read_dir(checkpoint).expect("a checkpoint");
    let sizes = files.map(|file| file.and_then(|file| file.metadata()).expect("a file").len());
    sizes.sum::<u64>() as f64
}

fn checkpoint_seconds(log: &[Value]) -> f64 {
    let seconds = later_epochs(log).map(|line| line["checkpoint_seconds"].as_f64());
    let seconds: Vec<f64> = seconds.map(|time| time.expect("seconds")).collect();
    seconds.iter().sum::<f64>() / seconds.len().max(1) as f64
}

fn rate(log: &[Value]) -> f64 {
    let counts =
        later_epochs(log).map(|line| ["examples", "seconds"].map(|key| line[key].as_f64()));
    let (mut examples, mut seconds) = (0.0, 0.0);
    for [of_epoch, in_epoch] in counts {
        examples += of_epoch.expect("examples");
        seconds += in_epoch.expect("seconds");
    }
    assert!(examples > 0.0, "no second epoch: {log:?}");
    examples / seconds
}
