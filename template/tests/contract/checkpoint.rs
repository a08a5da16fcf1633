use std::{fs, path::Path};

use anyhow::{Context, Result, ensure};
use clap::Parser;
use kiln_engine::{
    checkpoint::{Checkpoint, Progress},
    report::Report,
};
use serde_json::Value;
use training::{cli::Args, globals, train::train};

use crate::support::{amounts, contract, on_own_thread, set_up};

/// Two epochs, with a checkpoint after each step.
const OPTIONS: [&str; 11] = [
    "contract",
    "--epochs",
    "2",
    "--checkpoint-steps",
    "1",
    "--keep",
    "100",
    "--replicas",
    "2",
    "--strategy",
    "mirrored",
];

/// The result of a training to compare: its progress, and the manifest of the last checkpoint.
#[derive(PartialEq)]
struct Trained {
    progress: Progress,
    manifest: Value,
}

impl Trained {
    /// The fields of the manifest that differ from those of `other`.
    fn differences(&self, other: &Self) -> String {
        let fields = self.manifest.as_object().into_iter().flatten();
        let differ = fields.filter(|(name, value)| other.manifest.get(name) != Some(value));
        let names: Vec<&str> = differ.map(|(name, _)| name.as_str()).collect();
        names.join(", ")
    }
}

/// The result of a training with `steps_per_epoch` steps per epoch and `more` options.
fn trained(output: &Path, steps_per_epoch: usize, more: &[&str]) -> Result<Trained> {
    let output = output.to_owned();
    let mut more: Vec<String> = more.iter().map(|option| (*option).to_owned()).collect();
    more.push(format!("--steps-per-epoch={steps_per_epoch}"));
    more.push(format!("--batch-size={}", amounts().per_replica));
    on_own_thread(move || {
        let folder = output.to_string_lossy().into_owned();
        let options = OPTIONS.iter().map(|option| (*option).to_owned());
        let options = options
            .chain(["--output-dir".to_owned(), folder])
            .chain(more);
        let options: Vec<String> = options.collect();
        let args = Args::try_parse_from(&options)?;
        let options: Vec<&str> = options[1..].iter().map(String::as_str).collect();
        let job = set_up(&options)?;
        let mut report = Report::new(&args.options)?;
        let progress = train(&args, &job.datasets, &mut report)?.context("it was stopped")?;
        let last = steps(&output)?.pop().context("there is no checkpoint")?;
        let mut manifest = Checkpoint::read(&output.join("checkpoints").join(last))?.manifest;
        // Run metadata, such as the command line, differ.
        manifest.run = None;
        Ok(Trained {
            progress,
            manifest: serde_json::to_value(manifest)?,
        })
    })
}

/// The names of all checkpoints, in the order of steps.
fn steps(output: &Path) -> Result<Vec<String>> {
    let entries = fs::read_dir(output.join("checkpoints"))?;
    let mut names = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// Creates an output folder as left by a kill right after the checkpoint `name`.
fn killed_after(name: &str, from: &Path, to: &Path) -> Result<()> {
    let (from, to) = (
        from.join("checkpoints").join(name),
        to.join("checkpoints").join(name),
    );
    fs::create_dir_all(&to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

#[test]
fn a_resumed_training_ends_as_one_that_never_stopped() {
    contract("optimizer.choice", || {
        let whole = tempfile::tempdir()?;
        let expected = trained(whole.path(), 3, &[])?;
        let names = steps(whole.path())?;
        let of_steps = names.iter().filter(|name| !name.contains("epoch"));
        ensure!(of_steps.count() == 6, "the checkpoints are {names:?}");
        // In the middle of an epoch, at its end, and after its validation.
        let after_epoch = names.iter().position(|name| name.contains("epoch"));
        let after_epoch = after_epoch.context("no checkpoint is of a whole epoch")?;
        for name in [&names[0], &names[after_epoch - 1], &names[after_epoch]] {
            let resumed = tempfile::tempdir()?;
            killed_after(name, whole.path(), resumed.path())?;
            let result = trained(resumed.path(), 3, &["--resume"])?;
            ensure!(
                result == expected,
                "resumed from {name}, training ends with other values ({}): does \
                 `Trainable::optimizers_mut` list all optimizers?",
                result.differences(&expected)
            );
            ensure!(
                steps(resumed.path())?.last() == names.last(),
                "the resumed training took another number of steps"
            );
        }
        let again = trained(whole.path(), 3, &["--resume"])?;
        ensure!(
            again == expected,
            "a finished training changes when resumed"
        );
        Ok(())
    });
}

#[test]
fn training_starts_anew_where_there_is_nothing_to_resume() {
    contract("optimizer.choice", || {
        let (fresh, resumed) = (tempfile::tempdir()?, tempfile::tempdir()?);
        let options = ["--accumulate", "2"];
        let expected = trained(fresh.path(), 1, &options)?;
        let result = trained(resumed.path(), 1, &[&options[..], &["--resume"]].concat())?;
        ensure!(
            result == expected,
            "with --resume and nothing to resume, training ends with other values ({})",
            result.differences(&expected)
        );
        ensure!(
            result.progress.step == 2,
            "two epochs of one step took {:?}",
            result.progress
        );
        ensure!(
            globals::step() == 0,
            "a thread without a replica counts steps"
        );
        Ok(())
    });
}
