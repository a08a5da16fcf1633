//! Rendered projects compile without warnings, pass their tests, and train.

use std::{collections::BTreeSet, fs, path::Path};

use kiln_tests::{
    job, log, mpi,
    rendered::{AS_IN_RELEASE, Project, replace_in, shared_features},
    repository,
    runs::log_without_seconds,
    trainer::Trainer,
};
use serde_json::Value;

use crate::sites;

/// The minimum test accuracy of one and two replicas on the digits.
const ACCURACY: f64 = 0.97;

#[test]
fn the_default_crate_passes_its_own_tests() {
    let project = Project::default_answers();
    project.cargo(&["test"]);
    let listed = project.cargo(&["test", "--test", "contract", "--", "--list"]);
    let listed: BTreeSet<&str> = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .collect();
    assert_eq!(listed, guards().iter().map(String::as_str).collect());
}

/// A fast build of the engine, whose own tests compute little.
const QUICK_ENGINE: &str = "profile.dev.package.kiln-engine.opt-level=0";

/// The packages of the engine, for cargo.
const ENGINE: [&str; 4] = ["-p", "kiln-engine", "-p", "kiln-kernels"];

#[test]
fn the_engine_passes_its_own_tests() {
    let project = Project::of_engine().with_settings([QUICK_ENGINE]);
    let features = format!("tensorboard,{}", shared_features());
    project.cargo(&[&["test"], &ENGINE[..], &["--features", &features]].concat());
}

#[test]
#[ignore = "long"]
fn the_crates_are_clean() {
    let project = Project::default_answers();
    project.is_clean();
    project.check(&["doc", "--no-deps"], "", &[]);
    // Only one project at a time.
    drop(project);
    let project = Project::of_engine();
    project.cargo(&["fmt", "--all", "--check"]);
    let features = format!("tensorboard,{}", shared_features());
    let denied = ["--", "-D", "warnings"];
    let clippy = [&["clippy"], &ENGINE[..], &["--all-targets"]].concat();
    project.check(&clippy, &features, &denied);
    let doc = [&["doc"], &ENGINE[..], &["--no-deps"]].concat();
    project.check(&doc, &features, &[]);
}

#[test]
#[ignore = "long"]
fn other_answers_are_clean() {
    let answers = [
        ("strategy", "one-device"),
        ("tensorboard", "no"),
        ("ci", "github"),
    ];
    let project = Project::with_answers_and_engine(&answers);
    if mpi::is_installed() {
        // The engine does without it, but in all other checks it adds features to crates below Burn.
        let section = "[dependencies]\n";
        let dependency = "mpi = { version = \"0.8.2\", default-features = false }\n";
        let manifest = project.path().join("Cargo.toml");
        replace_in(&manifest, section, &format!("{section}{dependency}"));
    }
    project.is_clean();
    // Only one project at a time.
    drop(project);
    if mpi::is_there() {
        let answers = [("strategy", "multi-worker-mirrored"), ("cluster", "slurm")];
        Project::with_answers(&answers).is_clean();
    }
}

#[test]
fn the_readme_of_a_project_lists_its_sites() {
    let sites = sites();
    let rows = sites.iter().map(|site| {
        let [id, file, what] = ["id", "file", "what"].map(|key| site[key].as_str().unwrap());
        format!("| `{id}` | `{file}` | {what} |")
    });
    let rows: Vec<String> = rows.collect();
    let readme = fs::read_to_string(repository().join("template/README.md.liquid")).unwrap();
    let listed: Vec<&str> = readme
        .lines()
        .filter(|line| line.contains("| `src/"))
        .collect();
    assert_eq!(listed, rows);
    let front = fs::read_to_string(repository().join("README.md")).unwrap();
    assert!(front.contains(&format!("**{} TODO sites**", rows.len())));
}

/// The contract tests listed in `todos.toml`.
fn guards() -> BTreeSet<String> {
    let sites = sites();
    let tests = sites
        .iter()
        .flat_map(|site| site["test"].as_array().unwrap());
    tests
        .map(|test| test.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn the_default_crate_trains_on_one_and_two_replicas() {
    // Without the project, so that other tests compile beside the trainings.
    let trainer = Trainer::new(&Project::default_answers());
    for (options, runs) in [
        ("--replicas 1", "runs/1"),
        ("--replicas 2", "runs/2"),
        ("--strategy one-device", "runs/one-device"),
    ] {
        let printed = trainer.run(runs, options);
        assert!(printed.contains("test  loss "), "{printed}");
        let folder = trainer.runs(runs);
        check_log(&folder);

        trainer.run(runs, &format!("test {options}"));
        let tests = log(&folder)
            .into_iter()
            .filter(|line| line["split"] == "test");
        let losses: Vec<f64> = tests.map(|line| line["loss"].as_f64().unwrap()).collect();
        assert_eq!(losses.len(), 2);
        assert_eq!(
            losses[0], losses[1],
            "a checkpoint tests as the model in memory"
        );
    }
}

#[test]
#[ignore = "long"]
fn several_replicas_train_as_one_does_in_debug_and_in_release() {
    let in_debug = trained(&Trainer::new(&Project::default_answers()), 2);
    let project = Project::default_answers().with_settings(AS_IN_RELEASE);
    let trainer = Trainer::new(&project);
    // Other tests compile beside the trainings.
    drop(project);
    let [one, two, three, four] = [1, 2, 3, 4].map(|replicas| trained(&trainer, replicas));
    for other in [&two, &three, &four] {
        for (expected, line) in one.iter().zip(other) {
            for metric in ["loss", "accuracy"] {
                let values =
                    [&expected[metric], &line[metric]].map(|value| value.as_f64().unwrap());
                let difference = (values[0] - values[1]).abs();
                assert!(difference < 1e-5, "{expected} and {line}");
            }
        }
    }
    assert_eq!(two, in_debug, "the same bits");
}

/// The log of three epochs, without seconds. 1,350 examples give a last batch of 6, which 4 replicas share unevenly.
fn trained(trainer: &Trainer, replicas: usize) -> Vec<Value> {
    let (runs, batch_size) = (format!("runs/{replicas}"), 12 / replicas);
    let options = format!("--epochs 3 --replicas {replicas} --batch-size {batch_size} train");
    trainer.run(&runs, &options);
    log_without_seconds(&trainer.runs(&runs))
}

fn check_log(runs: &Path) {
    let lines = log(runs);
    for (split, examples, expected) in [
        ("train", 1_350, 20),
        ("validation", 150, 20),
        ("test", 297, 1),
    ] {
        let of_split: Vec<_> = lines.iter().filter(|line| line["split"] == split).collect();
        assert_eq!(of_split.len(), expected, "lines of {split}");
        assert!(
            of_split.iter().all(|line| line["examples"] == examples),
            "examples of {split}"
        );
    }
    let accuracy = lines.last().unwrap()["accuracy"].as_f64().unwrap();
    assert!(accuracy >= ACCURACY, "the test accuracy is {accuracy}");
}

#[test]
#[ignore = "long"]
fn wrong_input_is_an_error_that_names_it() {
    let trainer = Trainer::new(&Project::default_answers());
    fs::write(trainer.folder.join("file"), "text").unwrap();
    for (options, message) in [
        ("--batch-size 0", "must be at least 1"),
        ("--epochs 0", "must be at least 1"),
        ("--learning-rate -1", ""),
        ("--strategy one-device --replicas 2", "has one replica"),
        (
            "--max-staleness 2",
            "--max-staleness is for --strategy parameter-server",
        ),
        (
            "--strategy parameter-server --cross-device-ops host",
            "--cross-device-ops is for --strategy mirrored",
        ),
        (
            "--strategy one-device --exchange-precision bfloat16",
            "--exchange-precision bfloat16 is not for --strategy one-device",
        ),
        ("--data-dir missing", "neither train-images-idx3-ubyte"),
        ("test", "train first"),
    ] {
        job::fails(&mut trainer.command("runs/missing", options), &[message]);
    }
    let message = "cannot make the output folder file";
    job::fails(&mut trainer.command("file", "--epochs 1"), &[message]);
}
