//! What a run tells: progress bars on a terminal, a line an epoch, a log for programs, event files
//! for TensorBoard, pictures, predictions, and where the time goes.

#[cfg(feature = "tensorboard")]
mod board;
#[cfg(not(feature = "tensorboard"))]
#[path = "no_board.rs"]
mod board;
pub mod curves;
mod log;
pub mod picture;
pub mod predictions;
pub mod profile;
pub mod stdout;
mod steps;
pub mod summary;
#[cfg(feature = "tensorboard")]
pub mod tensorboard;
pub mod terminal;
mod whole_file;

use std::{
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::{Context, Error, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{
    checkpoint::{Checkpoints, Progress, lock::OutputLock, set_aside},
    cli::{Args, Command},
    data::DistributedDataset,
    dataset::{Example, picture},
    distribute::{Losses, MergedMetric},
    globals::{self, Split},
    run_record::RunRecord,
};
use board::Board;
use picture::Picture;
use steps::StepLog;

const BAR: &str = "{prefix:>16} {bar:30} {pos}/{len}  {per_sec}  {eta} left  {msg}";

/// What a training was run with.
const RUN: &str = "run.json";

/// The folder of the event files.
const BOARD: &str = "tensorboard";

/// Examples on the sheet of samples, and how many of them in a row.
const SAMPLES: usize = 32;
const SAMPLES_IN_A_ROW: usize = 8;

/// A share of an epoch spent waiting for data that is worth a word.
const STARVING: f64 = 0.05;

/// Reports a run on the terminal and in its output folder.
pub struct Report {
    folder: PathBuf,
    log: PathBuf,
    steps: StepLog,
    /// Only the chief of several workers reports.
    speaks: bool,
    /// On the output folder; `None` where nothing is written.
    lock: Option<OutputLock>,
    /// While training.
    board: Option<Board>,
    /// Whether the time of phases is recorded, and since which step.
    profile: Option<usize>,
    epochs: usize,
    current: Option<Current>,
    line: String,
}

/// The split that runs now.
struct Current {
    split: Split,
    epoch: usize,
    started: Instant,
    bar: ProgressBar,
    /// For batches, while replicas had nothing to do.
    waited: Duration,
}

impl Report {
    /// Locks the output folder for this run. A test alone also runs where nothing can be written.
    ///
    /// # Errors
    /// The output folder cannot be made or written in, or another run writes in it.
    pub fn new(args: &Args) -> Result<Self> {
        let speaks = globals::strategy()?.is_chief();
        let is_test = matches!(args.command, Some(Command::Test { .. }));
        let lock = match speaks.then(|| OutputLock::acquire(&args.output_dir)) {
            Some(Err(error)) if is_test && is_read_only(&error) => {
                terminal::warn(format_args!(
                    "warning: {error:#}: the test is not written there"
                ));
                None
            }
            lock => lock.transpose()?,
        };
        Ok(Report {
            speaks,
            log: args.output_dir.join(log::NAME),
            lock,
            folder: args.output_dir.clone(),
            steps: StepLog::new(&args.output_dir, args.log_every),
            board: None,
            profile: (args.profile && speaks).then_some(0),
            epochs: args.epochs,
            current: None,
            line: String::new(),
        })
    }

    /// Whether no other run writes in the output folder; unknown on a file system without locks.
    pub fn is_alone(&self) -> bool {
        self.lock.as_ref().is_some_and(OutputLock::is_held)
    }

    /// Begins files of its own for this training; those of an earlier one, its checkpoints included, are
    /// kept under other names.
    ///
    /// # Errors
    /// A file cannot be made, or an earlier one not be renamed.
    pub fn start_training(&mut self, checkpoints: &Checkpoints) -> Result<()> {
        if self.speaks {
            let mut earlier = [RUN, log::NAME, BOARD]
                .map(|name| self.folder.join(name))
                .to_vec();
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
        self.begin_training(Progress::START, 0)
    }

    /// Writes what a training is run with into its folder and for TensorBoard.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn record(&mut self, step: usize, run: &RunRecord) -> Result<()> {
        if !self.speaks {
            return Ok(());
        }
        whole_file::write(&self.folder.join(RUN), serde_json::to_vec_pretty(run)?)?;
        let board = self.board.as_mut();
        board.map_or(Ok(()), |board| board.text(step, "run", &run.to_markdown()))
    }

    /// Goes on with the logs of a training that is resumed, which `repeats_end`, the end of its epoch, if it was
    /// stopped before or in the validation.
    ///
    /// # Errors
    /// A file cannot be made, read or written.
    pub fn resume_training(&mut self, progress: Progress, repeats_end: bool) -> Result<()> {
        if self.speaks {
            log::cut(&self.log, "epoch", progress.epoch)?;
            log::cut(self.steps.path(), "step", progress.step + 1)?;
        }
        let first_step = progress.step + usize::from(!repeats_end);
        self.begin_training(progress, first_step)
    }

    fn begin_training(&mut self, progress: Progress, first_step: usize) -> Result<()> {
        if self.speaks {
            self.board = Some(Board::open(&self.folder.join(BOARD), first_step)?);
        }
        if self.profile.is_some() {
            self.profile = Some(progress.step);
            profile::start();
        }
        Ok(())
    }

    /// Shows what is trained and on what: a table of the model, and a sheet of samples.
    ///
    /// # Errors
    /// An example cannot be read, or the sheet not be written.
    pub fn introduce(&mut self, data: &DistributedDataset<Example>) -> Result<()> {
        if !self.speaks {
            return Ok(());
        }
        let total = self.epochs.saturating_mul(data.steps_per_epoch());
        self.steps.set_total(total);
        let examples = data.dataset();
        let model = globals::strategy()?.run_on_first(|_| globals::model());
        self.say(&summary::summarize(&model?));
        let examples = (0..examples.len().min(SAMPLES)).map(|index| examples.get(index));
        let pictures = examples
            .map(|example| picture(&example?))
            .collect::<Result<Vec<_>>>()?;
        let (pictures, captions): (Vec<_>, Vec<_>) = pictures.into_iter().flatten().unzip();
        if pictures.is_empty() {
            return Ok(());
        }
        let sheet = picture::sheet(&pictures, SAMPLES_IN_A_ROW, &captions)?;
        self.picture(0, "samples", &sheet)
    }

    /// Shows how training went: curves, and with `--profile` where the time went.
    ///
    /// # Errors
    /// A picture or the trace cannot be written.
    pub fn conclude(&mut self, progress: Progress) -> Result<()> {
        if !self.speaks {
            return Ok(());
        }
        self.draw_curves()?;
        if let Some(first) = self.profile {
            let profile = profile::finish(progress.step - first);
            let trace = self.folder.join("trace.json");
            profile.write_chrome_trace(&trace)?;
            self.say(&profile.breakdown());
            self.say(&format!(
                "a trace for ui.perfetto.dev is in {}",
                trace.display()
            ));
        }
        Ok(())
    }

    /// Draws the log, which has no line yet where training was stopped in its first epoch.
    fn draw_curves(&self) -> Result<()> {
        match fs::metadata(&self.log).is_ok_and(|log| log.len() > 0) {
            true => curves::draw(&self.log, &self.folder.join("curves.svg")),
            false => Ok(()),
        }
    }

    /// A number at a step of training, for TensorBoard.
    ///
    /// # Errors
    /// The event file cannot be written.
    pub fn scalar(&mut self, step: usize, tag: &str, value: f64) -> Result<()> {
        let board = self.board.as_mut();
        board.map_or(Ok(()), |board| board.scalar(step, tag, value))
    }

    /// How values are distributed at a step of training, for TensorBoard.
    ///
    /// # Errors
    /// The event file cannot be written.
    pub fn histogram(&mut self, step: usize, tag: &str, values: &[f32]) -> Result<()> {
        let board = self.board.as_mut();
        board.map_or(Ok(()), |board| board.histogram(step, tag, values))
    }

    /// A picture at a step of training, for TensorBoard and as `pictures/TAG-STEP.png`.
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
        let board = self.board.as_mut();
        board.map_or(Ok(()), |board| board.picture(step, tag, picture))
    }

    /// The learning rates, histograms of all parameters, and those of the gradients that were kept.
    ///
    /// # Errors
    /// An event file cannot be written.
    pub fn parameters(&mut self, step: usize) -> Result<()> {
        if self.board.is_none() || !cfg!(feature = "tensorboard") {
            return Ok(());
        }
        let strategy = globals::strategy()?;
        let (rates, values) = strategy.run_on_first(|_| {
            Ok((
                globals::learning_rates()?,
                globals::weights_and_gradients()?,
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

    /// Waits for the next batch with `next`, and counts the time.
    pub fn wait_for<T>(&mut self, next: impl FnOnce() -> T) -> T {
        let _data = profile::span(profile::Phase::Data);
        let started = Instant::now();
        let batch = next();
        if let Some(current) = &mut self.current {
            current.waited += started.elapsed();
        }
        batch
    }

    /// Begins a split of `steps` steps.
    pub fn begin(&mut self, split: Split, epoch: usize, steps: usize) {
        // Indicatif draws nothing where the output is not a terminal.
        let target = match self.speaks {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(Some(steps as u64), target);
        if let Ok(style) = ProgressStyle::with_template(BAR) {
            bar.set_style(style);
        }
        bar.set_prefix(format!("{} {}", split.name(), self.place(split, epoch)));
        if split == Split::Train {
            self.steps.begin_epoch(Instant::now());
        }
        self.current = Some(Current {
            split,
            epoch,
            started: Instant::now(),
            bar,
            waited: Duration::ZERO,
        });
    }

    /// Counts a step with its losses.
    pub fn step(&mut self, losses: &Losses) {
        if let Some(current) = &self.current {
            let losses = losses
                .iter()
                .map(|(name, loss)| format!("{name} {loss:.4}"));
            current
                .bar
                .set_message(losses.collect::<Vec<_>>().join("  "));
            current.bar.inc(1);
        }
    }

    /// Ends the split after `step` training steps in all, with its metrics over all replicas.
    ///
    /// # Errors
    /// The log cannot be written.
    pub fn end(&mut self, step: usize, metrics: &[MergedMetric]) -> Result<()> {
        let Some(mut current) = self.current.take() else {
            return Ok(());
        };
        current.bar.finish_and_clear();
        if current.split == Split::Train {
            self.steps.end_epoch(Instant::now());
        }
        current.waited += globals::strategy()?.replicas().take_reading_time();
        if !self.speaks {
            return Ok(());
        }
        let seconds = current.started.elapsed().as_secs_f64();
        let waited = current.waited.as_secs_f64();
        let line = log::Line {
            split: current.split,
            epoch: current.epoch,
            step,
            metrics,
            seconds,
            data_seconds: waited,
        };
        if self.lock.is_some() {
            log::append(&self.log, &line)?;
        }
        if let Some(board) = &mut self.board {
            board.metrics(current.split, step, metrics)?;
        }
        self.tell(&current, metrics, seconds);
        match current.split {
            Split::Test if self.lock.is_some() => self.draw_curves(),
            Split::Test => Ok(()),
            Split::Train | Split::Validation => Ok(()),
        }
    }

    /// Ends a split that was stopped; nothing is told of it.
    pub fn abandon(&mut self) {
        if let Some(current) = self.current.take() {
            current.bar.finish_and_clear();
        }
    }

    /// Says something in a line of its own.
    pub fn say(&self, text: &str) {
        match &self.current {
            _ if !self.speaks => {}
            // A line in the middle of a progress bar would leave half of it behind.
            Some(current) => current.bar.suspend(|| terminal::print(text)),
            None => terminal::print(text),
        }
    }

    /// Training and validation share a line an epoch.
    fn tell(&mut self, current: &Current, metrics: &[MergedMetric], seconds: f64) {
        let values = metrics
            .iter()
            .map(|metric| format!("{} {:.4}", metric.name, metric.value));
        let values = values.collect::<Vec<_>>().join("  ");
        let (split, epoch) = (current.split, current.epoch);
        match split {
            Split::Train => {
                let place = self.place(split, epoch);
                let waited = current.waited.as_secs_f64();
                let starving = match waited > STARVING * seconds {
                    true => format!(", {waited:.2} s of it waiting for data"),
                    false => String::new(),
                };
                self.line = format!("epoch {place}  train  {values}  {seconds:.2} s{starving}");
            }
            Split::Validation => {
                let line = std::mem::take(&mut self.line);
                terminal::print(format_args!("{line}  |  validation  {values}"));
            }
            Split::Test => {
                let examples = metrics.first().map_or(0, |metric| metric.examples);
                terminal::print(format_args!("test  {values}  ({examples} examples)"));
            }
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

/// Whether a folder takes no files from this user, or from anybody.
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
