//! Trainings that signals stop at random moments, and that go on until they complete.

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

/// Signals that ask for a stop.
pub const STOPS: [Signal; 3] = [Signal::INT, Signal::TERM, Signal::USR1];

/// Between two signals of a burst; launchers and wrappers deliver a signal twice.
const GAP: Duration = Duration::from_millis(200);

/// Added to the number of a signal it is the exit status.
const EXIT_BASE: i32 = 128;

/// Up to three signals that follow each other closely.
pub struct Burst(Vec<(Duration, Signal)>);

impl Burst {
    /// One to three signals, most often the same.
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
    /// There is no such process.
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

/// How a run ended that got signals.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It had completed before.
    Completed,
    /// With 128 + the signal.
    Stopped,
    /// By the signal, before it listened to any.
    AtOnce,
}

impl Ended {
    /// Makes sure that a run ended as one of `signals` says.
    ///
    /// # Panics
    /// It did not.
    #[track_caller]
    pub fn of(output: &Output, signals: &Burst) -> Self {
        let (printed, status) = (text(output), output.status);
        for word in ["error", "warning", "panicked"] {
            assert!(!printed.contains(word), "{status}: {printed}");
        }
        match (status.code(), status.signal()) {
            (Some(0), _) => Ended::Completed,
            (Some(code), _) if signals.has(code - EXIT_BASE) => Ended::Stopped,
            // A summary of the model is the first that is printed.
            (None, Some(number)) if signals.has(number) && output.stdout.is_empty() => {
                Ended::AtOnce
            }
            _ => panic!("{status} after {signals}: {printed}"),
        }
    }
}

/// A training that was never stopped.
pub struct Whole<'a> {
    pub runs: &'a Path,
    /// How long it took.
    pub time: Duration,
}

impl Whole<'_> {
    /// Has a training run into `runs`, stops it a few times at random moments, and makes sure that nothing
    /// of it differs from the one that was never stopped. `command` gives its start, or where asked so the
    /// one that resumes. Returns how it was stopped.
    ///
    /// # Panics
    /// Something differs.
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
            let moment = random.time(self.time * 11 / 10);
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

/// Makes sure that the step after which a run says that it stopped was saved.
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

/// What a process that was killed leaves of a checkpoint.
///
/// # Panics
/// There are no checkpoints.
pub fn unfinished(runs: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(runs.join("checkpoints")).expect("checkpoints");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    names.filter(|name| name.starts_with('.')).collect()
}
