//! Sweeps of the default project: killed, stopped and resumed, with runs that fail, and wrong files.

use std::{fs, os::unix::process::CommandExt, path::Path, process::Command};

use kiln_tests::{
    rendered::{Project, text},
    running::{Running, TRAINING, output},
    runs::{checkpoints, latest_state, log_without_seconds},
    trainer::{Trainer, fails},
};

/// Runs of less than a second.
const GRID: &str = "\
epochs = 8
limit_train = 160
limit_validation = 50
checkpoint_steps = 2
[grid]
learning_rate = [1e-3, 4e-3]
schedule = [\"constant\", \"cosine\"]
";

#[test]
#[ignore = "long"]
fn a_sweep_ends_with_the_same_table_after_kills_and_signals() {
    let trainer = Trainer::new(&Project::default_answers());
    fs::write(trainer.folder.join("grid.toml"), GRID).unwrap();
    let printed = trainer.run("whole", "sweep grid.toml");
    assert!(printed.contains("the best is run "), "{printed}");
    a_killed_and_stopped_sweep_goes_on(&trainer);
    another_sweep_is_refused(&trainer);
    a_run_that_fails_is_told(&trainer);
}

/// Starts the sweep, and waits until the run of a number has a checkpoint.
fn start(trainer: &Trainer, run: usize) -> Running {
    let mut command = trainer.command("killed", "sweep grid.toml");
    // The runs are in the same group.
    let running = Running::start(command.process_group(0));
    let folder = trainer.runs(&format!("killed/runs/{run:04}"));
    running.wait_until("a checkpoint", || !checkpoints(&folder).is_empty())
}

fn signal(words: &[&str]) {
    let sent = Command::new("kill").args(words).status().unwrap();
    assert!(sent.success(), "{words:?}: {sent}");
}

fn a_killed_and_stopped_sweep_goes_on(trainer: &Trainer) {
    let all = start(trainer, 2);
    signal(&["-KILL", "--", &format!("-{}", all.id())]);
    assert!(!all.end(TRAINING).status.success());

    let stopped = start(trainer, 3);
    signal(&["-INT", &stopped.id().to_string()]);
    let stopped = stopped.end(TRAINING);
    let printed = text(&stopped);
    assert_eq!(stopped.status.code(), Some(130), "{printed}");
    assert!(
        printed.contains("stopped: 2 of 4 runs are finished; the same command goes on"),
        "{printed}"
    );

    // The run goes on without the sweep.
    start(trainer, 4).kill();
    let printed = trainer.run("killed", "sweep grid.toml");
    assert!(
        printed.contains("4 runs in killed, 3 of them finished before"),
        "{printed}"
    );

    let [whole, killed] = ["whole", "killed"].map(|name| trainer.runs(name));
    for name in ["sweep.csv", "sweep.svg"] {
        let read = |runs: &Path| fs::read_to_string(runs.join(name)).unwrap();
        assert_eq!(read(&killed), read(&whole));
    }
    for run in 1..=4 {
        let [whole, killed] = [&whole, &killed].map(|runs| runs.join(format!("runs/{run:04}")));
        assert_eq!(log_without_seconds(&killed), log_without_seconds(&whole));
        assert_eq!(latest_state(&killed), latest_state(&whole));
    }
    let table = fs::read_to_string(whole.join("sweep.csv")).unwrap();
    let first = "run,learning_rate,schedule,validation.accuracy,best_epoch,trained_epochs,status\n1,0.001,constant,0.";
    assert!(
        table.starts_with(first) && table.lines().count() == 5,
        "{table}"
    );
}

fn another_sweep_is_refused(trainer: &Trainer) {
    let path = trainer.folder.join("grid.toml");
    fs::write(&path, GRID.replace("4e-3", "5e-3")).unwrap();
    let changed = "run 3 has learning_rate 0.005, schedule constant, and had learning_rate 0.004";
    fails(
        &mut trainer.command("whole", "sweep grid.toml"),
        &["whole holds another sweep:", changed],
    );
    fs::write(&path, GRID.replace("learning_rate", "lerning_rate")).unwrap();
    let refused = output(&mut trainer.command("none", "sweep grid.toml"), TRAINING);
    let printed = text(&refused);
    assert_eq!(refused.status.code(), Some(2), "{printed}");
    let told =
        "grid.toml:6:1: unknown option `lerning_rate`; the nearest option is `learning_rate`";
    assert!(printed.contains(told), "{printed}");
    assert!(!trainer.runs("none").exists());
}

fn a_run_that_fails_is_told(trainer: &Trainer) {
    let options = "epochs = 1\nlimit_train = 160\n[grid]\nlearning_rate = [1e-3, 1e30]\n";
    fs::write(trainer.folder.join("high.toml"), options).unwrap();
    fails(
        &mut trainer.command("high", "sweep high.toml"),
        &[
            "1 of 2 runs failed",
            "run 2 (learning_rate 1e30): ",
            "its output is in high/runs/0002/output.log",
            "the best is run 1",
        ],
    );
    let table = fs::read_to_string(trainer.runs("high/sweep.csv")).unwrap();
    assert!(table.ends_with("\n2,1e30,,,,failed\n"), "{table}");
}
