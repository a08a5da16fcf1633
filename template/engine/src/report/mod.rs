//! Reporting: progress bars, one terminal line per epoch, machine-readable logs, predictions
//! and profiles.

mod json;
pub(crate) mod log;
pub mod predictions;
mod steps;
pub mod summary;
mod throughput;

use std::{
    fs, io, mem,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Error, Result};

use crate::{
    checkpoint::{Checkpoints, Progress},
    console::{self, Bar},
    data::DistributedDataset,
    device::{reads, set_updates_between_reads},
    files::{OutputLock, set_aside, whole_file},
    globals::{self, Split},
    loss::Losses,
    metric::MergedMetric,
    options::Options,
    picture::{Picture, Sample, curves, sample_sheet},
    precision,
    replica::Counted,
    run_record::{self, RunRecord},
    task::Task,
    tensorboard,
    tracking::{self, Outcome, StartedRun, Tracker, Trackers},
};
use steps::StepLog;
use throughput::{Throughput, devices_of, rates::Rates};

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
    current: Option<Current>,
    /// The time that training waited for checkpoints since its last line in the log.
    checkpoint_wait: Duration,
    /// The training's part of the line of the epoch.
    line: Vec<String>,
}

/// The split in progress.
struct Current {
    split: Split,
    epoch: usize,
    started: Instant,
    bar: Bar,
    /// Time spent waiting for batches.
    waited: Duration,
    /// Examples in updates, over all replicas of all processes.
    examples: usize,
    /// Examples and tokens that the replicas of this process trained on.
    counted: Counted,
    /// Whether averaged weights are evaluated.
    averaged: bool,
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

    /// Gets the next batch with `next` and measures the waiting time.
    pub fn wait_for<T>(&mut self, next: impl FnOnce() -> T) -> T {
        let _data = profile::span(profile::Phase::Data);
        let started = Instant::now();
        let batch = next();
        self.add_wait(started.elapsed());
        batch
    }

    /// Adds to the time that training waited for checkpoints.
    pub fn add_checkpoint_wait(&mut self, waited: Duration) {
        self.checkpoint_wait += waited;
    }

    fn add_wait(&mut self, waited: Duration) {
        if let Some(current) = &mut self.current {
            current.waited += waited;
            if current.split == Split::Train {
                self.steps.work.waited += waited;
            }
        }
    }

    /// Begins a pass of `steps` steps over a split.
    pub fn begin(&mut self, split: Split, epoch: usize, steps: usize) {
        let prefix = [split.name(), &self.place(split, epoch)].join(" ");
        match split {
            Split::Train => self.steps.begin_epoch(Instant::now()),
            Split::Validation => {}
            Split::Test => self.end_run(Outcome::Failed), // until it ends
        }
        self.current = Some(Current {
            split,
            epoch,
            started: Instant::now(),
            bar: Bar::show(self.speaks, prefix.trim_end(), steps),
            waited: Duration::ZERO,
            examples: 0,
            counted: Counted::default(),
            averaged: false,
        });
    }

    /// Notes that the split in progress evaluates averaged weights.
    pub fn note_averaged_weights(&mut self) {
        if let Some(current) = &mut self.current {
            current.averaged = true;
        }
    }

    /// Advances the progress bar by one step, and shows its losses unless they are still to be read from a
    /// GPU.
    pub fn step(&mut self, losses: &Losses) {
        if !losses.is_unread() {
            self.show(losses);
        }
        if let Some(current) = &self.current {
            current.bar.advance();
        }
    }

    /// Shows losses in the progress bar, and in training the rates and the memory of the last line.
    fn show(&self, losses: &Losses) {
        if let Some(current) = &self.current
            && !current.bar.is_hidden()
        {
            let losses = losses
                .iter()
                .map(|(name, loss)| format!("{name} {loss:.4}"));
            let (rates, memory) = match current.split {
                Split::Train => (&self.rates[..], &self.memory[..]),
                Split::Validation | Split::Test => (&[][..], &[][..]),
            };
            current.bar.set_message(losses, rates, memory);
        }
    }

    /// Ends the split after `step` training steps in total and reports its metrics, merged over all
    /// replicas.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn end(&mut self, step: usize, metrics: &[MergedMetric]) -> Result<()> {
        self.collect_counts()?;
        let Some(current) = self.current.take() else {
            return Ok(());
        };
        current.bar.clear();
        if current.split == Split::Train {
            self.steps.end_epoch(Instant::now());
        }
        if !self.speaks {
            return Ok(());
        }
        let seconds = current.started.elapsed().as_secs_f64();
        let waited = current.waited.as_secs_f64();
        let rates = self.rates_of_epoch(&current);
        let line = log::Line {
            split: current.split,
            epoch: current.epoch,
            step,
            averaged: current.averaged,
            metrics,
            seconds,
            data_seconds: waited,
            checkpoint_seconds: (current.split == Split::Train)
                .then(|| mem::take(&mut self.checkpoint_wait).as_secs_f64()),
            rates: rates.as_ref(),
        };
        if self.lock.is_some() {
            log::append(&self.log, &line)?;
        }
        self.trackers
            .log(|tracker| tracker.metrics(current.split, step, metrics))?;
        if current.split == Split::Test {
            self.end_run(Outcome::Finished);
        }
        self.tell(&current, metrics, seconds, rates.as_ref());
        match current.split {
            Split::Test if self.lock.is_some() => self.draw_curves(),
            Split::Test => Ok(()),
            Split::Train | Split::Validation => Ok(()),
        }
    }

    /// Ends a split that was interrupted, without reporting metrics.
    pub fn abandon(&mut self) {
        if let Some(current) = self.current.take() {
            current.bar.clear();
            self.end_run(Outcome::Killed);
        }
    }

    /// Prints a line on the terminal, on the chief only.
    pub fn say(&self, text: &str) {
        if self.speaks {
            terminal::print(text);
        }
    }

    /// Prints the metrics of a split; training and validation share one line per epoch.
    fn tell(
        &mut self,
        current: &Current,
        metrics: &[MergedMetric],
        seconds: f64,
        rates: Option<&Rates>,
    ) {
        let (split, epoch) = (current.split, current.epoch);
        let weights = match current.averaged {
            true => " (averaged weights)",
            false => "",
        };
        let values = metrics
            .iter()
            .map(|metric| format!("{} {:.4}", metric.name, metric.value));
        let mut fields = vec![format!("{}{weights}", split.name())];
        fields.extend(values);
        let (head, groups) = match split {
            Split::Train => {
                fields.push(format!("{seconds:.2} s"));
                fields.extend(rates.iter().flat_map(|rates| rates.throughput()));
                let waited = current.waited.as_secs_f64();
                if waited > STARVING * seconds {
                    fields.push(format!("{waited:.2} s waiting for data"));
                }
                self.line = fields;
                return;
            }
            Split::Validation => {
                let head = format!("epoch {}", self.place(split, epoch));
                (head, vec![std::mem::take(&mut self.line), fields])
            }
            Split::Test => {
                let examples = metrics.first().map_or(0, |metric| metric.examples);
                fields.push(format!("({examples} examples)"));
                (fields.remove(0), vec![fields])
            }
        };
        print_line(&head, &groups);
    }

    /// Reports the training of an epoch that has no validation.
    pub fn end_without_validation(&mut self, epoch: usize) {
        if self.speaks {
            let head = format!("epoch {}", self.place(Split::Train, epoch));
            let line = mem::take(&mut self.line);
            print_line(&head, &[line]);
        }
    }

    fn place(&self, split: Split, epoch: usize) -> String {
        match split {
            Split::Test => String::new(),
            _ => format!(
                "{epoch:>width$}/{}",
                self.epochs,
                width = self.epochs.to_string().len()
            ),
        }
    }
}

/// Prints a line with its groups of values, wrapped to the width of the terminal.
fn print_line(head: &str, groups: &[Vec<String>]) {
    terminal::print(console::wrap(head, groups, terminal::width()));
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
