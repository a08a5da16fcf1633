//! Trainings that are stopped by signals at random moments and resumed until they complete.

use std::{
    fmt,
    os::unix::process::ExitStatusExt,
    path::Path,
    process::{Command, Output},
    thread::sleep,
    time::Duration,
};

use rustix::process::Signal;

use crate::{
    job::signal,
    random::Random,
    rendered::text,
    running::{Running, TRAINING},
    runs::{assert_whole, checkpoints, latest, log_without_seconds, manifest, state},
};

/// Signals that request a stop.
pub const STOPS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::USR1];

/// Time between the signals of a burst, as launchers and wrappers deliver a signal twice.
const GAP: Duration = Duration::from_millis(200);

/// The exit status of a stopped run is this plus the number of the signal.
const EXIT_BASE: i32 = 128;

/// Up to three signals in quick succession.
pub struct Burst(Vec<(Duration, Signal)>);

impl Burst {
    /// One to three signals, mostly the same.
    pub fn random(random: &mut Random) -> Self {
        let first = random.one_of(&STOPS);
        let mixed = random.below(4) == 0;
        let signals = (0..=random.below(3)).map(|place| match place {
            0 => (Duration::ZERO, first),
            _ if mixed => (random.time(GAP), random.one_of(&STOPS)),
            _ => (random.time(GAP), first),
        });
        Burst(signals.collect())
    }

    /// Sends the signals.
    ///
    /// # Panics
    /// The process does not exist.
    pub fn send(&self, process: u32) {
        for (pause, kind) in &self.0 {
            sleep(*pause);
            signal(*kind, process);
        }
    }

    fn has(&self, number: i32) -> bool {
        self.0.iter().any(|(_, signal)| signal.as_raw() == number)
    }
}

impl fmt::Display for Burst {
    fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
        for (pause, signal) in &self.0 {
            write!(formatter, "{pause:?} {signal:?} ")?;
        }
        Ok(())
    }
}

/// The end of a run that received signals.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// The run had completed before.
    Completed,
    /// The run stopped with 128 + the signal.
    Stopped,
    /// The signal killed the run before it installed its handler.
    AtOnce,
}

impl Ended {
    /// Checks that a run ended with the status of one of `signals`.
    ///
    /// # Panics
    /// The status is another.
    #[track_caller]
    pub fn of(output: &Output, signals: &Burst) -> Self {
        let (printed, status) = (text(output), output.status);
        let ours = without_a_crash_of_mpirun(&printed);
        for word in ["error", "warning", "panicked"] {
            assert!(!ours.contains(word), "{status}: {printed}");
        }
        match (status.code(), status.signal()) {
            (Some(0), _) => Ended::Completed,
            (Some(code), _) if signals.has(code - EXIT_BASE) => Ended::Stopped,
            // The summary of the model is printed first.
            (None, Some(number)) if signals.has(number) && output.stdout.is_empty() => {
                Ended::AtOnce
            }
            _ => panic!("{status} after {signals}: {printed}"),
        }
    }
}

/// The function in which mpirun of Open MPI 4.1 crashes or hangs now and then, when all workers have ended.
const CRASHES: &str = "(PMIx_server_finalize+";

/// `printed` without mpirun's report of its own crash, in lines that begin with `[host:process]`. A worker's is kept.
fn without_a_crash_of_mpirun(printed: &str) -> String {
    let process = |line: &str| {
        let (place, _) = line.strip_prefix('[')?.split_once("] ")?;
        let (_, process) = place.split_once(':')?;
        process.parse::<u32>().ok()
    };
    let mut lines = printed.lines();
    let Some(crashed) = lines.find(|line| line.contains(CRASHES)).and_then(process) else {
        return printed.to_owned();
    };
    let others = printed
        .lines()
        .filter(|line| process(line) != Some(crashed));
    others.flat_map(|line| [line, "\n"]).collect()
}

/// An uninterrupted training.
pub struct Whole<'a> {
    pub runs: &'a Path,
    /// Duration.
    pub time: Duration,
}

impl Whole<'_> {
    /// Runs a training in `runs`, stops it a few times at random moments, and checks that the
    /// result equals that of the uninterrupted training. `command` returns the command that starts
    /// or resumes the training. Returns how each run ended.
    ///
    /// # Panics
    /// A result differs.
    #[track_caller]
    pub fn is_reached_with_stops(
        &self,
        runs: &Path,
        random: &mut Random,
        command: impl Fn(bool) -> Command,
    ) -> Vec<Ended> {
        let mut stops = Vec::new();
        for stop in 0..=random.below(3) {
            let burst = Burst::random(random);
            let moment = random.time(self.time.mul_f64(1.1 * self.left(runs)));
            let running = Running::start(&mut command(stop > 0));
            sleep(moment);
            burst.send(running.id());
            let output = running.end(TRAINING);
            let ended = Ended::of(&output, &burst);
            stops.push(ended);
            assert_saved(runs, &output);
            if ended == Ended::Completed {
                break;
            }
        }
        if stops.last() != Some(&Ended::Completed) {
            let output = Running::start(&mut command(true)).end(TRAINING);
            assert!(output.status.success(), "{}", text(&output));
        }
        self.assert_reached(runs);
        stops
    }

    /// The expected duration of a run that resumes the latest checkpoint, as a share of the whole training's. About
    /// half of the latter is in the steps, and the rest, such as the start, in every run.
    fn left(&self, runs: &Path) -> f64 {
        let step = |runs: &Path| {
            let latest = latest(runs)?;
            manifest(&latest)["step"].as_f64()
        };
        let saved = step(runs).zip(step(self.runs));
        1.0 - saved.map_or(0.0, |(step, steps)| step / steps) / 2.0
    }

    #[track_caller]
    fn assert_reached(&self, runs: &Path) {
        assert_eq!(log_without_seconds(runs), log_without_seconds(self.runs));
        let [reached, expected] = [runs, self.runs].map(checkpoints);
        assert_eq!(
            reached.last_key_value().map(|(place, _)| place),
            expected.last_key_value().map(|(place, _)| place)
        );
        for (place, path) in reached {
            assert_whole(&path);
            if let Some(expected) = expected.get(&place) {
                assert_eq!(state(&path), state(expected));
            }
        }
        assert_eq!(unfinished(runs), [""; 0]);
    }
}

/// Checks that the step at which a run reports to have stopped was saved.
#[track_caller]
fn assert_saved(runs: &Path, output: &Output) {
    let printed = text(output);
    let stopped = printed.lines().find_map(|line| {
        let rest = line.strip_prefix("stopped ")?;
        let (_, rest) = rest.split_once("after step ")?;
        rest.split(';').next()?.parse::<usize>().ok()
    });
    if let Some(step) = stopped {
        let latest = latest(runs).expect("a checkpoint");
        assert_whole(&latest);
        assert_eq!(manifest(&latest)["step"], step, "{printed}");
    }
}

/// The remains of checkpoints that a killed process was writing.
///
/// # Panics
/// The folder of checkpoints is missing.
pub fn unfinished(runs: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(runs.join("checkpoints")).expect("checkpoints");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with('.')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crash_of_mpirun_is_told_from_one_of_a_worker() {
        let crash = |process: u32, function: &str| {
            format!(
                "[vm:{process}] *** Process received signal ***\n\
                 [vm:{process}] [ 1] /lib/libpmix.so.2({function}+0xb08)[0x7faef1e7d118]\n\
                 [vm:{process}] *** End of error message ***\n"
            )
        };
        let own = "mpirun: Forwarding signal 10 to job\n";
        let of_mpirun = crash(10467, "PMIx_server_finalize");
        let of_worker = crash(10470, "worker");
        for (printed, expected) in [
            (format!("{own}{of_mpirun}{own}"), format!("{own}{own}")),
            (format!("{own}{of_worker}"), format!("{own}{of_worker}")),
            (format!("{of_worker}{of_mpirun}"), of_worker.clone()),
        ] {
            assert_eq!(without_a_crash_of_mpirun(&printed), expected);
        }
    }
}
