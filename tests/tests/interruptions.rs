//! A training stopped by signals, at any moment and several at once, saves its progress, reports
//! the stop by its exit status, and resumes to the results of an uninterrupted training.

use std::{
    fs,
    process::Command,
    sync::{Mutex, PoisonError},
    thread::sleep,
    time::{Duration, Instant},
};

use kiln_tests::{
    idx::idx_data_of,
    interruptions::{Ended, STOPS, Whole, unfinished},
    job::{Signal, signal, wait_for_second_epoch},
    parallel,
    random::Random,
    rendered::{Project, text},
    running::{Running, TRAINING, succeeds},
    runs::{assert_whole, checkpoints, latest, latest_state, log, log_without_seconds, manifest},
    trainer::Trainer,
};

/// The number of trainings that are stopped at random moments.
const TRAININGS: u32 = 150;

/// The options of a training to which others are compared.
const NEVER_STOPPED: &str = "--replicas 1 --epochs 6 train";

#[test]
#[ignore = "long"]
fn stopped_trainings_go_on_to_the_same_bits() {
    let project = Project::default_answers();
    let trainer = Trainer::new(&project);
    random_moments(&trainer);
    trainer.run("runs/never-stopped", NEVER_STOPPED);
    let tests: [fn(&Trainer); 7] = [
        a_stop_in_the_validation_costs_no_epoch,
        a_lost_reader_ends_no_training,
        each_signal_has_its_exit_status,
        a_stop_in_the_test_leaves_no_result,
        only_a_later_signal_stops_waiting_for_the_step,
        a_save_that_began_ends,
        a_lost_terminal_ends_no_training,
    ];
    parallel::for_each(&tests, |test| test(&trainer));
}

/// Signals arrive while the program loads, trains, saves, validates, tests or exits.
fn random_moments(trainer: &Trainer) {
    let server = "parameter-server --replicas 1 --max-staleness 0";
    let kinds = [
        "--replicas 1 train".to_owned(),
        "--replicas 1".to_owned(),
        "--replicas 1 --checkpoint-steps 7 --accumulate 3 train".to_owned(),
        "--replicas 2 --checkpoint-steps 5 --keep 2".to_owned(),
        format!("--strategy {server} train"),
        "--strategy model-parallel --micro-batches 2 --checkpoint-steps 9".to_owned(),
    ];
    idx_data_of(&trainer.folder.join("short"), 8, [150, 30]);
    let command = |kind: &str, runs: &str, resume: bool| {
        let options = format!("--data-dir short --epochs 3 --batch-size 2 {kind}");
        let mut command = trainer.command(runs, &options);
        command.args(resume.then_some("--resume"));
        command
    };
    let wholes = kinds.each_ref().map(|kind| {
        let runs = format!("runs/whole-{}", kind.replace(' ', "-"));
        let start = Instant::now();
        succeeds(&mut command(kind, &runs, false), TRAINING);
        (kind, start.elapsed(), trainer.runs(&runs))
    });
    let ends = Mutex::new(Vec::new());
    let numbers: Vec<u32> = (0..TRAININGS).collect();
    let start = Instant::now();
    parallel::for_each(&numbers, |number| {
        let (kind, time, whole) = &wholes[*number as usize % wholes.len()];
        let (runs, mut random) = (format!("runs/stopped/{number}"), Random::new(*number));
        // Shown by the test runner if one of the trainings fails.
        println!("training {number}: {kind}");
        let whole = Whole {
            runs: whole,
            time: *time,
        };
        let command = |resume| command(kind, &runs, resume);
        let all = whole.is_reached_with_stops(&trainer.runs(&runs), &mut random, command);
        let mut ends = ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.extend(all);
    });
    let ends = ends.into_inner().unwrap_or_default();
    let [stopped, completed, at_once] = [Ended::Stopped, Ended::Completed, Ended::AtOnce]
        .map(|kind| ends.iter().filter(|ended| **ended == kind).count());
    println!(
        "{TRAININGS} trainings in {:.0?}: {stopped} stops, {at_once} before the first step, \
         {completed} after the last",
        start.elapsed()
    );
    assert!(stopped as u32 > TRAININGS / 2);
}

fn each_signal_has_its_exit_status(trainer: &Trainer) {
    let options = NEVER_STOPPED;
    for (kind, status) in STOPS.into_iter().zip([130, 143, 138]) {
        let runs = format!("runs/status-{status}");
        let running = trainer.start(&runs, options);
        let running = wait_for_second_epoch(running, &trainer.runs(&runs));
        signal(kind, running.id());
        let output = running.end(TRAINING);
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(status), "{printed}");
        assert!(
            printed.contains("go on with the same options and --resume"),
            "{printed}"
        );
        trainer.run(&runs, &format!("{options} --resume"));
        is_as_never_stopped(trainer, &runs);
    }
}

/// Few steps, and validation and test with thousands of batches.
const LONG: &str = "--replicas 1 --data-dir long --batch-size 1 --steps-per-epoch 10 --epochs 2";

/// An epoch is saved before its validation, with which the resumed training starts.
fn a_stop_in_the_validation_costs_no_epoch(trainer: &Trainer) {
    idx_data_of(&trainer.folder.join("long"), 8, [20_000, 10_000]);
    let places = |runs: &str| {
        let checkpoints = checkpoints(&trainer.runs(runs));
        checkpoints.into_keys().collect::<Vec<_>>()
    };
    for (steps, in_between) in [("7", false), ("10", true)] {
        let options = format!("{LONG} --checkpoint-steps {steps} train");
        let whole = format!("runs/validated-{steps}");
        trainer.run(&whole, &options);
        let runs = format!("runs/validation-{steps}");
        let running = trainer.start(&runs, &options).wait_until("an epoch", || {
            checkpoints(&trainer.runs(&runs)).contains_key(&(10, 0))
        });
        signal(Signal::TERM, running.id());
        let output = running.end(TRAINING);
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(143), "{printed}");
        let stopped = "stopped in the validation after step 10; go on with";
        assert!(printed.contains(stopped), "{printed}");
        assert_eq!(places(&runs).last(), Some(&(10, 0)));
        let resumed = trainer.run(&runs, &format!("{options} --resume"));
        assert!(resumed.contains("checkpoints/step-00000010\n"), "{resumed}");
        let places = places(&runs);
        for epoch in [(10, 1), (20, 2)] {
            assert!(places.contains(&epoch), "{places:?}");
        }
        // Replaced by the checkpoint after the validation, unless the run stopped there.
        assert_eq!(places.contains(&(20, 0)), in_between, "{places:?}");
        let [runs, whole] = [&runs, &whole].map(|runs| trainer.runs(runs));
        assert_eq!(latest_state(&runs), latest_state(&whole));
        assert_eq!(log_without_seconds(&runs), log_without_seconds(&whole));
    }
}

fn a_stop_in_the_test_leaves_no_result(trainer: &Trainer) {
    let runs = trainer.runs("runs/test");
    let tests = || {
        let log = log(&runs);
        log.iter().filter(|line| line["split"] == "test").count()
    };
    let stopped = |running: Running| {
        signal(Signal::TERM, running.id());
        let output = running.end(TRAINING);
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(143), "{printed}");
        assert!(printed.contains("the test was stopped"), "{printed}");
        assert_eq!(tests(), 0, "{printed}");
    };
    let running = trainer.start("runs/test", LONG);
    stopped(running.wait_until("a trained model", || {
        checkpoints(&runs).contains_key(&(20, 2))
    }));
    let test = format!("{LONG} test");
    let running = trainer.start("runs/test", &test);
    let holds = format!("\"process\":{}", running.id());
    let running = running.wait_until("lock", || {
        let lock = fs::read_to_string(runs.join("run.lock"));
        lock.is_ok_and(|lock| lock.contains(&holds))
    });
    // The next run tests.
    sleep(Duration::from_millis(200));
    stopped(running);
    trainer.run("runs/test", &test);
    assert_eq!(tests(), 1);
}

/// Steps take seconds, on large images.
fn only_a_later_signal_stops_waiting_for_the_step(trainer: &Trainer) {
    idx_data_of(&trainer.folder.join("large"), 192, [60, 20]);
    let runs = trainer.runs("runs/large");
    let options = "--replicas 1 --data-dir large --batch-size 54 train";
    let running = trainer.start("runs/large", options);
    let mut running = running.wait_until("a folder for checkpoints", || {
        runs.join("checkpoints").exists()
    });
    sleep(Duration::from_millis(200));
    let first = Instant::now();
    signal(Signal::TERM, running.id());
    sleep(Duration::from_millis(300));
    signal(Signal::TERM, running.id());
    running = running.wait_until("a second", || first.elapsed() > Duration::from_millis(1100));
    signal(Signal::TERM, running.id());
    let asked = Instant::now();
    let output = running.end(TRAINING);
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(143), "{printed}");
    assert!(asked.elapsed() < Duration::from_secs(1), "{printed}");
    assert!(!printed.contains("stopped after step"), "{printed}");
    assert!(checkpoints(&runs).is_empty());
}

/// The process is paused while it writes a checkpoint, until another signal has arrived.
fn a_save_that_began_ends(trainer: &Trainer) {
    let options = "--checkpoint-steps 1 --epochs 1000000 --batch-size 4 train";
    for attempt in 0..50 {
        let name = format!("runs/save-{attempt}");
        let runs = trainer.runs(&name);
        let running = trainer.start(&name, options);
        let running = running.wait_until("a checkpoint", || latest(&runs).is_some());
        signal(Signal::TERM, running.id());
        let asked = Instant::now();
        while unfinished(&runs).is_empty() && asked.elapsed() < Duration::from_millis(300) {}
        signal(Signal::STOP, running.id());
        // The signal is on its way.
        sleep(Duration::from_millis(50));
        let [in_save] = &unfinished(&runs)[..] else {
            // The write had ended, or an old checkpoint was being removed.
            signal(Signal::CONT, running.id());
            running.end(TRAINING);
            continue;
        };
        // A second signal within a second is taken for the first.
        sleep(Duration::from_millis(1050));
        signal(Signal::TERM, running.id());
        signal(Signal::CONT, running.id());
        let output = running.end(TRAINING);
        let printed = text(&output);
        assert_eq!(output.status.code(), Some(143), "{printed}");
        assert_eq!(unfinished(&runs), [""; 0], "{in_save}: {printed}");
        let latest = latest(&runs).unwrap();
        assert_whole(&latest);
        println!(
            "held in the save of {in_save}, {}, attempt {attempt}",
            manifest(&latest)["step"]
        );
        return;
    }
    panic!("no signal came while a checkpoint was written");
}

fn a_lost_terminal_ends_no_training(trainer: &Trainer) {
    let running = trainer.start("runs/hung-up", NEVER_STOPPED);
    let running = wait_for_second_epoch(running, &trainer.runs("runs/hung-up"));
    signal(Signal::HUP, running.id());
    let output = running.end(TRAINING);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output));
    is_as_never_stopped(trainer, "runs/hung-up");
}

#[track_caller]
fn is_as_never_stopped(trainer: &Trainer, runs: &str) {
    let [runs, whole] = [runs, "runs/never-stopped"].map(|runs| trainer.runs(runs));
    assert_eq!(latest_state(&runs), latest_state(&whole));
    assert_eq!(log_without_seconds(&runs), log_without_seconds(&whole));
}

/// Output goes to a closed pipe, to a full disk, or to a closed descriptor.
fn a_lost_reader_ends_no_training(trainer: &Trainer) {
    let outputs = [
        "{ PROGRAM; echo $? > status; } | head -n 3",
        "{ PROGRAM; echo $? > status; } 2>&1 | true",
        "PROGRAM > /dev/full; echo $? > status",
        "PROGRAM > /dev/full 2>&1; echo $? > status",
        "PROGRAM >&-; echo $? > status",
        "PROGRAM >&- 2>&- <&-; echo $? > status",
    ];
    for (number, script) in outputs.into_iter().enumerate() {
        let runs = format!("runs/output-{number}");
        let mut shell = Command::new("sh");
        let script = script.replace("PROGRAM", "\"$@\"");
        let training = trainer.command(&runs, NEVER_STOPPED);
        shell
            .current_dir(&trainer.folder)
            .args(["-c", &script, "sh"])
            .arg(&trainer.program)
            .args(training.get_args());
        let printed = succeeds(&mut shell, TRAINING);
        let status = fs::read_to_string(trainer.folder.join("status"));
        assert_eq!(status.unwrap().trim(), "0", "{script}: {printed}");
        let warns = script.contains("| head") || script.contains("> /dev/full;");
        let told = "warning: the standard output cannot be written (";
        assert_eq!(printed.contains(told), warns, "{script}: {printed}");
        is_as_never_stopped(trainer, &runs);
    }
}
