//! Early stopping, time limits and limits of the splits, under every strategy of one process, and over kills
//! and resumes.

use std::{
    path::Path,
    thread::sleep,
    time::{Duration, Instant},
};

use kiln_tests::{
    parallel,
    rendered::Project,
    running::{TRAINING, succeeds},
    runs::{checkpoints, latest, latest_state, log, log_without_seconds, manifest},
    trainer::Trainer,
};
use serde_json::Value;

/// Few steps per epoch, and an accuracy that soon stops rising.
const SMALL: &str =
    "--replicas 2 --epochs 100 --limit-train 320 --limit-validation 50 --checkpoint-steps 4";

#[test]
#[ignore = "long"]
fn trainings_end_early_and_on_parts_of_the_data() {
    let project = Project::default_answers();
    let trainer = Trainer::new(&project);
    let tests: [fn(&Trainer); 9] = [
        patience_is_kept_over_kills,
        every_strategy_ends_early,
        every_strategy_validates_as_often_as_asked,
        epochs_without_a_validation_are_kept_over_kills,
        time_ends_a_training_within_an_epoch,
        a_limited_training_is_another_one,
        a_few_batches_are_learnt_by_heart,
        the_best_checkpoint_is_named,
        options_that_do_not_fit_together_are_refused,
    ];
    parallel::for_each(&tests, |test| test(&trainer));
    // Alone, as it compares times of trainings.
    time_counts_over_kills(&trainer);
}

/// Trains with `kills` kills and resumes, spread over `time`, which a training without them takes.
fn train_with_kills(trainer: &Trainer, runs: &str, options: &str, time: Duration, kills: u32) {
    for kill in 0..kills {
        let resume = if kill == 0 { "" } else { " --resume" };
        let running = trainer.start(runs, &format!("{options}{resume}"));
        sleep(time / kills);
        running.kill();
    }
    trainer.run(runs, &format!("{options} --resume"));
}

fn patience_is_kept_over_kills(trainer: &Trainer) {
    let options = format!("{SMALL} --patience 3 train");
    let start = Instant::now();
    let printed = trainer.run("runs/patient", &options);
    let time = start.elapsed();
    let whole = trainer.runs("runs/patient");
    assert!(log(&whole).len() < 200, "it did not end early: {printed}");
    let killed = trainer.runs("runs/killed");
    train_with_kills(trainer, "runs/killed", &options, time, 3);
    assert_eq!(latest_state(&killed), latest_state(&whole));
    assert_eq!(log_without_seconds(&killed), log_without_seconds(&whole));

    let mut compare = trainer.command("runs", "compare runs/killed");
    let compared = succeeds(&mut compare, TRAINING);
    let told = "runs/killed ended early, with ";
    assert!(compared.contains(told), "no {told}: {compared}");
    assert!(!compared.contains("unfinished"), "{compared}");

    // It has ended, and goes on with more patience, as if it had had that from the start.
    let ended = trainer.run("runs/killed", &format!("{options} --resume"));
    let step = &latest_state(&whole)["step"];
    let told = format!(
        "training ended after step {step}: 3 validations in a row without a better `accuracy`"
    );
    assert!(ended.contains(&told), "no {told}: {ended}");
    assert_eq!(latest_state(&killed), latest_state(&whole));
    let options = format!("{SMALL} --patience 5 train");
    let more = trainer.run("runs/killed", &format!("{options} --resume"));
    assert!(more.contains("--patience is 5, and was 3"), "{more}");
    trainer.run("runs/more-patient", &options);
    let expected = trainer.runs("runs/more-patient");
    assert_ne!(latest_state(&killed)["step"], *step);
    assert_eq!(latest_state(&killed), latest_state(&expected));
    assert_eq!(log_without_seconds(&killed), log_without_seconds(&expected));
}

/// A training that ends early is tested, and names its best checkpoint, which is kept.
fn the_best_checkpoint_is_named(trainer: &Trainer) {
    let printed = trainer.run("runs/best", &format!("{SMALL} --patience 2 --keep 1"));
    let (_, rest) = printed
        .split_once("the best checkpoint is ")
        .expect(&printed);
    let (named, rest) = rest.split_once(", with accuracy ").expect(&printed);
    assert!(rest.contains("test  loss"), "{printed}");
    let validations = log(&trainer.runs("runs/best"));
    let validations = validations
        .iter()
        .filter(|line| line["split"] == "validation");
    let accuracies = validations.map(|line| line["accuracy"].as_f64().unwrap());
    let best = accuracies.fold(0.0, f64::max);
    assert!(
        rest.starts_with(&format!("{best:.4}:")),
        "{best}: {printed}"
    );
    let checkpoint = trainer.folder.join(named);
    assert_eq!(manifest(&checkpoint)["validation"]["accuracy"], best);
}

/// Epochs of 1,350 steps, of which none takes as little as the limit.
fn time_ends_a_training_within_an_epoch(trainer: &Trainer) {
    let options = "--replicas 1 --batch-size 1 --epochs 1 train";
    trainer.run("runs/unlimited", options);
    let (runs, limited) = (
        trainer.runs("runs/limited"),
        format!("{options} --max-time 0.05s"),
    );
    let printed = trainer.run("runs/limited", &limited);
    let places: Vec<(usize, usize)> = checkpoints(&runs).into_keys().collect();
    let &[(step, 0)] = &places[..] else {
        panic!("{places:?}: {printed}");
    };
    assert!(step < 1_350, "{printed}");
    let over = "--max-time of 0.05 s is over";
    assert!(
        printed.contains(&format!("training ends after step {step}: {over}")),
        "{printed}"
    );

    let printed = trainer.run("runs/limited", &format!("{limited} --resume"));
    assert!(
        printed.contains(&format!("training ended after step {step}: {over}")),
        "{printed}"
    );
    assert_eq!(checkpoints(&runs).into_keys().collect::<Vec<_>>(), places);
    trainer.run("runs/limited", &format!("{options} --max-time 1h --resume"));
    let unlimited = trainer.runs("runs/unlimited");
    assert_eq!(without_time(latest_state(&runs)), latest_state(&unlimited));
    assert_eq!(log_without_seconds(&runs), log_without_seconds(&unlimited));
}

/// The state of a checkpoint, without the time of training.
fn without_time(mut state: Value) -> Value {
    state.as_object_mut().unwrap().remove("stopping");
    state
}

/// A training that is killed again and again ends by the time of all its lives together, and goes on to the
/// bits of one that was neither killed nor limited.
fn time_counts_over_kills(trainer: &Trainer) {
    let options = "--replicas 1 --batch-size 1 --epochs 5 --checkpoint-steps 50 train";
    let seconds = |runs: &Path| {
        let seconds = &latest_state(runs)["stopping"]["seconds"];
        seconds.as_f64().expect("the time of training")
    };
    let last = |runs: &Path| checkpoints(runs).into_keys().next_back();
    trainer.run("runs/in-time", &format!("{options} --max-time 1h"));
    let whole = trainer.runs("runs/in-time");
    let time = seconds(&whole);
    // Far from the time of three short lives, and from that of all epochs.
    let limit = 0.4 * time;
    let (runs, name) = (trainer.runs("runs/killed-in-time"), "runs/killed-in-time");
    let limited = format!("{options} --max-time {limit:.3}s");
    let mut before = (None, 0.0);
    for kill in 0..3 {
        let resume = if kill == 0 { "" } else { " --resume" };
        let running = trainer.start(name, &format!("{limited}{resume}"));
        let running = running.wait_until("a checkpoint", || last(&runs) > before.0);
        sleep(Duration::from_secs_f64(time / 30.0));
        running.kill();
        let now = (last(&runs), seconds(&runs));
        assert!(
            now.0 > before.0 && now.1 > before.1,
            "kill {kill}: {now:?} after {before:?}"
        );
        before = now;
    }
    let printed = trainer.run(name, &format!("{limited} --resume"));
    let step = &latest_state(&runs)["step"];
    let told = format!("training ends after step {step}: --max-time of ");
    assert!(printed.contains(&told), "no {told}: {printed}");
    let total = seconds(&runs);
    assert!(
        // The option has milliseconds.
        (limit - 0.001..time).contains(&total),
        "{total} s, limit {limit} s, whole {time} s: {printed}"
    );
    trainer.run(name, &format!("{options} --max-time 1h --resume"));
    assert_eq!(
        without_time(latest_state(&runs)),
        without_time(latest_state(&whole))
    );
    assert_eq!(log_without_seconds(&runs), log_without_seconds(&whole));
}

const STRATEGIES: [&str; 5] = [
    "one-device",
    "mirrored --replicas 1",
    "mirrored --replicas 3",
    "parameter-server --replicas 2",
    "model-parallel --micro-batches 2",
];

/// The epochs of a split in a log.
fn epochs_of(log: &[Value], split: &str) -> Vec<u64> {
    let lines = log.iter().filter(|line| line["split"] == split);
    lines.map(|line| line["epoch"].as_u64().unwrap()).collect()
}

fn every_strategy_validates_as_often_as_asked(trainer: &Trainer) {
    for strategy in STRATEGIES {
        let options =
            format!("--strategy {strategy} --limit-train 96 --limit-validation 20 --keep 9");
        let name = format!("runs/seldom-{}", strategy.replace(' ', "-"));
        every_second_epoch_and_the_last_are_validated(trainer, &name, &options);
        patience_counts_validations(trainer, &format!("{name}-patient"), &options);
        // Replicas of a parameter server do not train to equal bits twice.
        if !strategy.starts_with("parameter-server") {
            validations_do_not_change_a_bit_of_the_training(trainer, &name, &options);
        }
    }
}

/// Validations in the log, in the report and in the checkpoints. Each epoch has a checkpoint, with the metrics of a
/// validation if there was one; they choose the best checkpoint.
fn every_second_epoch_and_the_last_are_validated(trainer: &Trainer, name: &str, options: &str) {
    let seldom = format!("{options} --epochs 5 --validation-epochs 2 train");
    let printed = trainer.run(name, &seldom);
    let runs = trainer.runs(name);
    let log = log(&runs);
    assert_eq!(epochs_of(&log, "train"), [1, 2, 3, 4, 5], "{options}");
    assert_eq!(epochs_of(&log, "validation"), [2, 4, 5], "{options}");
    let validated = [false, true, false, true, true];
    for (epoch, is_validated) in (1..).zip(validated) {
        let start = format!("epoch {epoch}/5");
        let line = printed.lines().find(|line| line.contains(&start));
        let line = line.unwrap_or_else(|| panic!("{options}, {start}: {printed}"));
        assert!(line.contains("train  loss"), "{options}: {line}");
        let has_validation = line.contains("validation");
        assert_eq!(has_validation, is_validated, "{options}: {line}");
    }
    let have_metrics = checkpoints(&runs).into_values().map(|checkpoint| {
        let validation = manifest(&checkpoint)["validation"].clone();
        validation
            .as_object()
            .is_some_and(|metrics| !metrics.is_empty())
    });
    assert_eq!(have_metrics.collect::<Vec<bool>>(), validated, "{options}");
    trainer.run(name, "test --checkpoint best");
}

fn patience_counts_validations(trainer: &Trainer, name: &str, options: &str) {
    let patient = "--epochs 9 --validation-epochs 2 --patience 1 --min-delta 2 train";
    trainer.run(name, &format!("{options} {patient}"));
    let log = log(&trainer.runs(name));
    assert_eq!(epochs_of(&log, "train"), [1, 2, 3, 4], "{options}");
    assert_eq!(epochs_of(&log, "validation"), [2, 4], "{options}");
}

/// A comparison of the training `name`, five epochs with three validations, to one with five validations.
fn validations_do_not_change_a_bit_of_the_training(trainer: &Trainer, name: &str, options: &str) {
    let often = format!("{name}-often");
    trainer.run(&often, &format!("{options} --epochs 5 train"));
    let [seldom, often] = [name, &often].map(|name| trainer.runs(name));
    assert_eq!(latest_state(&seldom), latest_state(&often), "{options}");
    // The test of the best checkpoint added a line.
    let mut log = log_without_seconds(&seldom);
    log.retain(|line| line["split"] != "test");
    let mut expected = log_without_seconds(&often);
    let unvalidated = [1, 3].map(Value::from);
    expected.retain(|line| line["split"] == "train" || !unvalidated.contains(&line["epoch"]));
    assert_eq!(log, expected, "{options}");
}

fn epochs_without_a_validation_are_kept_over_kills(trainer: &Trainer) {
    let options = "--replicas 2 --epochs 30 --limit-train 320 --limit-validation 50 --checkpoint-steps 4 \
                   --validation-epochs 7 --checkpoint-epochs 3 train";
    let start = Instant::now();
    trainer.run("runs/seldom", options);
    let time = start.elapsed();
    let whole = trainer.runs("runs/seldom");
    let log = log_without_seconds(&whole);
    assert_eq!(epochs_of(&log, "validation"), [7, 14, 21, 28, 30]);
    let killed = trainer.runs("runs/seldom-killed");
    train_with_kills(trainer, "runs/seldom-killed", options, time, 4);
    assert_eq!(latest_state(&killed), latest_state(&whole));
    assert_eq!(log_without_seconds(&killed), log);
}

fn every_strategy_ends_early(trainer: &Trainer) {
    for strategy in STRATEGIES {
        let options = format!(
            "--strategy {strategy} --limit-train 96 --limit-validation 20 --epochs 9 train"
        );
        let runs = format!("runs/early-{}", strategy.replace(' ', "-"));
        // No change is as large.
        let printed = trainer.run(&runs, &format!("{options} --patience 1 --min-delta 2"));
        let told = "1 validation without a better `accuracy`";
        assert!(printed.contains(told), "{strategy}: {printed}");
        let epochs = log(&trainer.runs(&runs));
        assert_eq!(
            epochs.len(),
            4,
            "{strategy}: two epochs of two splits: {printed}"
        );
        let examples: Vec<&Value> = epochs.iter().map(|line| &line["examples"]).collect();
        assert_eq!(examples, [96, 20, 96, 20], "{strategy}");

        let runs = format!("{runs}-in-time");
        let printed = trainer.run(&runs, &format!("{options} --max-time 0.001s"));
        let step = &latest_state(&trainer.runs(&runs))["step"];
        let told = format!("training ends after step {step}: --max-time of 0.001 s is over");
        assert!(printed.contains(&told), "{strategy}: no {told}: {printed}");
    }
}

fn a_few_batches_are_learnt_by_heart(trainer: &Trainer) {
    trainer.run(
        "runs/overfit",
        "--replicas 2 --batch-size 16 --epochs 40 --overfit-batches 2 train",
    );
    let log = log(&trainer.runs("runs/overfit"));
    for line in &log[log.len() - 2..] {
        assert_eq!(
            (&line["accuracy"], &line["examples"]),
            (&1.0.into(), &64.into()),
            "{line}"
        );
    }
}

fn a_limited_training_is_another_one(trainer: &Trainer) {
    let options = "--replicas 2 --epochs 2 train";
    let limited = format!("{options} --limit-train 100 --limit-validation 5000");
    let printed = trainer.run("runs/part", &limited);
    for line in [
        "--limit-train 100: 100 of 1350 examples",
        "--limit-validation 5000: all 150 examples, as there are no more",
    ] {
        assert!(printed.contains(line), "no {line}: {printed}");
    }
    let before = latest(&trainer.runs("runs/part"));
    for (other, was) in [("", "100"), (" --limit-train 90", "100")] {
        let message = format!("(--limit-train was {was}");
        trainer.fails(
            "runs/part",
            &format!("{options}{other} --resume"),
            &["the train split has", "had 100 examples", &message],
        );
    }
    assert_eq!(latest(&trainer.runs("runs/part")), before);
    trainer.run(
        "runs/part",
        &format!("{} --resume", limited.replace("--epochs 2", "--epochs 3")),
    );
}

fn options_that_do_not_fit_together_are_refused(trainer: &Trainer) {
    for (options, message) in [
        ("--min-delta 0.1 train", "--min-delta is for early stopping"),
        (
            "--limit-train 9 train --overfit-batches 2",
            "leave out --limit-train",
        ),
    ] {
        trainer.fails("runs/refused", options, &[message]);
    }
    assert!(!trainer.runs("runs/refused").exists(), "nothing was begun");
}
