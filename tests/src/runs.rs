//! Output folders of trainings.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;
use sha2::{Digest, Sha256};

/// The log of the trainings that wrote into `runs`, with an object per split and epoch.
///
/// # Panics
/// The log is missing.
pub fn log(runs: &Path) -> Vec<Value> {
    log_of(&runs.join("metrics.jsonl"))
}

/// The log in a file of any name.
///
/// # Panics
/// The file is missing.
pub fn log_of(file: &Path) -> Vec<Value> {
    let log = fs::read_to_string(file).expect("a log");
    let line = |line: &str| serde_json::from_str(line).expect("JSON");
    log.lines().map(line).collect()
}

/// Like [`log`], without values that differ between equal trainings.
///
/// # Panics
/// The log is missing.
pub fn log_without_seconds(runs: &Path) -> Vec<Value> {
    without_seconds(log(runs))
}

/// Removes values that differ between equal trainings.
///
/// # Panics
/// A line of the log is not an object.
pub fn without_seconds(mut log: Vec<Value>) -> Vec<Value> {
    for line in &mut log {
        let line = line.as_object_mut().expect("an object");
        line.retain(|name, _| !name.ends_with("seconds"));
    }
    log
}

/// The checkpoints of an output folder by step and number of finished epochs, which is 0 within an epoch.
///
/// # Panics
/// The folder cannot be read.
pub fn checkpoints(runs: &Path) -> BTreeMap<(usize, usize), PathBuf> {
    checkpoints_in(&runs.join("checkpoints"))
}

/// The checkpoints in a folder of any name.
///
/// # Panics
/// The folder cannot be read.
pub fn checkpoints_in(folder: &Path) -> BTreeMap<(usize, usize), PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else {
        return BTreeMap::new();
    };
    let paths = entries.map(|entry| entry.expect("a checkpoint").path());
    let placed = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.strip_prefix("step-")?;
        let (step, epoch) = name.split_once("-epoch-").unwrap_or((name, "0"));
        Some(((step.parse().ok()?, epoch.parse().ok()?), path))
    };
    paths.filter_map(placed).collect()
}

/// The last checkpoint of an output folder.
///
/// # Panics
/// The folder cannot be read.
pub fn latest(runs: &Path) -> Option<PathBuf> {
    checkpoints(runs).pop_last().map(|(_, path)| path)
}

/// The manifest of a checkpoint.
///
/// # Panics
/// The manifest is missing.
pub fn manifest(checkpoint: &Path) -> Value {
    let text = fs::read_to_string(checkpoint.join("manifest.json"));
    let text = text.unwrap_or_else(|error| panic!("{}: {error}", checkpoint.display()));
    serde_json::from_str(&text).expect("JSON")
}

/// The manifest of the last checkpoint, without the id of the run.
///
/// # Panics
/// There is no checkpoint.
pub fn latest_state(runs: &Path) -> Value {
    state(&latest(runs).expect("a checkpoint"))
}

/// Like [`manifest`], without the id of the run.
///
/// # Panics
/// As for `manifest`.
pub fn state(checkpoint: &Path) -> Value {
    let mut manifest = manifest(checkpoint);
    manifest.as_object_mut().expect("an object").remove("run");
    manifest
}

/// Checks the hashes of a checkpoint, independently of the code that wrote it.
///
/// # Panics
/// A hash is wrong.
#[track_caller]
pub fn assert_whole(checkpoint: &Path) {
    let hashes = fs::read_to_string(checkpoint.join("SHA256SUMS"));
    let hashes = hashes.unwrap_or_else(|error| panic!("{}: {error}", checkpoint.display()));
    let shown = checkpoint.display();
    assert!(hashes.lines().count() >= 4, "{shown}: {hashes}");
    for line in hashes.lines() {
        let (expected, name) = line.split_once("  ").expect("a hash and a name");
        let bytes = fs::read(checkpoint.join(name)).expect("a file");
        assert_eq!(hash(&bytes), expected, "{shown}/{name}");
    }
}

/// Replaces a file of a checkpoint, and its hash.
///
/// # Panics
/// The file does not exist.
pub fn replace_file(checkpoint: &Path, name: &str, bytes: &[u8]) {
    let [file, hashes] = [name, "SHA256SUMS"].map(|name| checkpoint.join(name));
    let before = hash(&fs::read(&file).expect("a file"));
    fs::write(&file, bytes).expect("a file");
    let text = fs::read_to_string(&hashes).expect("hashes");
    assert!(text.contains(&before), "{name}: {text}");
    fs::write(hashes, text.replace(&before, &hash(bytes))).expect("hashes");
}

fn hash(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}
