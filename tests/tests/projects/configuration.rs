//! Configuration files and `compare` of the default project.

use std::{fs, path::Path};

use kiln_tests::{
    idx::idx_data,
    parallel,
    rendered::{Project, text},
    running::{TRAINING, output, succeeds},
    runs::{checkpoints, latest_state, log_without_seconds, manifest, state},
    trainer::{Trainer, fails},
};
use serde_json::Value;

#[test]
#[ignore = "long"]
fn a_configuration_repeats_a_run() {
    let trainer = Trainer::new(&Project::default_answers());
    for (name, size) in [("small", 8), ("other", 10)] {
        idx_data(&trainer.folder.join(name), size);
    }
    let options =
        "--batch-size 3 --learning-rate 3e-3 --seed 7 --warm-up 2 --keep 9 --drop-remainder";
    trainer.run(
        "runs/first",
        &format!("{options} --data-dir small --epochs 2 train"),
    );
    let tests: [fn(&Trainer); 4] = [
        |trainer| {
            the_command_line_and_the_environment_precede_the_file(trainer);
            // Runs of the test before.
            runs_are_compared(trainer);
        },
        a_repeated_run_has_equal_checkpoints,
        a_resumed_run_keeps_the_file_of_other_options,
        wrong_files_are_refused_with_the_place,
    ];
    parallel::for_each(&tests, |test| test(&trainer));
}

/// The parameters of all checkpoints, by step and epoch.
fn states(runs: &Path) -> Vec<((usize, usize), Value)> {
    let checkpoints = checkpoints(runs).into_iter();
    checkpoints
        .map(|(place, path)| (place, state(&path)))
        .collect()
}

fn a_repeated_run_has_equal_checkpoints(trainer: &Trainer) {
    let [first, second] = ["runs/first", "runs/second"].map(|name| trainer.runs(name));
    trainer.run("runs/second", "--config runs/first/run.toml train");
    assert_eq!(states(&first), states(&second));
    assert_eq!(log_without_seconds(&first), log_without_seconds(&second));
    let of = |runs: &Path| {
        let text = fs::read_to_string(runs.join("run.toml")).unwrap();
        let options = text.lines().filter(|line| !line.starts_with('#'));
        options.collect::<Vec<_>>().join("\n")
    };
    assert_eq!(of(&first), of(&second));
    assert!(
        of(&first).contains("learning_rate = 0.003\n"),
        "{}",
        of(&first)
    );
    assert!(of(&first).contains("replicas = 2\n"), "{}", of(&first));
    // A test and a prediction have the same options.
    trainer.run(
        "runs/second",
        "test --config runs/first/run.toml --checkpoint best",
    );
    let input = "small/t10k-images-idx3-ubyte";
    trainer.run(
        "runs/second",
        &format!("--config runs/first/run.toml infer {input}"),
    );
}

fn the_command_line_and_the_environment_precede_the_file(trainer: &Trainer) {
    let words = "train --config runs/first/run.toml --seed 8 --no-drop-remainder";
    trainer.run("runs/third", words);
    let third = manifest(
        &checkpoints(&trainer.runs("runs/third"))
            .pop_last()
            .unwrap()
            .1,
    );
    let options = &third["run"]["options"];
    let of = |name: &str| {
        (
            options[name]["value"].clone(),
            options[name]["source"].clone(),
        )
    };
    assert_eq!(of("--seed"), (8.into(), "command-line".into()));
    assert_eq!(of("--drop-remainder").0, false);
    assert_eq!(of("--warm-up"), (2.into(), "file".into()));
    assert_eq!(of("--profile").1, "file");
    assert_eq!(of("--log-every").1, "default");
    trainer.run(
        "runs/by-hand",
        "--batch-size 3 --learning-rate 3e-3 --seed 8 --warm-up 2 --keep 9 \
                                 --data-dir small --epochs 2 train",
    );
    assert_eq!(
        states(&trainer.runs("runs/third")),
        states(&trainer.runs("runs/by-hand"))
    );
    let mut command = trainer.command("runs/fourth", "train --config runs/first/run.toml");
    succeeds(command.env("TRAINING_DATA_DIR", "other"), TRAINING);
    let fourth = fs::read_to_string(trainer.runs("runs/fourth/run.toml")).unwrap();
    assert!(fourth.contains("data_dir = \"other\"\n"), "{fourth}");
}

fn a_resumed_run_keeps_the_file_of_other_options(trainer: &Trainer) {
    let runs = trainer.runs("runs/resumed");
    trainer.run(
        "runs/resumed",
        "train --config runs/first/run.toml --epochs 1",
    );
    let first = fs::read_to_string(runs.join("run.toml")).unwrap();
    let printed = trainer.run(
        "runs/resumed",
        "train --config runs/first/run.toml --resume",
    );
    assert!(
        printed.contains("run.toml with other options is kept as "),
        "{printed}"
    );
    assert_eq!(fs::read_to_string(runs.join("run.1.toml")).unwrap(), first);
    assert_eq!(
        latest_state(&runs),
        latest_state(&trainer.runs("runs/first"))
    );
}

fn wrong_files_are_refused_with_the_place(trainer: &Trainer) {
    let path = trainer.folder.join("wrong.toml");
    for (content, options, expected) in [
        ("epochs = ", "", "wrong.toml:1:10: "),
        (
            "epochs = 1\nepochs = 2",
            "",
            "wrong.toml:2:1: duplicate key",
        ),
        (
            "lerning_rate = 1",
            "",
            "wrong.toml:1:1: unknown option `lerning_rate`; the nearest option is `learning_rate`",
        ),
        (
            "\ncheckpoint = 'best'",
            "",
            "wrong.toml:2:1: `checkpoint` belongs to `test`, `infer` and `export`, and not to training",
        ),
        (
            "epochs = '1'",
            "",
            "wrong.toml:1:10: `epochs` takes an integer, and this is a string",
        ),
        (
            "epochs = [1, 2]",
            "",
            "wrong.toml:1:10: `epochs` takes one value",
        ),
        (
            "epochs = 0",
            "",
            "wrong.toml:1:10: invalid value '0' for '--epochs <EPOCHS>': must be at least 1",
        ),
        (
            "learning_rate = -1.0",
            "",
            "wrong.toml:1:17: invalid value '-1.0' for '--learning-rate",
        ),
        (
            "strategy = 'mirored'",
            "",
            "a similar value exists: 'mirrored'",
        ),
        (
            "[train]\nepochs = 1",
            "",
            "wrong.toml:1:2: unknown table `train`",
        ),
        (
            "drop_remainder = true",
            " --steps-per-epoch 1",
            "--drop-remainder is set in wrong.toml:1:1",
        ),
    ] {
        fs::write(&path, content).unwrap();
        let words = format!("train --config wrong.toml{options}");
        let output = output(&mut trainer.command("runs/wrong", &words), TRAINING);
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(2), "{content}: {printed}");
        assert!(printed.contains(expected), "{content}: {printed}");
    }
    assert!(!trainer.runs("runs/wrong").exists());
}

fn runs_are_compared(trainer: &Trainer) {
    let mut command = trainer.command("runs", "compare runs/first runs/third --svg runs.svg");
    let printed = succeeds(&mut command, TRAINING);
    let cells = |name: &str| {
        let line = printed.lines().find(|line| line.starts_with(name));
        let line = line.unwrap_or_else(|| panic!("no {name}: {printed}"));
        line[name.len()..]
            .split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(cells("--seed"), ["7", "8"]);
    assert_eq!(cells("--drop-remainder"), ["true", "false"]);
    assert_eq!(cells("epochs"), ["2", "of", "2", "2", "of", "2"]);
    assert!(!printed.contains("--warm-up"), "{printed}");
    assert!(printed.contains("best validation accuracy"), "{printed}");
    let svg = fs::read_to_string(trainer.folder.join("runs.svg")).unwrap();
    assert!(
        svg.contains("\nruns/third\n") && svg.contains("\naccuracy, validation\n"),
        "{svg}"
    );
    fs::write(trainer.runs("runs/fourth/run.json"), "{").unwrap();
    fails(
        &mut trainer.command("runs", "compare runs/first runs/fourth runs/none"),
        &[
            "2 of 3 runs cannot be compared",
            "runs/fourth: run.json is damaged",
            "runs/none: there is no such folder",
            "validation accuracy",
        ],
    );
}
