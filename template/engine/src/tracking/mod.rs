//! Trackers: records of runs in other programs, such as TensorBoard and MLflow, behind one interface.
//!
//! Only the chief has trackers. A project adds its own in `src/callbacks.rs`, with
//! [`Callbacks::tracker`](crate::training::Callbacks::tracker).

#[cfg(feature = "mlflow")]
mod mlflow;
mod parameters;

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::Value;

use crate::{
    console::terminal, metric::MergedMetric, options::Options, picture::Picture,
    run_record::RunRecord, split::Split,
};
pub(crate) use parameters::parameters;

/// Files of the output folder that trackers may keep.
const FILES: [&str; 5] = [
    "run.json",
    "run.toml",
    "metrics.jsonl",
    "steps.jsonl",
    "curves.svg",
];

/// File name of the identity of a run on an MLflow server, with which a resumed training goes on in it.
pub(crate) const MLFLOW_RUN: &str = "mlflow.json";

/// File name of the points of metrics that an MLflow server lacks.
pub(crate) const MLFLOW_UNSENT: &str = "mlflow-unsent.jsonl";

/// Names of hyper-parameters, such as `learning-rate`, and their values.
pub type Parameters = Vec<(String, Value)>;

/// A record of runs in another program. Errors end the training, so an implementation that sends over a network
/// should return only those of [`connect`](Self::connect) and [`start`](Self::start), and send on its own
/// thread.
pub trait Tracker {
    /// Checks, before any file of an earlier run is touched, that a run can be recorded.
    ///
    /// # Errors
    /// It cannot be: training does not start.
    fn connect(&mut self, _resumes: bool) -> Result<()> {
        Ok(())
    }

    /// Starts a run, or continues it after `--resume`. Steps after `run.step` that a killed run has logged are
    /// repeated.
    ///
    /// # Errors
    /// The run cannot be recorded: training does not start.
    fn start(&mut self, run: &StartedRun<'_>) -> Result<()>;

    /// Logs the metrics of a split after `step` updates.
    ///
    /// # Errors
    /// They cannot be written.
    fn metrics(&mut self, split: Split, step: usize, metrics: &[MergedMetric]) -> Result<()>;

    /// Logs a scalar of training, such as `step/loss`, after `step` updates.
    ///
    /// # Errors
    /// It cannot be written.
    fn scalar(&mut self, step: usize, tag: &str, value: f64) -> Result<()>;

    /// Logs a picture.
    ///
    /// # Errors
    /// It cannot be written.
    fn picture(&mut self, _step: usize, _tag: &str, _picture: &Picture) -> Result<()> {
        Ok(())
    }

    /// Whether [`histogram`](Self::histogram) does something: parameters are read from the devices for it.
    fn takes_histograms(&self) -> bool {
        false
    }

    /// Logs the distribution of values, such as the weights of a layer.
    ///
    /// # Errors
    /// It cannot be written.
    fn histogram(&mut self, _step: usize, _tag: &str, _values: &[f32]) -> Result<()> {
        Ok(())
    }

    /// Ends the run. Not called if the process is killed, or ended at once by a second signal or by another
    /// process of the job.
    ///
    /// # Errors
    /// The end cannot be written; only a warning.
    fn finish(&mut self, run: &EndedRun) -> Result<()>;
}

/// The run that a tracker records.
pub struct StartedRun<'a> {
    /// Name of the output folder.
    pub name: String,
    /// The output folder.
    pub folder: &'a Path,
    /// Options that may change the results, and the number of replicas.
    pub parameters: Parameters,
    /// All metadata.
    pub record: &'a RunRecord,
    /// Whether it continues from a checkpoint.
    pub resumes: bool,
    /// Updates of the parameters so far.
    pub step: usize,
    /// The first step whose epoch metrics are logged (again): `step` itself if the validation is repeated,
    /// otherwise the next one.
    pub first_step: usize,
}

/// Outcome of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedRun {
    /// Success, error or signal.
    pub outcome: Outcome,
    /// Records, logs and curves in the output folder.
    pub files: Vec<PathBuf>,
}

/// Success, error or signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The training, and the test if there is one, ended.
    Finished,
    /// An error ended it.
    Failed,
    /// A signal stopped it; `--resume` continues.
    Killed,
}

/// The trackers of a run. Dropping them ends their runs.
pub(crate) struct Trackers {
    all: Vec<Box<dyn Tracker>>,
    folder: PathBuf,
    is_started: bool,
    pub outcome: Outcome,
}

impl Trackers {
    /// No trackers, as in processes other than the chief and in tests of checkpoints.
    pub fn none(folder: &Path) -> Self {
        Trackers {
            all: Vec::new(),
            folder: folder.to_owned(),
            is_started: false,
            outcome: Outcome::Failed,
        }
    }

    /// Adds `trackers`, and connects all.
    ///
    /// # Errors
    /// A tracker cannot record a run.
    pub fn connect(&mut self, trackers: Vec<Box<dyn Tracker>>, resumes: bool) -> Result<()> {
        self.all.extend(trackers);
        self.each(|tracker| tracker.connect(resumes))
    }

    /// Starts a run in all trackers.
    ///
    /// # Errors
    /// The first error of a tracker.
    pub fn start(&mut self, run: &StartedRun<'_>) -> Result<()> {
        self.is_started = true;
        self.each(|tracker| tracker.start(run))
    }

    /// Whether any tracker takes histograms.
    pub fn take_histograms(&self) -> bool {
        let mut all = self.all.iter();
        all.any(|tracker| tracker.takes_histograms())
    }

    /// Calls `log` for each tracker, in order, if their runs have started: a test alone is not tracked.
    ///
    /// # Errors
    /// The first error of a tracker.
    pub fn log(&mut self, log: impl FnMut(&mut Box<dyn Tracker>) -> Result<()>) -> Result<()> {
        match self.is_started {
            true => self.each(log),
            false => Ok(()),
        }
    }

    fn each(&mut self, call: impl FnMut(&mut Box<dyn Tracker>) -> Result<()>) -> Result<()> {
        self.all.iter_mut().try_for_each(call)
    }
}

impl Drop for Trackers {
    fn drop(&mut self) {
        if !self.is_started {
            return;
        }
        let files = FILES.map(|name| self.folder.join(name)).into_iter();
        let run = EndedRun {
            outcome: self.outcome,
            files: files.filter(|file| file.is_file()).collect(),
        };
        for tracker in &mut self.all {
            if let Err(error) = tracker.finish(&run) {
                terminal::warn(format_args!("warning: {error:#}"));
            }
        }
    }
}

/// The tracker of `--mlflow`, if given.
#[cfg(feature = "mlflow")]
pub(crate) fn mlflow(options: &Options) -> Result<Option<Box<dyn Tracker>>> {
    let Some(uri) = &options.mlflow else {
        return Ok(None);
    };
    let tracker = mlflow::Mlflow::new(
        uri,
        options.mlflow_experiment.as_deref(),
        &options.output_dir,
    )?;
    Ok(Some(Box::new(tracker)))
}

#[cfg(not(feature = "mlflow"))]
pub(crate) fn mlflow(options: &Options) -> Result<Option<Box<dyn Tracker>>> {
    anyhow::ensure!(
        options.mlflow.is_none(),
        "--mlflow needs a program that is built with `--features mlflow`"
    );
    Ok(None)
}

#[cfg(test)]
mod tests;
