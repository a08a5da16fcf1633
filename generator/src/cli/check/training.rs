//! Short trainings with the program of a project, and their logged numbers.
//!
//! They rely only on what the README of a generated project documents: its options,
//! `metrics.jsonl`, the folder of checkpoints, and that a training stopped by SIGTERM can be
//! resumed.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::SystemTime,
};

use serde_json::{Map, Value};

use super::problem::{Checked, failed, skipped};
use crate::error::{Error, Result};

const EPOCHS: u64 = 2;

/// The batch size of the contract tests.
const GLOBAL_BATCH: usize = 12;

/// Options that `kiln check` sets itself.
const OWN: [&str; 9] = [
    "--strategy",
    "--replicas",
    "--epochs",
    "--steps-per-epoch",
    "--batch-size",
    "--checkpoint-steps",
    "--keep",
    "--output-dir",
    "--resume",
];

/// Keys whose values differ between runs.
const TIMES: [&str; 3] = ["seconds", "data_seconds", "checkpoint_seconds"];

/// Refuses options that `kiln check` sets itself.
///
/// # Errors
/// One of the options is reserved.
pub(super) fn refuse(options: &[String]) -> Result<()> {
    let own = |option: &&String| OWN.contains(&option.split('=').next().unwrap_or(option));
    match options.iter().find(own) {
        None => Ok(()),
        Some(option) => Err(Error::input(format!(
            "`{option}` is set by `kiln check` and not allowed after `--`"
        ))
        .help("remove the option; to train with it, use `cargo run` in the project")),
    }
}

/// A training of a few steps.
pub(super) struct Training<'a> {
    program: &'a Path,
    replicas: usize,
    options: &'a [String],
}

impl<'a> Training<'a> {
    /// A training with the program, if it was built.
    pub(super) fn new(
        program: Option<&'a Path>,
        replicas: usize,
        options: &'a [String],
    ) -> Checked<Self> {
        match program {
            Some(program) => Ok(Self {
                program,
                replicas,
                options,
            }),
            None => skipped("the project does not build"),
        }
    }

    /// The command for a training and test that writes into `folder`.
    pub(super) fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(self.program);
        command
            .args(["--strategy", "mirrored", "--steps-per-epoch", "4"])
            .args(["--epochs", &EPOCHS.to_string()])
            .args(["--replicas", &self.replicas.to_string()])
            .args(["--batch-size", &(GLOBAL_BATCH / self.replicas).to_string()])
            // A high limit, so that no checkpoint is deleted during the training.
            .args(["--checkpoint-steps", "2", "--keep", "100"])
            .arg("--output-dir")
            .arg(folder)
            .args(self.options);
        command
    }
}

/// The lines of `metrics.jsonl`.
pub(super) struct Numbers(Vec<Map<String, Value>>);

impl Numbers {
    /// Reads the metrics in an output folder.
    pub(super) fn read(folder: &Path) -> Checked<Self> {
        let Ok(text) = fs::read_to_string(folder.join("metrics.jsonl")) else {
            return failed("the training wrote no metrics.jsonl into its --output-dir");
        };
        let lines = text.lines().map(serde_json::from_str);
        match lines.collect::<std::result::Result<Vec<_>, _>>() {
            Ok(lines) => Ok(Self(lines)),
            Err(error) => failed(format!("the metrics.jsonl is invalid: {error}")),
        }
    }

    /// Checks that each epoch is logged and all numbers are finite: JSON has `null` for others.
    pub(super) fn ensure_whole(self) -> Checked<Self> {
        for epoch in 1..=EPOCHS {
            let of_epoch = |line: &&Map<String, Value>| {
                named(line, "split") == "train" && line.get("epoch") == Some(&epoch.into())
            };
            if !self.0.iter().any(|line| of_epoch(&line)) {
                return failed(format!(
                    "the metrics.jsonl has no train line for epoch {epoch}"
                ));
            }
        }
        for line in &self.0 {
            if let Some((name, _)) = line.iter().find(|(_, value)| value.is_null()) {
                return failed(format!(
                    "`{name}` of {} is not a finite number",
                    place(line)
                ));
            }
        }
        Ok(self)
    }

    /// Checks that each epoch has as many steps and examples as in another training.
    pub(super) fn ensure_as_many_as(&self, one: &Self) -> Checked<()> {
        self.ensure_same_lines(one)?;
        for (ours, theirs) in self.0.iter().zip(&one.0) {
            for key in ["step", "examples"] {
                if ours.get(key) != theirs.get(key) {
                    return failed(format!(
                        "`{key}` of {} is {} on two replicas but {} on one",
                        place(ours),
                        shown(ours, key),
                        shown(theirs, key)
                    ));
                }
            }
        }
        Ok(())
    }

    /// Checks that all numbers except times equal those of an uninterrupted training.
    pub(super) fn ensure_equal_to(&self, whole: &Self) -> Checked<()> {
        self.ensure_same_lines(whole)?;
        for (ours, theirs) in self.0.iter().zip(&whole.0) {
            let keys = ours.keys().chain(theirs.keys());
            let mut keys = keys.filter(|key| !TIMES.contains(&key.as_str()));
            if let Some(key) = keys.find(|key| ours.get(*key) != theirs.get(*key)) {
                return failed(format!(
                    "`{key}` of {} is {} after a resume but {} without interruption",
                    place(ours),
                    shown(ours, key),
                    shown(theirs, key)
                ));
            }
        }
        Ok(())
    }

    fn ensure_same_lines(&self, other: &Self) -> Checked<()> {
        let places = |numbers: &Self| numbers.0.iter().map(place).collect::<Vec<_>>().join(", ");
        let (ours, theirs) = (places(self), places(other));
        if ours == theirs {
            Ok(())
        } else {
            failed(format!("it logged {ours} instead of {theirs}"))
        }
    }
}

fn named<'l>(line: &'l Map<String, Value>, key: &str) -> &'l str {
    line.get(key).and_then(Value::as_str).unwrap_or("?")
}

fn shown(line: &Map<String, Value>, key: &str) -> String {
    line.get(key)
        .map_or_else(|| "missing".to_owned(), Value::to_string)
}

fn place(line: &Map<String, Value>) -> String {
    format!("{} {}", named(line, "split"), shown(line, "epoch"))
}

/// A checkpoint with its modification time.
pub(super) struct Checkpoint {
    path: PathBuf,
    written: Option<SystemTime>,
}

impl Checkpoint {
    fn at(path: PathBuf) -> Self {
        Self {
            written: modified(&path),
            path,
        }
    }

    /// Whether the checkpoint is unchanged. A new training would move it aside.
    pub(super) fn is_still_there(&self) -> bool {
        let now = modified(&self.path);
        now.is_some() && now == self.written
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|it| it.modified()).ok()
}

/// The complete checkpoints in an output folder, ordered by step.
fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.join("checkpoints"));
    let mut paths: Vec<PathBuf> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter(|entry| !entry.file_name().to_string_lossy().starts_with('.'))
        .map(|entry| entry.path())
        .collect();
    paths.sort();
    paths
}

/// The first complete checkpoint in an output folder.
pub(super) fn first_checkpoint(folder: &Path) -> Option<Checkpoint> {
    checkpoints(folder).into_iter().next().map(Checkpoint::at)
}

/// Removes all but the first checkpoint if a fast training ended before it could be stopped, as if
/// it had been killed after that checkpoint.
///
/// # Errors
/// A checkpoint cannot be removed.
pub(super) fn cut_back(folder: &Path, whole: &Numbers, first: &Checkpoint) -> Checked<()> {
    if Numbers::read(folder).map_or(0, |numbers| numbers.0.len()) < whole.0.len() {
        return Ok(());
    }
    for path in checkpoints(folder) {
        if path != first.path {
            fs::remove_dir_all(&path).map_err(|cause| Error::io("remove", &path, cause))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::check::problem::Problem;

    fn numbers(lines: &str) -> Numbers {
        Numbers(
            lines
                .lines()
                .map(|line| serde_json::from_str(line).unwrap())
                .collect(),
        )
    }

    fn problem<T>(checked: Checked<T>) -> String {
        match checked {
            Err(Problem::Failed(why)) => why,
            _ => panic!("it did not fail"),
        }
    }

    const WHOLE: &str = "{\"split\":\"train\",\"epoch\":1,\"step\":4,\"examples\":48,\"loss\":1.5,\"seconds\":1.0}\n\
                         {\"split\":\"train\",\"epoch\":2,\"step\":8,\"examples\":48,\"loss\":0.5,\"seconds\":1.0}\n";

    #[test]
    fn times_may_differ_and_nothing_else() {
        let other = |from: &str, to: &str| numbers(&WHOLE.replace(from, to));
        let whole = numbers(WHOLE);
        assert!(other("1.0", "2.0").ensure_equal_to(&whole).is_ok());
        assert_eq!(
            problem(other("0.5", "0.51").ensure_equal_to(&whole)),
            "`loss` of train 2 is 0.51 after a resume but 0.5 without interruption"
        );
        assert_eq!(
            problem(other(",\"loss\":0.5", "").ensure_equal_to(&whole)),
            "`loss` of train 2 is missing after a resume but 0.5 without interruption"
        );
        assert!(other("0.5", "0.6").ensure_as_many_as(&whole).is_ok());
        assert_eq!(
            problem(other("48", "47").ensure_as_many_as(&whole)),
            "`examples` of train 1 is 47 on two replicas but 48 on one"
        );
        assert_eq!(
            problem(other("\"epoch\":2", "\"epoch\":3").ensure_as_many_as(&whole)),
            "it logged train 1, train 3 instead of train 1, train 2"
        );
    }

    #[test]
    fn each_epoch_must_be_there_with_finite_numbers() {
        let other = |from: &str, to: &str| numbers(&WHOLE.replace(from, to)).ensure_whole();
        assert!(numbers(WHOLE).ensure_whole().is_ok());
        assert_eq!(
            problem(other("0.5", "null")),
            "`loss` of train 2 is not a finite number"
        );
        assert_eq!(
            problem(other("\"epoch\":2", "\"epoch\":1")),
            "the metrics.jsonl has no train line for epoch 2"
        );
    }
}
