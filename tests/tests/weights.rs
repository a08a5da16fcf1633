//! Weights in and out: an export starts another training where the first one ended, and fine-tuning beats a start from
//! scratch.

use std::{fs, path::Path, process::Command};

use kiln_tests::{
    job, log, pytorch,
    rendered::Project,
    running::{TRAINING, succeeds},
};
use serde_json::Value;

/// The first epoch hardly trains: the accuracy is that of the weights it starts from.
const STILL: [&str; 5] = ["train", "--epochs", "1", "--learning-rate", "1e-9"];

#[test]
#[ignore = "long"]
fn trainings_start_from_exported_weights() {
    let project = Project::default_answers();
    let program = project.build();
    let folder = project.path().join("runs");
    let at = |name: &str| folder.join(name);
    run(&program, &at("first"), &["train", "--epochs", "2"]);
    let trained = accuracies(&at("first"))[1];
    assert!(trained > 0.5, "two epochs give an accuracy of {trained}");
    for format in ["safetensors", "pytorch-names"] {
        let file = at(format);
        let file = file.to_str().unwrap();
        let words = ["export", "--format", format, "--output", file];
        run(&program, &at("first"), &words);
        let output = at(&format!("from-{format}"));
        let printed = run(
            &program,
            &output,
            &[&STILL[..], &["--init-from", file]].concat(),
        );
        assert!(
            printed.contains("matched    6 of the 6 weights"),
            "{printed}"
        );
        assert_eq!(accuracies(&output), [trained], "{format}");
        let refused = [&words[..], &["--output-dir"]].concat();
        job::fails(
            Command::new(&program).args(refused).arg(at("first")),
            &["exists", "--force"],
        );
    }
    // A checkpoint, on one replica and on three, and under other strategies.
    let checkpoint = checkpoint(&at("first"));
    let from = ["--init-from", checkpoint.as_str()];
    for (strategy, replicas) in [
        ("one-device", "1"),
        ("mirrored", "3"),
        ("model-parallel", "1"),
        ("parameter-server", "2"),
    ] {
        let output = at(strategy);
        let words = ["--strategy", strategy, "--replicas", replicas];
        run(&program, &output, &[&STILL[..], &from, &words].concat());
        assert_eq!(accuracies(&output), [trained], "{strategy}");
    }
    // One more epoch with the weights, and one without.
    let one = ["train", "--epochs", "1", "--seed", "7"];
    run(&program, &at("tuned"), &[&one[..], &from].concat());
    run(&program, &at("scratch"), &one);
    let [tuned, scratch] = ["tuned", "scratch"].map(|name| accuracies(&at(name))[0]);
    assert!(
        tuned > scratch + 0.05,
        "{tuned} with weights, {scratch} without"
    );
    let record: Value = serde_json::from_slice(&fs::read(at("tuned/run.json")).unwrap()).unwrap();
    assert_eq!(record["initial_weights"]["file"], checkpoint.as_str());
    // A restarted job goes on from its checkpoint, with the same command line.
    let again = [&one[..], &from, &["--resume"]].concat();
    let printed = run(&program, &at("tuned"), &again);
    assert!(printed.contains("--init-from is not read"), "{printed}");
}

#[test]
#[ignore = "long"]
fn outputs_and_exports_are_those_of_pytorch() {
    let project = Project::default_answers();
    pytorch::add_test(&project, "default");
    project.cargo(&["test", "--test", "pytorch"]);
}

fn run(program: &Path, runs: &Path, options: &[&str]) -> String {
    let mut command = Command::new(program);
    succeeds(
        command.args(options).arg("--output-dir").arg(runs),
        TRAINING,
    )
}

/// The accuracy of each validation.
fn accuracies(runs: &Path) -> Vec<f64> {
    let log = log(runs);
    let validations = log.iter().filter(|line| line["split"] == "validation");
    let accuracies = validations.map(|line| line["accuracy"].as_f64().unwrap());
    accuracies.collect()
}

/// The last checkpoint in an output folder.
fn checkpoint(runs: &Path) -> String {
    let path = kiln_tests::runs::latest(runs).expect("a checkpoint");
    path.to_str().unwrap().to_owned()
}
