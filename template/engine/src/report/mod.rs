//! Reporting: machine-readable logs, trackers, pictures, predictions and profiles of a run, and progress bars and one
//! terminal line per epoch of its passes.

mod json;
pub(crate) mod log;
mod pass;
pub mod predictions;
mod steps;
pub mod summary;
mod throughput;

use std::{fs, io, path::PathBuf, time::Duration};

use anyhow::{Context, Error, Result};

use crate::{
    checkpoint::{Checkpoints, Progress},
    data::DistributedDataset,
    device::{reads, set_updates_between_reads},
    files::{OutputLock, set_aside, whole_file},
    globals,
    options::Options,
    picture::{Picture, Sample, curves, sample_sheet},
    precision,
    run_record::{self, RunRecord},
    task::Task,
    tensorboard,
    tracking::{self, Outcome, StartedRun, Tracker, Trackers},
};
use pass::Pass;
use steps::StepLog;
use throughput::{Throughput, devices_of};

pub use crate::{
    console::{stdout, terminal},
    performance::profile,
};

/// File name of the run metadata.
pub(crate) const RUN: &str = "run.json";

/// File name of the options of a run, as `--config` reads them.
const OPTIONS: &str = "run.toml";

/// Examples on the sheet of samples, in total and per row.
const SAMPLES: usize = 32;
const SAMPLES_IN_A_ROW: usize = 8;

/// Share of an epoch spent waiting for data above which the report mentions it.
const STARVING: f64 = 0.05;

/// Reports a run on the terminal and in its output folder.
pub struct Report {
    folder: PathBuf,
    log: PathBuf,
    steps: StepLog,
    throughput: Throughput,
    /// Rates and memory of the last line, for the progress bar.
    rates: Vec<String>,
    memory: Vec<String>,
    /// Whether this process is the chief, the only one of a job that reports.
    speaks: bool,
    /// Lock on the output folder; `None` if nothing is written.
    lock: Option<OutputLock>,
    /// TensorBoard and other records, while training.
    trackers: Trackers,
    /// The first step whose epoch metrics are logged; `None` if the training started anew.
    resumed: Option<usize>,
    /// The step at which profiling began, and the reads of devices until then; `None` without `--profile`.
    profile: Option<(usize, u64)>,
    epochs: usize,
    current: Option<Pass>,
    /// The time that training waited for checkpoints since its last line in the log.
    checkpoint_wait: Duration,
    /// The training's part of the line of the epoch.
    line: Vec<String>,
}

impl Report {
    /// Creates the report and locks the output folder.
    ///
    /// # Errors
    /// The output folder cannot be created or written to, or another run writes to it.
    pub fn new(options: &Options) -> Result<Self> {
        let mut report = Self::without_lock(options)?;
        if report.speaks {
            report.lock = Some(OutputLock::acquire(&options.output_dir)?);
        }
        Ok(report)
    }

    /// As [`new`](Self::new), for a test alone: a read-only output folder causes a warning instead of an
    /// error.
    ///
    /// # Errors
    /// Another run writes to the output folder.
    pub fn of_test(options: &Options) -> Result<Self> {
        match Self::new(options) {
            Err(error) if is_read_only(&error) => {
                terminal::warn(format_args!(
                    "warning: {error:#}: the test is not written there"
                ));
                Self::without_lock(options)
            }
            report => report,
        }
    }

    fn without_lock(options: &Options) -> Result<Self> {
        let speaks = globals::strategy()?.is_chief();
        set_updates_between_reads(options.log_every);
        Ok(Report {
            speaks,
            log: options.output_dir.join(log::NAME),
            lock: None,
            folder: options.output_dir.clone(),
            steps: StepLog::new(&options.output_dir, options.log_every),
            throughput: Throughput::new(options),
            rates: Vec::new(),
            memory: Vec::new(),
            trackers: Trackers::none(&options.output_dir),
            resumed: None,
            profile: (options.profile && speaks).then_some((0, 0)),
            epochs: options.epochs,
            current: None,
            checkpoint_wait: Duration::ZERO,
            line: Vec::new(),
        })
    }

    /// Whether this run holds the lock on the output folder; false on a file system without locks.
    pub fn is_alone(&self) -> bool {
        self.lock.as_ref().is_some_and(OutputLock::is_held)
    }

    /// Starts the log files of this training; those of an earlier run, checkpoints included, are renamed
    /// and kept.
    ///
    /// # Errors
    /// A file cannot be created, or an earlier one cannot be renamed.
    pub fn start_training(&mut self, checkpoints: &Checkpoints) -> Result<()> {
        if self.speaks {
            let names = [
                RUN,
                OPTIONS,
                log::NAME,
                tensorboard::FOLDER,
                tracking::MLFLOW_RUN,
                tracking::MLFLOW_UNSENT,
            ];
            let mut earlier = names.map(|name| self.folder.join(name)).to_vec();
            earlier.push(self.steps.path().to_owned());
            earlier.extend(checkpoints.folder_in_use()?);
            for (from, to) in set_aside(&earlier)? {
                self.say(&format!(
                    "{} of an earlier run is kept as {}",
                    from.display(),
                    to.display()
                ));
            }
        }
        self.resumed = None;
        self.begin_training(Progress::START);
        Ok(())
    }

    /// Checks that the trackers of the engine, by its features and options, and those of the project can record a
    /// run.
    ///
    /// # Errors
    /// A tracker cannot record a run.
    pub fn connect_trackers(
        &mut self,
        options: &Options,
        own: Vec<Box<dyn Tracker>>,
        resumes: bool,
    ) -> Result<()> {
        match self.speaks {
            true => {
                let engines = [tensorboard::tracker(), tracking::mlflow(options)?];
                let all = engines.into_iter().flatten().chain(own);
                self.trackers.connect(all.collect(), resumes)
            }
            false => Ok(()),
        }
    }

    /// Notes how the run ends, for trackers.
    pub fn end_run(&mut self, outcome: Outcome) {
        self.trackers.outcome = outcome;
    }

    /// Writes the run metadata to `run.json`, and the options to `run.toml`; one of a resumed run with other
    /// options is renamed and kept. Starts the run in all trackers.
    ///
    /// # Errors
    /// A file cannot be written, or a tracker cannot record the run.
    pub fn record(&mut self, step: usize, run: &RunRecord) -> Result<()> {
        if !self.speaks {
            return Ok(());
        }
        whole_file::write(&self.folder.join(RUN), serde_json::to_vec_pretty(run)?)?;
        if let Some(options) = run_record::run_file() {
            options.write(&self.folder.join(OPTIONS), run)?;
        }
        let folder = std::path::absolute(&self.folder).unwrap_or_else(|_| self.folder.clone());
        self.trackers.start(&StartedRun {
            name: folder
                .file_name()
                .map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
            folder: &self.folder,
            parameters: tracking::parameters(run),
            record: run,
            resumes: self.resumed.is_some(),
            step,
            first_step: self.resumed.unwrap_or_default(),
        })
    }

    /// Writes `run.json` again, with the reason why training ended early.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn record_end(&self, run: &RunRecord) -> Result<()> {
        match self.speaks {
            true => whole_file::write(&self.folder.join(RUN), serde_json::to_vec_pretty(run)?),
            false => Ok(()),
        }
    }

    /// Continues the logs of a resumed training. `repeats_end` is true if it was stopped before or during a
    /// validation, so that it repeats the end of that epoch.
    ///
    /// # Errors
    /// A file cannot be created, read or written.
    pub fn resume_training(&mut self, progress: Progress, repeats_end: bool) -> Result<()> {
        if self.speaks {
            log::cut(&self.log, "epoch", progress.epoch)?;
            log::cut(self.steps.path(), "step", progress.step + 1)?;
        }
        let first_step = progress.step + usize::from(!repeats_end);
        self.resumed = Some(first_step);
        self.begin_training(progress);
        Ok(())
    }

    fn begin_training(&mut self, progress: Progress) {
        if self.profile.is_some() {
            self.profile = Some((progress.step, reads()));
            profile::start();
        }
    }

    /// Reports the model summary and a sheet of training samples.
    ///
    /// # Errors
    /// An example cannot be read, or the sheet cannot be written.
    pub fn introduce<T: Task>(&mut self, data: &DistributedDataset<T::Example>) -> Result<()> {
        if !self.speaks {
            return Ok(());
        }
        let total = self.epochs.saturating_mul(data.steps_per_epoch());
        self.steps.set_total(total);
        let examples = data.dataset();
        let strategy = globals::strategy()?;
        self.steps.devices = devices_of(&*strategy)?;
        let (model, precision) = strategy.run_on_first(|replica| {
            let precision = precision::describe(replica.device());
            if precision.is_some() {
                precision::unrounded::arm();
            }
            Ok((globals::model::<T>()?, precision))
        })?;
        self.say(&summary::summarize(&model));
        precision.iter().for_each(|line| self.say(line));
        self.start_throughput::<T>()?;
        let examples = (0..examples.len().min(SAMPLES)).map(|index| examples.get(index));
        let samples = examples
            .map(|example| T::picture(&example?))
            .collect::<Result<Vec<_>>>()?;
        let samples: Vec<Sample> = samples.into_iter().flatten().collect();
        if samples.is_empty() {
            return Ok(());
        }
        let sheet = sample_sheet(&samples, SAMPLES_IN_A_ROW)?;
        self.picture(0, "samples", &sheet)
    }

    /// Reports the end of training: learning curves and, with `--profile`, the time per phase.
    ///
    /// # Errors
    /// A picture or the trace cannot be written.
    pub fn conclude(&mut self, progress: Progress) -> Result<()> {
        if !self.speaks {
            return Ok(());
        }
        self.draw_curves()?;
        if let Some((first, reads_before)) = self.profile {
            let steps = progress.step - first;
            let profile = profile::finish(steps);
            let trace = self.folder.join("trace.json");
            profile.write_chrome_trace(&trace)?;
            self.say(&profile.breakdown());
            let reads = reads() - reads_before;
            if reads > 0 {
                self.say(&format!(
                    "{reads} reads from GPUs in {steps} steps, each of which waits for all work queued"
                ));
            }
            self.say(&format!(
                "a trace for ui.perfetto.dev is in {}",
                trace.display()
            ));
        }
        Ok(())
    }

    /// Draws the learning curves, unless training was stopped in its first epoch and the log is empty.
    fn draw_curves(&self) -> Result<()> {
        match fs::metadata(&self.log).is_ok_and(|log| log.len() > 0) {
            true => curves::draw(&self.log, &self.folder.join("curves.svg")),
            false => Ok(()),
        }
    }

    /// Logs a scalar at a training step to TensorBoard and other trackers. The steps of a tag should not
    /// decrease.
    ///
    /// # Errors
    /// A tracker cannot write it.
    pub fn scalar(&mut self, step: usize, tag: &str, value: f64) -> Result<()> {
        self.trackers
            .log(|tracker| tracker.scalar(step, tag, value))
    }

    /// Logs a histogram of `values` at a training step to TensorBoard and other trackers that take them.
    ///
    /// # Errors
    /// A tracker cannot write it.
    pub fn histogram(&mut self, step: usize, tag: &str, values: &[f32]) -> Result<()> {
        self.trackers
            .log(|tracker| tracker.histogram(step, tag, values))
    }

    /// Writes an image at a training step to TensorBoard and other trackers that take them, and as `pictures/TAG-STEP.png`.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn picture(&mut self, step: usize, tag: &str, picture: &Picture) -> Result<()> {
        if !self.speaks {
            return Ok(());
        }
        let folder = self.folder.join("pictures");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        let name = format!("{}-{step:08}.png", tag.replace(['/', '\\'], "-"));
        picture.save_png(&folder.join(name))?;
        self.trackers
            .log(|tracker| tracker.picture(step, tag, picture))
    }

    /// Logs learning rates, histograms of all parameters, and histograms of kept gradients, if a tracker takes
    /// histograms, as TensorBoard does.
    ///
    /// # Errors
    /// A tracker cannot write them.
    pub fn parameters<T: Task>(&mut self, step: usize) -> Result<()> {
        if !self.trackers.take_histograms() {
            return Ok(());
        }
        let strategy = globals::strategy()?;
        let (rates, values) = strategy.run_on_first(|_| {
            Ok((
                globals::learning_rates::<T>()?,
                globals::weights_and_gradients::<T>()?,
            ))
        })?;
        for (optimizer, rate) in rates {
            self.scalar(step, &format!("learning_rate/{optimizer}"), rate)?;
        }
        for (tag, values) in values {
            self.histogram(step, &tag, &values)?;
        }
        Ok(())
    }

    /// Adds to the time that training waited for checkpoints.
    pub fn add_checkpoint_wait(&mut self, waited: Duration) {
        self.checkpoint_wait += waited;
    }

    /// Prints a line on the terminal, on the chief only.
    pub fn say(&self, text: &str) {
        if self.speaks {
            terminal::print(text);
        }
    }
}

/// True if writing failed for lack of permission or on a read-only file system.
fn is_read_only(error: &Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| {
        let kinds = [
            io::ErrorKind::PermissionDenied,
            io::ErrorKind::ReadOnlyFilesystem,
        ];
        kinds.contains(&error.kind())
    })
}
