//! Only one run writes to an output folder: others get an error, results of earlier runs are kept,
//! and users without write access can still test.

use std::{
    collections::BTreeMap,
    fs::{self, Permissions},
    os::unix::{
        fs::{MetadataExt, PermissionsExt, chown, symlink},
        process::CommandExt,
    },
    path::Path,
    process::{Command, Output},
    time::Instant,
};

use kiln_tests::{
    idx::idx_data,
    job::wait_for_second_epoch,
    parallel,
    random::Random,
    read_tree,
    rendered::{Project, text},
    running::{Running, TRAINING, succeeds},
    runs::{
        assert_whole, checkpoints, checkpoints_in, latest, latest_state, log, log_of, manifest,
        replace_file, state, without_seconds,
    },
    trainer::{Trainer, fails},
};
use serde_json::Value;

/// The number of times that several runs start at once, and of folders.
const STARTS: u32 = 200;
const FOLDERS: u32 = 10;
const SEEDS: [u32; 3] = [1, 2, 3];
const MOST_EPOCHS: u32 = 6;

/// A user other than root.
const NOBODY: u32 = 65_534;

#[test]
#[ignore = "long"]
fn one_run_writes_in_an_output_folder() {
    let trainer = Trainer::new(&Project::default_answers());
    idx_data(&trainer.folder.join("small"), 8);
    let tests: [fn(&Trainer); 9] = [
        of_those_that_start_at_once_one_trains,
        a_killed_run_holds_no_lock,
        earlier_runs_are_kept_under_one_number,
        a_link_to_checkpoints_stays,
        nothing_to_resume_is_told,
        what_another_version_wrote_is_left_alone,
        what_cannot_be_read_is_no_damage,
        who_may_not_write_can_test,
        what_diverged_is_not_saved,
    ];
    parallel::for_each(&tests, |test| test(&trainer));
}

/// The trainings of all seeds, each run alone.
struct References {
    parameters: BTreeMap<(u32, usize), Value>,
    logs: BTreeMap<u32, Vec<Value>>,
}

impl References {
    fn new(trainer: &Trainer) -> Self {
        let mut references = References {
            parameters: BTreeMap::new(),
            logs: BTreeMap::new(),
        };
        for seed in SEEDS {
            let runs = format!("runs/seed-{seed}");
            trainer.run(&runs, &(small(seed, MOST_EPOCHS) + " --keep 100"));
            let runs = trainer.runs(&runs);
            for (place, path) in checkpoints(&runs) {
                let parameters = manifest(&path)["parameters"].clone();
                references.parameters.insert((seed, place.0), parameters);
            }
            references.logs.insert(seed, without_seconds(log(&runs)));
        }
        references
    }

    /// Checks that the checkpoints and log of a folder belong to one training; returns its seed.
    #[track_caller]
    fn have(&self, folder: &Path, log: &Path) -> Option<u32> {
        let mut seed = None;
        for ((step, _), path) in checkpoints_in(folder) {
            assert_whole(&path);
            let manifest = manifest(&path);
            let of_this = manifest["seed"].as_u64().unwrap() as u32;
            let shown = path.display();
            assert_eq!(*seed.get_or_insert(of_this), of_this, "{shown}");
            let expected = &self.parameters[&(of_this, step)];
            assert_eq!(&manifest["parameters"], expected, "{shown}");
        }
        let log = without_seconds(log_of(log));
        if let Some(seed) = seed {
            assert!(!log.is_empty() && log.len().is_multiple_of(2), "{log:?}");
            assert_eq!(log, self.logs[&seed][..log.len()], "seed {seed}");
        }
        seed
    }
}

/// A short training.
fn small(seed: u32, epochs: u32) -> String {
    let options = "--replicas 1 --batch-size 2 --data-dir small";
    format!("{options} --seed {seed} --epochs {epochs} train")
}

fn of_those_that_start_at_once_one_trains(trainer: &Trainer) {
    let references = References::new(trainer);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let start = Instant::now();
    let (mut random, mut refused, mut several) = (Random::new(1), 0, 0);
    let mut seeds = [None; FOLDERS as usize];
    for number in 0..STARTS {
        let name = format!("runs/at-once-{}", number % FOLDERS);
        let of_folder = &mut seeds[(number % FOLDERS) as usize];
        let runs: Vec<(bool, Running)> = (0..2 + random.below(2))
            .map(|_| {
                let resume = of_folder.filter(|_| random.below(2) == 0);
                let seed = resume.unwrap_or_else(|| random.one_of(&SEEDS));
                let more = resume.map_or("", |_| " --resume");
                let options = small(seed, 2 + random.below(MOST_EPOCHS - 1)) + more;
                (resume.is_some(), trainer.start(&name, &options))
            })
            .collect();
        let ids: Vec<u32> = runs.iter().map(|(_, running)| running.id()).collect();
        let ends: Vec<(bool, Output)> = runs
            .into_iter()
            .map(|(resumes, running)| (resumes, running.end(TRAINING)))
            .collect();
        let mut trained = 0;
        for (own, (resumes, output)) in ids.iter().zip(&ends) {
            let printed = text(output);
            let code = output.status.code();
            // If the previous training had completed.
            let late = *resumes && printed.contains("it was trained with --seed");
            match code {
                Some(0) => trained += 1,
                Some(1) if late => {}
                _ => {
                    assert_eq!(code, Some(1), "start {number}: {printed}");
                    let mut others = ids.iter().filter(|id| *id != own);
                    let named = |id: &u32| {
                        printed.contains(&format!(
                            "{name} belongs to another run: process {id} ({}) on host {}, since 20",
                            trainer.program.display(),
                            host.trim()
                        ))
                    };
                    assert!(others.any(named), "start {number}, {ids:?}: {printed}");
                    refused += 1;
                }
            }
        }
        assert!(trained > 0, "start {number}");
        several += u32::from(trained > 1);
        let folder = trainer.runs(&name);
        let log = folder.join("metrics.jsonl");
        *of_folder = references.have(&folder.join("checkpoints"), &log);
        assert!(of_folder.is_some(), "start {number}");
    }
    for folder in 0..FOLDERS {
        let runs = trainer.runs(&format!("runs/at-once-{folder}"));
        for entry in fs::read_dir(&runs).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if let Some(number) = name.strip_prefix("checkpoints.") {
                let log = runs.join(format!("metrics.{number}.jsonl"));
                let kept = references.have(&runs.join(&name), &log);
                assert!(kept.is_some(), "{name} in {}", runs.display());
            }
        }
    }
    println!(
        "{STARTS} starts in {:.0?}: {refused} runs were refused, {several} times one came after the other",
        start.elapsed()
    );
    // Beside other programs, some starts are late.
    assert!(several < STARTS / 2, "the starts are not at once");
}

const ENDLESS: &str = "--epochs 1000000 train";

fn a_killed_run_holds_no_lock(trainer: &Trainer) {
    let runs = trainer.runs("runs/killed");
    let running = trainer.start("runs/killed", ENDLESS);
    let running = wait_for_second_epoch(running, &runs);
    for command in ["train", "test"] {
        let process = format!("process {} (", running.id());
        let refused = ["runs/killed belongs to another run: ", &process];
        trainer.fails("runs/killed", command, &refused);
    }
    running.kill();
    let printed = trainer.run("runs/killed", "--resume --epochs 1 train");
    assert!(printed.contains("resumed from"), "{printed}");
}

fn earlier_runs_are_kept_under_one_number(trainer: &Trainer) {
    let runs = trainer.runs("runs/again");
    trainer.run("runs/again", &small(1, 2));
    let [first, first_log] = [latest_state(&runs), log(&runs).into()];
    // A number that is part of an existing name.
    fs::write(runs.join("metrics.1.jsonl"), "mine").unwrap();
    let printed = trainer.run("runs/again", &small(2, 2));
    for (from, to) in [
        ("checkpoints", "checkpoints.2"),
        ("metrics.jsonl", "metrics.2.jsonl"),
        ("tensorboard", "tensorboard.2"),
    ] {
        let told = format!("runs/again/{from} of an earlier run is kept as runs/again/{to}");
        assert!(printed.contains(&told), "no {told}: {printed}");
        assert!(runs.join(from).exists() && runs.join(to).exists());
    }
    let kept = checkpoints_in(&runs.join("checkpoints.2"));
    let kept = kept.last_key_value().unwrap().1;
    assert_eq!(state(kept), first);
    assert_eq!(
        Value::from(log_of(&runs.join("metrics.2.jsonl"))),
        first_log
    );
    let mine = fs::read_to_string(runs.join("metrics.1.jsonl"));
    assert_eq!(mine.unwrap(), "mine");
    assert_eq!(latest_state(&runs)["seed"], 2);
}

/// Checkpoints on another disk, as on clusters.
fn a_link_to_checkpoints_stays(trainer: &Trainer) {
    let [runs, disk] = ["runs/linked", "runs/disk"].map(|name| trainer.runs(name));
    let link = |runs: &Path| {
        fs::create_dir_all(runs).unwrap();
        symlink(disk.join("mine"), runs.join("checkpoints")).unwrap();
    };
    fs::create_dir_all(&disk).unwrap();
    link(&runs);
    trainer.run("runs/linked", &small(1, 1));
    let printed = trainer.run("runs/linked", &small(2, 2));
    assert!(printed.contains("is kept as "), "{printed}");
    assert!(runs.join("checkpoints").is_symlink());
    let seeds = [("mine/earlier.1", 1), ("mine", 2)];
    for (folder, seed) in seeds {
        for (_, path) in checkpoints_in(&disk.join(folder)) {
            assert_whole(&path);
            assert_eq!(manifest(&path)["seed"], seed);
        }
        assert!(!checkpoints_in(&disk.join(folder)).is_empty());
    }
    let resumed = small(2, 3) + " --resume";
    let printed = trainer.run("runs/linked", &resumed);
    assert!(printed.contains("resumed from"), "{printed}");
    // Another folder with a link to the same checkpoints.
    link(&trainer.runs("runs/linked-too"));
    // The epochs of the previous training do not count.
    fs::remove_file(runs.join("metrics.jsonl")).unwrap();
    let running = trainer.start("runs/linked", ENDLESS);
    let running = wait_for_second_epoch(running, &runs);
    let holder = format!("mine belongs to another run: process {} (", running.id());
    trainer.fails("runs/linked-too", "train", &[&holder]);
}

fn nothing_to_resume_is_told(trainer: &Trainer) {
    let options = small(1, 1) + " --resume";
    let told = "nothing to resume in runs/new: training starts anew";
    let printed = trainer.run("runs/new", &options);
    assert!(printed.contains(told), "{printed}");
    let printed = trainer.run("runs/new", &options);
    assert!(printed.contains("resumed from") && !printed.contains("nothing to resume"));
}

/// Checks that runs leave all files of a folder unchanged.
#[track_caller]
fn assert_untouched(folder: &Path, run: impl FnOnce()) {
    let before = read_tree(folder).unwrap();
    run();
    let changed = before != read_tree(folder).unwrap();
    assert!(!changed, "{} was changed", folder.display());
}

fn what_another_version_wrote_is_left_alone(trainer: &Trainer) {
    let runs = trainer.runs("runs/newer");
    trainer.run("runs/newer", &small(1, 2));
    let last = latest(&runs).unwrap();
    let text = fs::read_to_string(last.join("manifest.json")).unwrap();
    let newer = text.replacen("\"version\": 1", "\"version\": 2", 1);
    assert_ne!(text, newer);
    replace_file(&last, "manifest.json", newer.as_bytes());
    assert_whole(&last);
    let messages = [
        &*format!("cannot use the checkpoint {}", trainer.shown(&last)),
        "its manifest.json is of version 2, and this program reads version 1",
    ];
    let resume = small(1, 3) + " --resume";
    assert_untouched(&runs.join("checkpoints"), || {
        trainer.fails("runs/newer", &resume, &messages);
        trainer.fails("runs/newer", "test", &messages);
    });
    // The checkpoint without its hash is damaged.
    let other = text.replacen("\"version\": 1", "\"version\": 3", 1);
    fs::write(last.join("manifest.json"), other).unwrap();
    let printed = trainer.run("runs/newer", &resume);
    let kept = format!("{}.damaged: it is damaged", trainer.shown(&last));
    assert!(printed.contains(&kept), "{printed}");
    assert_whole(&last);
    assert!(last.with_added_extension("damaged").is_dir());
}

fn what_cannot_be_read_is_no_damage(trainer: &Trainer) {
    let runs = trainer.runs("runs/unreadable");
    trainer.run("runs/unreadable", &small(1, 2));
    let last = latest(&runs).unwrap();
    let [file, aside] = [last.join("model.bpk"), runs.join("model.bpk")];
    let path = format!("cannot use the checkpoint {}", trainer.shown(&last));
    let resume = small(1, 3) + " --resume";
    fs::rename(&file, &aside).unwrap();
    // The error of a failing disk: reading fails, but may succeed later.
    fs::create_dir(&file).unwrap();
    assert_untouched(&runs.join("checkpoints"), || {
        let messages = [&*path, "cannot read its model.bpk"];
        trainer.fails("runs/unreadable", &resume, &messages);
    });
    fs::remove_dir(&file).unwrap();
    fs::rename(&aside, &file).unwrap();
    let Some(nobody) = Nobody::new(trainer) else {
        return;
    };
    nobody.owns(&runs);
    // As after a backup restored by root.
    chown(&file, Some(0), Some(0)).unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    assert_untouched(&runs.join("checkpoints"), || {
        let mut command = nobody.command("runs/unreadable", &resume);
        let messages = [&*path, "cannot read its model.bpk", "Permission denied"];
        fails(&mut command, &messages);
    });
    chown(&file, Some(NOBODY), Some(NOBODY)).unwrap();
    let resumed = succeeds(&mut nobody.command("runs/unreadable", &resume), TRAINING);
    let latest = format!("resumed from {}", trainer.shown(&last));
    assert!(resumed.contains(&latest), "{resumed}");
}

/// The program, run by a user with few permissions.
struct Nobody<'a> {
    trainer: &'a Trainer,
}

impl<'a> Nobody<'a> {
    /// `None` if the test cannot change its user.
    fn new(trainer: &'a Trainer) -> Option<Self> {
        let own = fs::metadata("/proc/self").unwrap().uid();
        let mut version = Command::new(&trainer.program);
        let version = version.arg("--version").current_dir("/").uid(NOBODY);
        if own != 0 || !version.output().is_ok_and(|output| output.status.success()) {
            println!("skipped: only root can run the program as another user, who may read it");
            return None;
        }
        Some(Nobody { trainer })
    }

    fn command(&self, runs: &str, options: &str) -> Command {
        let mut command = self.trainer.command(runs, options);
        command.uid(NOBODY).gid(NOBODY);
        command
    }

    /// Changes the owner of a folder and its contents to this user.
    fn owns(&self, folder: &Path) {
        chown(folder, Some(NOBODY), Some(NOBODY)).unwrap();
        for path in read_tree(folder).unwrap().into_keys() {
            chown(folder.join(path), Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
}

fn who_may_not_write_can_test(trainer: &Trainer) {
    let runs = trainer.runs("runs/others");
    trainer.run("runs/others", &small(1, 2));
    let Some(nobody) = Nobody::new(trainer) else {
        return;
    };
    let options = "--data-dir small test";
    assert_untouched(&runs, || {
        let printed = succeeds(&mut nobody.command("runs/others", options), TRAINING);
        assert!(printed.contains("test  loss "), "{printed}");
        assert!(
            printed.contains("the test is not written there"),
            "{printed}"
        );
        let mut train = nobody.command("runs/others", &small(1, 3));
        fails(&mut train, &["cannot write runs/others/run.lock"]);
    });
}

fn what_diverged_is_not_saved(trainer: &Trainer) {
    let cases = [
        // The first update makes parameters infinite.
        ("1e39 --checkpoint-steps 1", "the parameter `", vec![]),
        // The parameters are finite but too large to compute with: the next gradients are not finite.
        (
            "1e30 --checkpoint-steps 1",
            "the gradient of `",
            vec![(1, 0)],
        ),
        (
            "1e30 --steps-per-epoch 1",
            "the `loss` of the validation is ",
            vec![],
        ),
    ];
    for (number, (options, message, saved)) in cases.into_iter().enumerate() {
        let runs = format!("runs/diverged-{number}");
        let options = format!("--learning-rate {options} train");
        trainer.fails(&runs, &options, &["error: ", message]);
        let places = checkpoints(&trainer.runs(&runs)).into_keys();
        assert_eq!(places.collect::<Vec<_>>(), saved, "{options}");
    }
    let diverged = "runs/diverged-2/checkpoints/step-00000001.diverged";
    assert_whole(&trainer.runs(diverged));
}
