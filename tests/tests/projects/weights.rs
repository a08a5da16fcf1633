//! Weights in and out: an export starts another training where the first one ended, and fine-tuning beats a start from
//! scratch.

use std::{fs, path::Path, process::Command};

use kiln_tests::{
    idx::digits_of,
    job, log, pytorch,
    rendered::Project,
    running::{TRAINING, succeeds},
    trainer::Trainer,
};
use serde_json::Value;

/// The first epoch hardly trains: the accuracy is that of the weights it starts from.
const STILL: [&str; 5] = ["train", "--epochs", "1", "--learning-rate", "1e-9"];

#[test]
#[ignore = "long"]
fn trainings_start_from_exported_weights() {
    // Without the project, so that another test compiles beside the trainings.
    let trainer = Trainer::new(&Project::default_answers());
    let program = &trainer.program;
    let at = |name: &str| trainer.runs(name);
    run(program, &at("first"), &["train", "--epochs", "2"]);
    let trained = accuracies(&at("first"))[1];
    assert!(trained > 0.5, "two epochs give an accuracy of {trained}");
    for format in ["safetensors", "pytorch-names"] {
        let file = at(format);
        let file = file.to_str().unwrap();
        let words = ["export", "--format", format, "--output", file];
        run(program, &at("first"), &words);
        let output = at(&format!("from-{format}"));
        let printed = run(
            program,
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
            Command::new(program).args(refused).arg(at("first")),
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
        run(program, &output, &[&STILL[..], &from, &words].concat());
        assert_eq!(accuracies(&output), [trained], "{strategy}");
    }
    // One more epoch with the weights, and one without.
    let one = ["train", "--epochs", "1", "--seed", "7"];
    run(program, &at("tuned"), &[&one[..], &from].concat());
    run(program, &at("scratch"), &one);
    let [tuned, scratch] = ["tuned", "scratch"].map(|name| accuracies(&at(name))[0]);
    assert!(
        tuned > scratch + 0.05,
        "{tuned} with weights, {scratch} without"
    );
    let record: Value = serde_json::from_slice(&fs::read(at("tuned/run.json")).unwrap()).unwrap();
    assert_eq!(record["initial_weights"]["file"], checkpoint.as_str());
    // A restarted job goes on from its checkpoint, with the same command line.
    let again = [&one[..], &from, &["--resume"]].concat();
    let printed = run(program, &at("tuned"), &again);
    assert!(printed.contains("--init-from is not read"), "{printed}");
}

/// The layers below are trained on the digits 0 to 4, and the task is to tell 5 to 9 apart: the file lacks the new head.
#[test]
#[ignore = "long"]
fn a_new_head_on_trained_layers_beats_scratch_after_an_epoch() {
    let trainer = Trainer::new(&Project::default_answers());
    let at = |name: &str| trainer.runs(name);
    for (name, digits) in [("low", 0..=4), ("high", 5..=9)] {
        digits_of(&at(name), digits);
    }
    let on = |data: &str, runs: &str, options: &[&str]| {
        let data = at(data);
        let words = [
            &["--replicas", "1", "--data-dir", data.to_str().unwrap()],
            options,
        ]
        .concat();
        run(&trainer.program, &at(runs), &words)
    };
    on("low", "first", &["--epochs", "5"]);
    let [whole, headless] = ["whole", "headless"].map(|name| at(&format!("{name}.safetensors")));
    let export = ["export", "--format", "pytorch-names", "--output"];
    let export = [&export[..], &[whole.to_str().unwrap()]].concat();
    run(&trainer.program, &at("first"), &export);
    pytorch::rename_layer(&whole, &headless, "output", "absent");
    let from = ["--init-from", headless.to_str().unwrap(), "--init-partial"];
    // Few examples of the new task: from 600, the first epoch teaches a start from scratch all that it needs.
    for seed in ["1", "2", "3"] {
        let one = ["--epochs", "1", "--limit-train", "128", "--seed", seed];
        let printed = on("high", "tuned", &[&one[..], &from].concat());
        assert!(
            printed.contains("matched    4 of the 6 weights"),
            "{printed}"
        );
        on("high", "scratch", &one);
        let [tuned, scratch] = ["tuned", "scratch"].map(|name| test_accuracy(&at(name)));
        println!("seed {seed}: {tuned} with trained layers, {scratch} from scratch");
        assert!(
            tuned > scratch + 0.1,
            "{tuned} with trained layers, {scratch} from scratch"
        );
    }
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

/// The accuracy of the test at the end of a run.
fn test_accuracy(runs: &Path) -> f64 {
    let log = log(runs);
    let test = log.iter().find(|line| line["split"] == "test");
    test.and_then(|line| line["accuracy"].as_f64()).unwrap()
}

/// The last checkpoint in an output folder.
fn checkpoint(runs: &Path) -> String {
    let path = kiln_tests::runs::latest(runs).expect("a checkpoint");
    path.to_str().unwrap().to_owned()
}
