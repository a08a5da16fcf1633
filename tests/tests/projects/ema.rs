//! Averaged weights (`--ema`) of the default project: kills, replicas, processes, and what uses the averages.

use std::{fs, path::Path};

use kiln_tests::{
    job::{Job, assert_close},
    mpi, parallel,
    rendered::{EXAMPLES, Project, text},
    running::Running,
    runs::{assert_whole, checkpoints, latest, manifest},
};
use serde_json::Value;
use tempfile::TempDir;

/// Updates of an epoch with the default global batch of 32 examples.
const UPDATES: u64 = 43;

#[test]
#[ignore = "long"]
fn averaged_weights_of_one_process() {
    let (job, _folder) = job(&["weights"]);
    let tests: [fn(&Job); 3] = [
        |job| {
            the_average_is_what_is_evaluated(job);
            // With a checkpoint of the test before.
            what_is_missing_is_told(job);
        },
        a_killed_training_averages_as_one_that_was_not,
        checked_replicas_average_alike,
    ];
    parallel::for_each(&tests, |test| test(&job));
}

#[test]
#[ignore = "long"]
fn averaged_weights_of_several_processes() {
    if !mpi::is_there() {
        return;
    }
    let (job, _folder) = job(&EXAMPLES);
    let options = ["--epochs", "1", "--ema", "0.9", "--batch-size"];
    let one = ["6", "--strategy", "one-device", "--output-dir", "runs/one"];
    job.runs_alone(&[&options[..], &one].concat());
    let two = ["1", "--replicas", "3", "--output-dir", "runs/two"];
    job.runs(2, &[&options[..], &two].concat());
    assert_close(
        &job.weights("runs/two"),
        &job.weights("runs/one"),
        "two processes",
    );
    // The averages of the server reach the replicas of both processes, which validate with them.
    let server = ["3", "--replicas", "1", "--output-dir", "runs/server"];
    let server_job = Job {
        strategy: "parameter-server",
        ..job
    };
    let printed = server_job.runs(2, &[&options[..], &server].concat());
    assert!(
        printed.contains("validation (averaged weights)"),
        "{printed}"
    );
    let checkpoint = server_job.latest("runs/server");
    let validated = manifest(&checkpoint)["validation"]["loss"].clone();
    let again = [
        "test",
        "--checkpoint",
        &checkpoint.to_string_lossy(),
        "--output-dir",
        "runs/again",
    ];
    server_job.runs_alone(&again);
    let [tested] = &server_job.log("runs/server")[2..] else {
        panic!("there is no test")
    };
    let again = server_job.log("runs/again").remove(0);
    assert!(validated.is_number());
    let losses = [tested, &again].map(|line| line["loss"].as_f64().unwrap());
    assert_close(&losses[..1], &losses[1..], "the test of the averages");
}

fn job(examples: &[&str]) -> (Job, TempDir) {
    Job::apart(
        Project::default_answers(),
        examples,
        "multi-worker-mirrored",
    )
}

/// The manifest of the last checkpoint, without what differs between equal trainings.
fn state(job: &Job, runs: &str) -> Value {
    let mut state = job.manifest(runs);
    state.as_object_mut().unwrap().remove("run");
    state
}

/// The bits of parameters and averages, also after kills within epochs.
fn a_killed_training_averages_as_one_that_was_not(job: &Job) {
    let options = ["train", "--epochs", "3", "--ema", "0.98", "--ema-warmup"];
    job.runs_alone(&[&options[..], &["--output-dir", "runs/whole"]].concat());
    let killed = job.folder.join("runs/killed");
    let more = [
        "--output-dir",
        "runs/killed",
        "--resume",
        "--checkpoint-steps",
        "5",
    ];
    let options = [&options[..], &more].concat();
    for kill in 1..=3 {
        let running = Running::start(job.alone().args(&options));
        let enough = || steps(&killed) >= kill * 20;
        let printed = text(&running.wait_until("enough steps", enough).kill());
        assert!(!printed.contains("no averaged weights"), "{printed}");
    }
    job.runs_alone(&options);
    let last = latest(&killed).unwrap();
    assert_whole(&last);
    assert!(last.join("ema.bpk").exists());
    let (whole, killed) = (state(job, "runs/whole"), state(job, "runs/killed"));
    assert_eq!(killed, whole);
    assert_ne!(whole["ema"], whole["parameters"]);
    assert_eq!(whole["step"], 3 * UPDATES);
}

fn steps(runs: &Path) -> usize {
    let last = checkpoints(runs).pop_last();
    last.map_or(0, |((step, _), _)| step)
}

/// Each replica then updates and averages its own parameters.
fn checked_replicas_average_alike(job: &Job) {
    let train = |runs: &str, options: &[&str]| {
        let base = ["train", "--epochs", "2", "--ema", "0.95"];
        job.runs_alone(&[&base[..], options, &["--output-dir", runs]].concat());
        job.weights(runs)
    };
    let one = ["--strategy", "one-device", "--batch-size", "24"];
    let three = ["--replicas", "3", "--batch-size", "8", "--check-replicas"];
    let [one, three] = [("runs/one", &one[..]), ("runs/three", &three)].map(|it| train(it.0, it.1));
    assert_close(&three, &one, "three replicas, checked");
}

/// Validation, the test after a training, the best checkpoint, `test` and `infer` use the averages.
fn the_average_is_what_is_evaluated(job: &Job) {
    let options = [
        "--epochs",
        "2",
        "--ema",
        "0.99",
        "--output-dir",
        "runs/used",
    ];
    let printed = job.runs_alone(&options);
    assert!(
        printed.contains("|  validation (averaged weights)  loss"),
        "{printed}"
    );
    assert!(
        printed.contains("test (averaged weights)  loss"),
        "{printed}"
    );
    let test = |which: &[&str]| {
        let words = ["test", "--checkpoint", "best", "--output-dir", "runs/used"];
        let printed = job.runs_alone(&[&words[..], which].concat());
        let line = job.log("runs/used").pop().unwrap();
        (printed, line["loss"].as_f64().unwrap())
    };
    let log = job.log("runs/used");
    let of_training = log.last().unwrap();
    assert_eq!(of_training["weights"], "ema");
    assert_eq!(
        log[0].get("weights"),
        None,
        "the training metrics are of the model"
    );
    let (printed, average) = test(&[]);
    assert!(
        printed.contains("testing the averaged weights of "),
        "{printed}"
    );
    assert_eq!(of_training["loss"], average);
    assert_eq!(test(&["--weights", "ema"]).1, average);
    // After so few updates, the average is far behind.
    let (printed, model) = test(&["--weights", "model"]);
    assert!(
        model < average - 0.1 && !printed.contains("averaged"),
        "{model}: {printed}"
    );
    let images = "data/t10k-images-idx3-ubyte.gz";
    let infer = |which: &[&str]| {
        let words = ["infer", images, "--output-dir", "runs/used"];
        job.runs_alone(&[&words[..], which].concat())
    };
    assert_eq!(infer(&[]), infer(&["--weights", "ema"]));
    assert_ne!(infer(&[]), infer(&["--weights", "model"]));
    // The averages are kept, and the model decides.
    let options = [
        "train",
        "--epochs",
        "1",
        "--ema",
        "0.99",
        "--weights",
        "model",
    ];
    let printed = job.runs_alone(&[&options[..], &["--output-dir", "runs/model"]].concat());
    assert!(!printed.contains("averaged"), "{printed}");
    assert!(job.latest("runs/model").join("ema.bpk").exists());
}

fn what_is_missing_is_told(job: &Job) {
    let fails = |words: &[&str], messages: &[&str]| job.fails(job.alone().args(words), messages);
    fails(&["--ema", "1"], &["--ema", "below 1"]);
    fails(
        &["train", "--ema-warmup"],
        &["--ema-warmup needs --ema DECAY"],
    );
    fails(
        &["train", "--weights", "ema"],
        &["--weights ema needs --ema DECAY"],
    );
    let plain = ["--output-dir", "runs/plain"];
    job.runs_alone(&[&["train", "--epochs", "1"], &plain[..]].concat());
    let none = [
        "it has no averaged weights (ema.bpk)",
        "use --weights model",
    ];
    fails(&[&["test", "--weights", "ema"], &plain[..]].concat(), &none);
    let resume = ["train", "--epochs", "2", "--resume", "--ema", "0.9"];
    let printed = job.runs_alone(&[&resume[..], &plain].concat());
    let starts = "the checkpoint has no averaged weights: the average of --ema starts";
    assert!(
        printed.contains(starts) && printed.contains("--ema is 0.9"),
        "{printed}"
    );
    let resume = ["train", "--epochs", "3", "--resume"];
    let printed = job.runs_alone(&[&resume[..], &plain].concat());
    assert!(
        printed.contains("--ema is ") && printed.contains("and was 0.9"),
        "{printed}"
    );
    assert!(!job.latest("runs/plain").join("ema.bpk").exists());
    let last = job.latest("runs/used");
    fs::remove_file(last.join("ema.bpk")).unwrap();
    let which = last.display().to_string();
    fails(
        &["test", "--checkpoint", &which],
        &["cannot read its ema.bpk"],
    );
}
