//! Trainings of a rendered program in one or several processes, and their results.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::{Duration, Instant},
};

pub use rustix::process::Signal;
use rustix::process::{Pid, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::{
    mpi,
    rendered::{Project, text},
    running::{self, Running, TRAINING, succeeds},
    runs::log,
};

/// Tolerance for losses and weights, relative to those of one replica.
const TOLERANCE: f64 = 1e-5;

/// A program, with the example programs that inspect its results.
pub struct Job {
    /// The folder of `program` and the examples.
    pub programs: PathBuf,
    /// The working folder.
    pub folder: PathBuf,
    /// The value of `--strategy` for several processes.
    pub strategy: &'static str,
}

impl Job {
    /// The programs of `project`, built with these [examples](Project::build_with), in its folder.
    ///
    /// # Panics
    /// The build fails.
    pub fn of(project: &Project, examples: &[&str], strategy: &'static str) -> Self {
        Job {
            programs: project.build_with(examples),
            folder: project.path(),
            strategy,
        }
    }

    /// Like [`of`](Self::of), [apart](Project::apart) from the project, in a folder that is removed with the second
    /// result.
    ///
    /// # Panics
    /// The build or a copy fails.
    pub fn apart(project: Project, examples: &[&str], strategy: &'static str) -> (Self, TempDir) {
        let folder = project.apart(examples);
        let job = Job {
            programs: folder.path().join("programs"),
            folder: folder.path().to_owned(),
            strategy,
        };
        (job, folder)
    }

    /// The program in one process, without options.
    pub fn alone(&self) -> Command {
        let mut command = Command::new(self.programs.join("program"));
        command.current_dir(&self.folder);
        command
    }

    /// The command for `workers` processes with these options.
    pub fn command(&self, workers: usize, options: &[&str]) -> Command {
        let mut command = mpi::run(workers);
        command
            .arg(self.programs.join("program"))
            .current_dir(&self.folder)
            .args(["--strategy", self.strategy])
            .args(options);
        command
    }

    /// Runs `workers` processes; returns their output.
    ///
    /// # Panics
    /// They fail.
    #[track_caller]
    pub fn runs(&self, workers: usize, options: &[&str]) -> String {
        succeeds(&mut self.command(workers, options), TRAINING)
    }

    /// Like [`runs`](Self::runs), with one process outside MPI.
    ///
    /// # Panics
    /// The process fails.
    #[track_caller]
    pub fn runs_alone(&self, options: &[&str]) -> String {
        succeeds(self.alone().args(options), TRAINING)
    }

    /// Like [`fails`], in the folder of the job.
    ///
    /// # Panics
    /// As for `fails`.
    #[track_caller]
    pub fn fails(&self, command: &mut Command, messages: &[&str]) {
        fails(command.current_dir(&self.folder), messages);
    }

    /// The parameters in the last checkpoint of a run.
    ///
    /// # Panics
    /// The run has no checkpoint.
    pub fn weights(&self, runs: &str) -> Vec<f64> {
        let mut command = Command::new(self.programs.join("weights"));
        let lines = succeeds(command.arg(self.latest(runs)), TRAINING);
        let number = |line: &str| line.parse().expect("a number");
        lines.lines().map(number).collect()
    }

    /// The folder of the last checkpoint of a run.
    ///
    /// # Panics
    /// The run has no checkpoint.
    pub fn latest(&self, runs: &str) -> PathBuf {
        let folder = self.folder.join(runs).join("checkpoints");
        let entries = fs::read_dir(folder).expect("checkpoints");
        let paths = entries.map(|entry| entry.expect("a checkpoint").path());
        paths.max().expect("a checkpoint")
    }

    /// The manifest of the last checkpoint of a run.
    ///
    /// # Panics
    /// The run has no checkpoint.
    pub fn manifest(&self, runs: &str) -> Value {
        let text = fs::read_to_string(self.latest(runs).join("manifest.json"));
        serde_json::from_str(&text.expect("a manifest")).expect("JSON")
    }

    /// The log of a run, with a line per split.
    ///
    /// # Panics
    /// The run has no log.
    pub fn log(&self, runs: &str) -> Vec<Value> {
        log(&self.folder.join(runs))
    }

    /// The losses and accuracies of all splits and epochs.
    ///
    /// # Panics
    /// The run has no log.
    pub fn metrics(&self, runs: &str) -> Vec<f64> {
        let log = self.log(runs);
        let values = log
            .iter()
            .flat_map(|line| ["loss", "accuracy"].map(|name| line[name].as_f64()));
        values.map(|value| value.expect("a number")).collect()
    }

    /// Starts a long training and waits until its second epoch starts.
    ///
    /// # Panics
    /// The second epoch does not start.
    pub fn start(&self, command: &mut Command, folder: &str) -> Running {
        wait_for_second_epoch(Running::start(command), &self.folder.join(folder))
    }

    /// Checks that a job of three processes ends in time, with these messages, after `lose`, which
    /// gets the process ids.
    ///
    /// # Panics
    /// The job does not end in time or prints other messages.
    #[track_caller]
    pub fn ends_after(&self, folder: &str, lose: impl FnOnce(&[u32]), messages: &[&str]) {
        let options = ["--output-dir", folder, "--epochs", "100000"];
        let options = [&options[..], &["--timeout", "8", "train"]].concat();
        let running = self.start(&mut self.command(3, &options), folder);
        let workers = workers(folder);
        assert_eq!(workers.len(), 3);
        // Processes report their position every half second, and an epoch can be shorter.
        thread::sleep(Duration::from_secs(1));
        let lost = Instant::now();
        lose(&workers);
        ends_in_time(running, lost, messages);
    }

    /// Checks that `--max-time` stops two processes after the same step, that a resume with the same limit trains
    /// no further, and that one with a longer limit does. Clocks of processes differ, so the chief decides.
    ///
    /// # Panics
    /// A process stops elsewhere, or a run fails.
    #[track_caller]
    pub fn a_time_limit_stops_all_after_the_same_step(&self) {
        let run = |limit: &str, resume: bool| {
            let options = [
                "--output-dir",
                "runs/timed",
                "--epochs",
                "100000",
                "--max-time",
                limit,
            ];
            let resume: &[&str] = if resume { &["--resume"] } else { &[] };
            self.runs(2, &[&options[..], resume, &["train"]].concat())
        };
        let printed = run("0.3s", false);
        let step = self.manifest("runs/timed")["step"].as_u64().unwrap();
        let over = format!("after step {step}: --max-time of 0.3 s is over");
        assert!(
            printed.contains(&format!("training ends {over}")),
            "{printed}"
        );
        let printed = run("0.3s", true);
        assert!(
            printed.contains(&format!("training ended {over}")),
            "{printed}"
        );
        assert_eq!(self.manifest("runs/timed")["step"], step);
        run("3s", true);
        assert!(self.manifest("runs/timed")["step"].as_u64().unwrap() > step);
    }
}

/// Checks that a job with `--timeout 8` fails within that time since `lost`, with these messages.
///
/// # Panics
/// The job does not fail in time or prints other messages.
#[track_caller]
pub fn ends_in_time(running: Running, lost: Instant, messages: &[&str]) {
    let output = running.end(TRAINING);
    let (seconds, printed) = (lost.elapsed().as_secs_f64(), text(&output));
    assert!(!output.status.success(), "{printed}");
    assert!(seconds < 8.0, "{seconds}: {printed}");
    for message in messages {
        assert!(printed.contains(message), "{message}: {printed}");
    }
}

/// Runs `command`, which must fail with these messages; returns its output.
///
/// # Panics
/// The command succeeds, panics, or prints other messages.
#[track_caller]
pub fn fails(command: &mut Command, messages: &[&str]) -> String {
    let output = running::output(command, TRAINING);
    let printed = text(&output);
    assert!(!output.status.success(), "{command:?} succeeds: {printed}");
    assert!(!printed.contains("panicked"), "{command:?}: {printed}");
    for message in messages {
        assert!(
            printed.contains(message),
            "{command:?} lacks {message:?}: {printed}"
        );
    }
    printed
}

/// Checks that the values of two runs are equal within the tolerance.
///
/// # Panics
/// A value differs.
#[track_caller]
pub fn assert_close(left: &[f64], right: &[f64], what: &str) {
    assert_near(left, right, TOLERANCE, what);
}

/// Like [`assert_close`], with another tolerance.
///
/// # Panics
/// A value differs.
#[track_caller]
pub fn assert_near(left: &[f64], right: &[f64], tolerance: f64, what: &str) {
    assert_eq!(left.len(), right.len(), "{what}");
    let largest = largest_difference(left, right);
    assert!(largest < tolerance, "{what}: {largest:e}");
    println!("{what}: {largest:e}");
}

/// The largest difference between values at the same place.
pub fn largest_difference(left: &[f64], right: &[f64]) -> f64 {
    let pairs = left.iter().zip(right);
    let differences = pairs.map(|(left, right)| (left - right).abs());
    differences.fold(0.0, f64::max)
}

/// Waits until the second epoch of a training that writes into `runs` starts.
///
/// # Panics
/// The second epoch does not start.
#[track_caller]
pub fn wait_for_second_epoch(running: Running, runs: &Path) -> Running {
    running.wait_until("second epoch", || second_epoch_began(runs))
}

/// Whether the second epoch of a training that writes into `runs` has started.
pub fn second_epoch_began(runs: &Path) -> bool {
    let log = fs::read_to_string(runs.join("metrics.jsonl"));
    log.unwrap_or_default().lines().count() >= 2
}

/// The process ids of the workers that use a folder.
///
/// # Panics
/// The processes of this machine cannot be listed.
pub fn workers(folder: &str) -> Vec<u32> {
    let of = |entry: fs::DirEntry| {
        let id = entry.file_name().to_str()?.parse().ok()?;
        let words = fs::read(entry.path().join("cmdline")).ok()?;
        let words = String::from_utf8(words).ok()?;
        let mut words = words.split('\0');
        let is_worker =
            words.next()?.ends_with("/program") && words.clone().any(|word| word == folder);
        (is_worker && !words.any(|word| word == "launch")).then_some(id)
    };
    let entries = fs::read_dir("/proc").expect("processes");
    let mut ids: Vec<u32> = entries.flatten().filter_map(of).collect();
    ids.sort_unstable();
    ids
}

/// Sends a signal.
///
/// # Panics
/// The process does not exist.
pub fn signal(signal: Signal, process: u32) {
    let id = i32::try_from(process).ok().and_then(Pid::from_raw);
    kill_process(id.expect("the id of a process"), signal).expect("a process");
}
