//! Runs of a sweep as child processes, and signals to them.

use std::{
    ffi::OsString,
    fs::{self, Metadata, OpenOptions},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{metric::Metric, plan::Planned};
use crate::{
    checkpoint::interrupt::on_signals,
    console::terminal,
    files::{held_by, whole_file},
};

/// File name of the output of a run, in its folder.
pub(super) const LOG: &str = "output.log";

/// File name of how a run ended, in its folder.
const OUTCOME: &str = "outcome.json";

/// The polling interval.
const PAUSE: Duration = Duration::from_millis(20);

/// Time between looks into the log of a run whose metric was not seen yet.
const LOOK: Duration = Duration::from_millis(500);

/// SIGTERM, for runs of a sweep that fails.
const TERMINATE: i32 = 15;

/// Outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "status", content = "reason")]
pub(super) enum Outcome {
    /// With all its epochs, or early as its options say.
    Finished,
    /// With an error, such as of a training that diverged.
    Failed(String),
}

impl Outcome {
    /// The outcome of the run in `folder`; `None` if it has not ended.
    ///
    /// # Errors
    /// The record is damaged or cannot be read.
    pub fn of(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(OUTCOME);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let outcome = serde_json::from_slice(&text);
        outcome
            .map(Some)
            .with_context(|| format!("{} is damaged", path.display()))
    }

    fn record(&self, folder: &Path) -> Result<()> {
        whole_file::write(&folder.join(OUTCOME), serde_json::to_vec(self)?)
    }
}

/// The processes of a sweep, shared with the signal handler.
#[derive(Default)]
pub(super) struct Children {
    /// Ids of the running processes.
    running: Mutex<Vec<u32>>,
    /// The first signal to the sweep; 0 if none.
    signal: AtomicI32,
    /// Whether the sweep has failed.
    has_failed: AtomicBool,
}

impl Children {
    /// Children to whom the signals of this process are passed on.
    pub fn listening() -> Arc<Self> {
        let children = Arc::new(Children::default());
        let of_handler = Arc::clone(&children);
        let listening = on_signals(move |signal| of_handler.stop(signal));
        if let Err(error) = listening {
            terminal::warn(format_args!(
                "warning: a signal will end this sweep without those of its runs: {error:#}"
            ));
        }
        children
    }

    /// The signal that stops the sweep, if any.
    pub fn signal(&self) -> Option<i32> {
        Some(self.signal.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
    }

    fn is_stopping(&self) -> bool {
        self.signal().is_some() || self.has_failed.load(Ordering::SeqCst)
    }

    pub fn stop(&self, signal: i32) {
        let first = self
            .signal
            .compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
        if first.is_ok() {
            terminal::warn("stopping the runs in progress, which save a checkpoint");
        }
        self.send(signal);
    }

    /// Stops all after an error of the sweep.
    fn fail(&self) {
        self.has_failed.store(true, Ordering::SeqCst);
        self.send(TERMINATE);
    }

    /// Sends a signal to the running processes; elsewhere than on Unix, the console does.
    fn send(&self, signal: i32) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        for id in running.iter().filter(|_| cfg!(unix)) {
            // One that has just ended needs no signal.
            let words = [format!("-{signal}"), id.to_string()];
            let _ = Command::new("kill")
                .args(words)
                .stderr(Stdio::null())
                .status();
        }
    }

    /// Starts a process, unless the sweep is stopping.
    fn start(&self, command: &mut Command) -> Result<Option<Child>> {
        // Held until the process is listed, so that no signal misses it.
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_stopping() {
            return Ok(None);
        }
        let child = command.spawn().context("cannot start a run")?;
        running.push(child.id());
        Ok(Some(child))
    }

    fn forget(&self, child: &Child) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|id| *id != child.id());
    }
}

/// Trains the runs of a sweep.
pub(super) struct Trainer<'a> {
    pub folder: &'a Path,
    pub metric: &'a Metric,
    /// The subcommand of a training, if the program has one.
    pub subcommand: Option<&'static str>,
    program: PathBuf,
    /// Size and time of the program.
    built: (u64, Option<SystemTime>),
    children: Arc<Children>,
    /// Whether a run was seen to have the metric.
    has_metric: AtomicBool,
}

impl<'a> Trainer<'a> {
    /// A trainer that starts `program`.
    ///
    /// # Errors
    /// There is no such program.
    pub fn new(
        program: PathBuf,
        folder: &'a Path,
        metric: &'a Metric,
        subcommand: Option<&'static str>,
        children: Arc<Children>,
    ) -> Result<Self> {
        Ok(Trainer {
            folder,
            metric,
            subcommand,
            built: built(&program)?,
            program,
            children,
            has_metric: AtomicBool::new(false),
        })
    }

    /// Trains all `runs`, `parallel` at a time, and calls `begins` before and `ended` after each. A signal ends
    /// them, with a checkpoint.
    ///
    /// # Errors
    /// A process cannot be started, a file cannot be written, the program has changed, or the metric is not one of
    /// the runs.
    pub fn train(
        &self,
        runs: &[&Planned],
        parallel: usize,
        begins: impl Fn(&Planned) + Sync,
        ended: impl Fn(&Planned, &Outcome, Duration) -> Result<()> + Sync,
    ) -> Result<()> {
        let next = AtomicUsize::new(0);
        let work = || -> Result<()> {
            while let Some(run) = runs.get(next.fetch_add(1, Ordering::SeqCst)) {
                if self.children.is_stopping() {
                    break;
                }
                begins(run);
                let started = Instant::now();
                match self.train_one(run) {
                    Ok(None) => break,
                    Ok(Some(outcome)) => ended(run, &outcome, started.elapsed())?,
                    Err(error) => {
                        self.children.fail();
                        return Err(error);
                    }
                }
            }
            Ok(())
        };
        thread::scope(|scope| {
            let workers: Vec<_> = (0..parallel).map(|_| scope.spawn(work)).collect();
            let ends = workers.into_iter().map(|worker| match worker.join() {
                Ok(end) => end,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            // All are waited for.
            ends.collect::<Vec<_>>().into_iter().collect()
        })
    }

    /// Trains a run to its end; `None` if the sweep stops before.
    fn train_one(&self, run: &Planned) -> Result<Option<Outcome>> {
        let folder = folder_of(self.folder, run.number);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        loop {
            if !self.wait_for_holder(&folder) {
                return Ok(None);
            }
            let Some((status, is_stopped)) = self.run(run, &folder)? else {
                return Ok(None);
            };
            // A run of a killed sweep, which may have been about to lock its folder, goes on instead.
            if !status.success() && held_by(&folder).is_some() {
                continue;
            }
            if is_stopped && !status.success() {
                return Ok(None);
            }
            let outcome = match status.success() {
                true => {
                    self.look(&folder)?;
                    Outcome::Finished
                }
                false => Outcome::Failed(reason(status, &folder)),
            };
            outcome.record(&folder)?;
            return Ok(Some(outcome));
        }
    }

    /// Waits while another process trains in `folder`; false if the sweep stops.
    fn wait_for_holder(&self, folder: &Path) -> bool {
        let mut is_told = false;
        while let Some(holder) = held_by(folder) {
            if !is_told {
                terminal::print(format_args!(
                    "{} belongs to a run in progress: {holder}; waiting for its end",
                    folder.display()
                ));
                is_told = true;
            }
            if self.children.is_stopping() {
                return false;
            }
            thread::sleep(LOOK);
        }
        true
    }

    /// Runs the process of a run; returns its status, and whether the sweep was stopping at its end.
    fn run(&self, run: &Planned, folder: &Path) -> Result<Option<(ExitStatus, bool)>> {
        ensure!(
            built(&self.program)? == self.built,
            "{} was built anew while this sweep ran, and later runs would not compare with earlier ones: the \
             sweep goes on with the new program when it is started again",
            self.program.display()
        );
        let path = folder.join(LOG);
        let cannot = || format!("cannot write {}", path.display());
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let log = log.with_context(cannot)?;
        let errors = log.try_clone().with_context(cannot)?;
        let mut command = Command::new(&self.program);
        command
            .args(words(run, folder, self.subcommand))
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors);
        let Some(mut child) = self.children.start(&mut command)? else {
            return Ok(None);
        };
        let ended = self.wait(&mut child, folder);
        if ended.is_err() {
            self.children.fail();
            let _ = child.wait();
        }
        self.children.forget(&child);
        Ok(Some((ended?, self.children.is_stopping())))
    }

    /// Waits for a process, and meanwhile for the metric in its log.
    fn wait(&self, child: &mut Child, folder: &Path) -> Result<ExitStatus> {
        let mut looked = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            if looked.elapsed() > LOOK && !self.has_metric.load(Ordering::Relaxed) {
                self.look(folder)?;
                looked = Instant::now();
            }
            thread::sleep(PAUSE);
        }
    }

    /// Notes whether a run has the metric.
    ///
    /// # Errors
    /// It has other metrics.
    fn look(&self, folder: &Path) -> Result<()> {
        if self.metric.reached(folder)?.is_some() {
            self.has_metric.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Size and time of a program, which a build changes.
fn built(program: &Path) -> Result<(u64, Option<SystemTime>)> {
    let metadata = fs::metadata(program);
    let metadata = metadata.with_context(|| format!("cannot find {}", program.display()))?;
    Ok((metadata.len(), Metadata::modified(&metadata).ok()))
}

/// The output folder of a run.
pub(super) fn folder_of(sweep: &Path, number: usize) -> PathBuf {
    sweep.join("runs").join(format!("{number:04}"))
}

/// The arguments of the process of a run.
fn words(run: &Planned, folder: &Path, subcommand: Option<&str>) -> Vec<OsString> {
    let settings = run
        .settings
        .iter()
        .flat_map(|setting| setting.words.clone());
    let mut output = OsString::from("--output-dir=");
    output.push(folder);
    let own = [output, "--resume".into()];
    settings
        .chain(own)
        .chain(subcommand.map(OsString::from))
        .collect()
}

/// Why a process failed: its status, and the error at the end of its log.
fn reason(status: ExitStatus, folder: &Path) -> String {
    let error = last_error(&folder.join(LOG));
    match (status.code(), error) {
        (Some(1), Some(error)) => error,
        (_, Some(error)) => format!("{status}: {error}"),
        (_, None) => status.to_string(),
    }
}

/// The last line of an error in a log.
fn last_error(log: &Path) -> Option<String> {
    let text = fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&text);
    let mut lines = text.lines().rev();
    let line = lines.find_map(|line| line.strip_prefix("error: "))?;
    Some(line.to_owned())
}
