//! Checkpoints survive kills, damage and changes of the number of replicas, and equal runs are bit-identical.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use kiln_tests::{
    job, log, parallel,
    rendered::{Project, text},
    running::{Running, TRAINING, succeeds},
    runs::{assert_whole, checkpoints, latest, latest_state, manifest},
    trainer::Trainer,
};
use serde_json::Value;

/// The number of kills of each of two trainings.
const KILLS: u32 = 100;

fn command(program: &Path, runs: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(options).arg("--output-dir").arg(runs);
    command
}

/// Runs the program; returns its output.
#[track_caller]
fn run(program: &Path, runs: &Path, options: &[&str]) -> String {
    succeeds(&mut command(program, runs, options), TRAINING)
}

#[track_caller]
fn fails(program: &Path, runs: &Path, options: &[&str]) -> String {
    job::fails(&mut command(program, runs, options), &[])
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
#[ignore = "long"]
fn checkpoints_survive_whatever_happens() {
    // Without the project, so that other tests compile meanwhile.
    let trainer = Trainer::new(&Project::default_answers());
    type Test = fn(&Path, &Path);
    let tests: [(Test, &str); 6] = [
        (
            |program, runs| kills_lose_nothing(program, runs, 1),
            "kills",
        ),
        (
            |program, runs| kills_lose_nothing(program, runs, 2),
            "other-kills",
        ),
        (damage_is_refused, "damage"),
        (replicas_may_change, "replicas"),
        (the_last_and_the_best_are_kept, "kept"),
        (wrong_checkpoints_are_refused, "wrong"),
    ];
    parallel::for_each(&tests, |(test, name)| {
        test(&trainer.program, &trainer.runs(name));
    });
}

/// Each start loads the latest checkpoint, which must be complete.
fn kills_lose_nothing(program: &Path, runs: &Path, seed: u32) {
    let options = [
        "train",
        "--resume",
        "--checkpoint-steps",
        "1",
        "--keep",
        "3",
        "--epochs",
        "1000000",
        "--batch-size",
        "4",
    ];
    let (mut random, mut steps) = (seed, 0);
    for kill in 0..KILLS {
        let announced = latest(runs);
        let running = Running::start(&mut command(program, runs, &options));
        random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        thread::sleep(Duration::from_micros(u64::from(random >> 8) % 200_000));
        let printed = text(&running.kill());
        assert!(!printed.contains("warning"), "kill {kill}: {printed}");
        assert!(!printed.contains("error"), "kill {kill}: {printed}");
        if let (Some(announced), true) = (announced, printed.contains("resumed from")) {
            let announced = announced.display().to_string();
            assert!(
                printed.contains(&announced),
                "kill {kill}: {announced}, and {printed}"
            );
        }
        let now = checkpoints(runs);
        assert!(now.values().all(|checkpoint| {
            assert_whole(checkpoint);
            true
        }));
        let step = now.keys().next_back().map_or(0, |(step, _)| *step);
        assert!(
            step >= steps,
            "kill {kill}: step {steps} is lost, the latest is {step}"
        );
        steps = step;
    }
    assert!(steps > 100, "{KILLS} runs took {steps} steps in all");
    println!("{KILLS} kills, {steps} steps");
}

/// A damaged checkpoint is reported with the reason, and the previous one is loaded.
fn damage_is_refused(program: &Path, runs: &Path) {
    run(program, runs, &["train", "--epochs", "2"]);
    let all = checkpoints(runs);
    let [before, last] = [&all[&(43, 1)], &all[&(86, 2)]];
    let file = last.join("optimizer.bpk");
    let bytes = fs::read(&file).unwrap();
    type Damage<'a> = Box<dyn Fn() + 'a>;
    let damages: [(Damage, &str); 3] = [
        (
            Box::new(|| fs::write(&file, &bytes[..bytes.len() / 2]).unwrap()),
            "its optimizer.bpk is damaged",
        ),
        (
            Box::new(|| {
                let mut bytes = bytes.clone();
                bytes[1_000] ^= 4;
                fs::write(&file, bytes).unwrap();
            }),
            "its optimizer.bpk is damaged",
        ),
        (
            Box::new(|| fs::remove_file(&file).unwrap()),
            "cannot read its optimizer.bpk",
        ),
    ];
    for (damage, message) in damages {
        damage();
        let path = last.display().to_string();
        let refused = fails(program, runs, &["test", "--checkpoint", &path]);
        assert!(
            refused.contains(message) && refused.contains(&path),
            "{refused}"
        );
        let used = run(program, runs, &["test"]);
        assert!(
            used.contains(&format!(
                "warning: cannot use the checkpoint {path}: {message}"
            )),
            "{used}"
        );
        fs::write(&file, &bytes).unwrap();
    }
    fs::remove_file(&file).unwrap();
    let resumed = run(program, runs, &["train", "--epochs", "2", "--resume"]);
    assert!(
        resumed.contains(&format!("resumed from {}", before.display())),
        "{resumed}"
    );
    assert_whole(last);
    let kept = last.with_added_extension("damaged");
    assert!(resumed.contains(&format!(
        "warning: {} is kept as {}: it is damaged",
        last.display(),
        kept.display()
    )));
    assert!(kept.join("manifest.json").exists() && !kept.join("optimizer.bpk").exists());
    fs::remove_file(before.join("manifest.json")).unwrap();
    fs::remove_file(last.join("manifest.json")).unwrap();
    let refused = fails(program, runs, &["train", "--epochs", "3", "--resume"]);
    assert!(
        refused.contains("no checkpoint in") && refused.contains("is complete"),
        "{refused}"
    );
}

/// From 3 replicas to 2, 1 and 4 within an epoch: each example is counted once.
fn replicas_may_change(program: &Path, runs: &Path) {
    let options = [
        "train",
        "--epochs",
        "2",
        "--checkpoint-steps",
        "1",
        "--keep",
        "10000",
    ];
    let mut from: Option<PathBuf> = None;
    for (place, replicas) in [(1, "3"), (2, "2"), (3, "1"), (4, "4")] {
        let stage = runs.join(replicas);
        if let Some(checkpoint) = &from {
            let name = checkpoint.file_name().unwrap();
            copy(checkpoint, &stage.join("checkpoints").join(name));
        }
        run(
            program,
            &stage,
            &[&options[..], &["--resume", "--replicas", replicas]].concat(),
        );
        // The first checkpoint in the second epoch after at least a quarter of it.
        let later = checkpoints(&stage).into_values().find(|checkpoint| {
            let manifest = manifest(checkpoint);
            manifest["epoch"] == 2 && manifest["examples"].as_u64().unwrap() > place * 1_350 / 4
        });
        from = later.or(from);
        let log = log(&stage);
        let of_epoch = log
            .iter()
            .filter(|line| line["split"] == "train" && line["epoch"] == 2);
        let examples: Vec<Value> = of_epoch.map(|line| line["examples"].clone()).collect();
        assert_eq!(examples, [1_350], "{replicas} replicas: {log:?}");
    }
}

fn the_last_and_the_best_are_kept(program: &Path, runs: &Path) {
    let options = ["train", "--epochs", "12", "--keep"];
    let all = runs.join("all");
    run(program, &all, &[&options[..], &["100"]].concat());
    let accuracy = |path: &Path| manifest(path)["validation"]["accuracy"].as_f64().unwrap();
    let all = checkpoints(&all);
    assert_eq!(all.len(), 12);
    // The first of several equal values.
    let mut best = (0.0, (0, 0));
    for (place, path) in &all {
        if accuracy(path) > best.0 {
            best = (accuracy(path), *place);
        }
    }
    let kept = runs.join("kept");
    run(program, &kept, &[&options[..], &["2"]].concat());
    let places: Vec<_> = checkpoints(&kept).into_keys().collect();
    let mut expected: Vec<_> = all.into_keys().skip(10).collect();
    if !expected.contains(&best.1) {
        expected.insert(0, best.1);
    }
    assert_eq!(places, expected, "the best is {best:?}");
    assert_eq!(
        places.len(),
        3,
        "choose epochs of which the best is not among the last"
    );
    let printed = run(program, &kept, &["test", "--checkpoint", "best"]);
    assert!(printed.contains("test  loss"), "{printed}");
    let log = log(&kept);
    let test = log.last().unwrap();
    assert_eq!(
        (&test["split"], &test["step"]),
        (&"test".into(), &best.1.0.into())
    );
}

fn wrong_checkpoints_are_refused(program: &Path, runs: &Path) {
    run(program, runs, &["train", "--epochs", "1"]);
    let message = fails(
        program,
        runs,
        &["train", "--resume", "--epochs", "2", "--seed", "7"],
    );
    assert!(
        message.contains("it was trained with --seed 42, and this run has --seed 7"),
        "{message}"
    );
    let message = fails(program, runs, &["test", "--checkpoint", "no/such/folder"]);
    assert!(
        message.contains("cannot use the checkpoint no/such/folder"),
        "{message}"
    );
    let message = fails(
        program,
        &runs.join("empty"),
        &["test", "--checkpoint", "best"],
    );
    assert!(
        message.contains("was saved after a validation"),
        "{message}"
    );
    let file = runs.join("file");
    fs::create_dir_all(&file).unwrap();
    fs::write(file.join("checkpoints"), "a file").unwrap();
    let message = fails(program, &file, &["train", "--epochs", "1"]);
    assert!(
        message.contains("cannot read ") && message.contains("checkpoints: Not a directory"),
        "{message}"
    );
}

/// Adds batch normalisation, dropout of the engine and of Burn, and augmentation, which use random
/// numbers and statistics of each replica.
fn make_stochastic(project: &Project) {
    project.edit(
        "model.rs",
        "    conv1: Conv2d,",
        "    norm: BatchNorm,\n    dropout: kiln_engine::layers::Dropout,\n    of_burn: burn::nn::Dropout,\n    conv1: Conv2d,",
    );
    project.edit("model.rs", "            conv1: conv([1, 32]),", "            norm: BatchNormConfig::new(64).init(device),\n            dropout: kiln_engine::layers::Dropout::new(0.3),\n            of_burn: burn::nn::DropoutConfig::new(0.2).init(),\n            conv1: conv([1, 32]),");
    project.edit(
        "model.rs",
        "conv2d(&self.conv2, x)",
        "self.norm.forward(conv2d(&self.conv2, x))",
    );
    project.edit(
        "model.rs",
        "linear(&self.output, x.flatten(1, 3))",
        "linear(&self.output, self.of_burn.forward(self.dropout.forward(x.flatten(1, 3))))",
    );
    project.edit(
        "model.rs",
        "        Linear, LinearConfig,",
        "        BatchNorm, BatchNormConfig, Linear, LinearConfig,",
    );
    project.edit(
        "dataset.rs",
        "example: Example, _random",
        "mut example: Example, random",
    );
    project.edit("dataset.rs", "    Ok(example)\n", "    example.pixels.rotate_left(rand::RngExt::random_range(random, 0..3));\n    Ok(example)\n");
}

#[test]
#[ignore = "long"]
fn equal_seeds_give_equal_bits_with_dropout_augmentation_and_batch_normalisation() {
    let plain = Trainer::new(&Project::default_answers());
    let project = Project::to_edit();
    make_stochastic(&project);
    let stochastic = Trainer::new(&project);
    let _data = project.unlock();
    let program = &stochastic.program;
    let other = stochastic.runs("plain");
    run(&plain.program, &other, &["train", "--epochs", "1"]);
    let message = fails(program, &other, &["train", "--epochs", "2", "--resume"]);
    assert!(
        message.contains("it does not match the model in src/model.rs"),
        "{message}"
    );
    assert!(message.contains("norm.gamma"), "{message}");

    // Beside each other, with more replicas than cores.
    parallel::for_each(&["3", "2", "1"], |replicas| {
        let trained = |name: &str, more: &[&str]| {
            let runs = stochastic.runs(replicas).join(name);
            let options = ["train", "--epochs", "2", "--replicas", replicas];
            run(program, &runs, &[&options[..], more].concat());
            (latest_state(&runs), runs)
        };
        let (expected, runs) = trained("0", &["--prefetch", "2"]);
        let statistics = fs::read(latest(&runs).unwrap().join("statistics.bin")).unwrap();
        let count: usize = replicas.parse().unwrap();
        let per_replica: Vec<&[u8]> = statistics.chunks(statistics.len() / count).collect();
        // The statistics are those of the replica's examples, whichever replica updates the parameters.
        let differ = per_replica.windows(2).all(|pair| pair[0] != pair[1]);
        assert!(
            differ,
            "{replicas} replicas have the same running statistics"
        );
        for again in 1..3 {
            assert_eq!(
                trained(&again.to_string(), &[]).0,
                expected,
                "{replicas} replicas"
            );
        }
        // Prefetching changes nothing, and a resumed run draws the same random numbers as an
        // uninterrupted one.
        let (state, runs) = trained(
            "saved",
            &[
                "--prefetch",
                "0",
                "--checkpoint-steps",
                "5",
                "--keep",
                "1000",
            ],
        );
        assert_eq!(state, expected);
        let middle = &checkpoints(&runs)[&(10, 0)];
        let resumed = stochastic.runs(replicas).join("resumed");
        copy(
            middle,
            &resumed
                .join("checkpoints")
                .join(middle.file_name().unwrap()),
        );
        assert_eq!(
            trained("resumed", &["--resume"]).0,
            expected,
            "{replicas} replicas, resumed"
        );
    });
}
