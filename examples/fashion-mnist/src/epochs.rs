//! Step 6, too: the loop over epochs, with callbacks, validation, checkpoints and signals.

use std::mem;

use anyhow::{Context, Result, ensure};
use indexmap::IndexMap;

use crate::{
    callbacks::create_callbacks,
    checkpoint::{
        Checkpoints, Progress,
        interrupt::{self, Stop},
    },
    cli::{Args, LoopStyle},
    data::{BatchInfo, Epoch, Shard},
    dataset::{Datasets, Example},
    distribute::{CallbackContext, Callbacks, Losses, PerReplica, hash_parameters},
    globals::{self, Split},
    metric::{merged_metrics, reset_metrics},
    report::Report,
    run_record::RunRecord,
    train::{NON_FINITE, distributed_train_step},
    validation::validate,
};

/// The loss that training minimises, penalty included, as a mean over examples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Objective {
    total: f64,
    examples: usize,
}

impl Objective {
    /// Counts a batch by its examples: a short last one weighs less than a full one.
    pub fn add(&mut self, batch: BatchInfo, losses: &Losses) {
        // With a parameter server none may be finished yet.
        if let Some(loss) = losses.get("loss") {
            // The losses of the batches of an update add up to the mean over that update.
            self.total += loss * batch.examples_in_update as f64;
            self.examples += batch.examples;
        }
    }

    /// The mean; 0 of no examples.
    pub fn mean(&self) -> f64 {
        self.total / self.examples.max(1) as f64
    }
}

/// Trains on a batch, and counts it in `progress` and `objective`.
fn train_on(
    inputs: PerReplica<Shard<Example>>,
    progress: &mut Progress,
    objective: &mut Objective,
) -> Result<Losses> {
    let (batch, epoch, step) = (inputs.info(), progress.epoch, progress.step + 1);
    globals::strategy()?.workers().note_step(step);
    let losses = distributed_train_step(inputs)
        .with_context(|| format!("training stopped at epoch {epoch}, step {step}"))?;
    objective.add(batch, &losses);
    progress.examples += batch.examples;
    progress.step += usize::from(batch.completes_update);
    Ok(losses)
}

/// Trains on all `batches` that are left of an epoch, and gives their objective.
///
/// Source: `distributed_train_epoch` of the tutorial, which iterates inside a `tf.function`.
///
/// # Errors
/// A replica failed.
pub fn distributed_train_epoch(
    batches: Epoch<Example>,
    progress: &mut Progress,
) -> Result<Objective> {
    let mut objective = Objective::default();
    for inputs in batches {
        train_on(inputs, progress, &mut objective)?;
    }
    Ok(objective)
}

/// Trains until `--epochs`, or until a callback ends it, with a validation after each epoch and
/// checkpoints. `None` means that a signal stopped it before.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn train(args: &Args, datasets: &Datasets, report: &mut Report) -> Result<Option<Progress>> {
    let mut training = Training::start(args, datasets, report)?;
    training.report.introduce(&datasets.train)?;
    let mut goes_on = true;
    while goes_on && training.progress.epoch <= args.epochs {
        goes_on = training.epoch()?;
    }
    training.report.conclude(training.progress)?;
    Ok((goes_on || training.ended).then_some(training.progress))
}

/// Makes sure that all replicas, those of other processes included, begin with the same parameters.
fn ensure_equal_parameters() -> Result<()> {
    let equal = globals::strategy()?.run_on_all(|replica| {
        let hash = globals::with_model(hash_parameters)?;
        replica.check_equal("the initial parameters", hash)
    });
    equal.map(drop)
}

/// A training on its way.
struct Training<'a> {
    args: &'a Args,
    datasets: &'a Datasets,
    report: &'a mut Report,
    checkpoints: Checkpoints,
    callbacks: Callbacks<Report>,
    /// Whether a callback has ended training.
    ended: bool,
    /// Of the batches of the current update.
    losses: Vec<Losses>,
    progress: Progress,
    /// The step of the last checkpoint.
    saved: Option<usize>,
    /// Of the epoch that is running, since its start or a resume.
    objective: Objective,
}

impl<'a> Training<'a> {
    /// Starts anew, or with `--resume` where the latest checkpoint stopped, if there is one.
    fn start(args: &'a Args, datasets: &'a Datasets, report: &'a mut Report) -> Result<Self> {
        ensure!(
            args.loop_style != LoopStyle::Function || args.checkpoint_steps.is_none(),
            "--loop-style function stops nowhere in an epoch, so it saves no checkpoint there: \
             leave out --checkpoint-steps or use another --loop-style"
        );
        let mut checkpoints = Checkpoints::new(args);
        let latest = match args.resume {
            true => checkpoints.latest_for_all()?,
            false => None,
        };
        reset_metrics(Split::Train)?;
        let mut run = RunRecord::of_this_run(args, datasets)?;
        let progress = match latest {
            None => {
                if args.resume {
                    let folder = args.output_dir.display();
                    report.say(&format!(
                        "nothing to resume in {folder}: training starts anew"
                    ));
                }
                report.start_training(&checkpoints)?;
                Progress::START
            }
            Some(checkpoint) => {
                let differences = run.resume(&checkpoint)?;
                let progress = checkpoint.restore(args, datasets.train.dataset().len())?;
                let repeats_end = datasets.train.batches_after(progress.examples) == 0;
                report.resume_training(progress, repeats_end)?;
                report.say(&format!("resumed from {}", checkpoint.path.display()));
                differences.iter().for_each(|line| report.say(line));
                progress
            }
        };
        report.record(progress.step, &run)?;
        checkpoints.record(run);
        checkpoints.prepare(report.is_alone())?;
        ensure_equal_parameters()?;
        Ok(Training {
            args,
            datasets,
            report,
            checkpoints,
            callbacks: create_callbacks(args),
            ended: false,
            losses: Vec::new(),
            progress,
            // A resumed training has what it starts from.
            saved: (progress.step > 0).then_some(progress.step),
            objective: Objective::default(),
        })
    }

    /// Trains and validates an epoch, or what is left of it; false where it was stopped.
    fn epoch(&mut self) -> Result<bool> {
        let Progress {
            epoch,
            examples,
            drawn,
            ..
        } = self.progress;
        let data = &self.datasets.train;
        let left = data.batches_after(examples);
        self.report.begin(Split::Train, epoch, left);
        self.objective = Objective::default();
        if !self.train_on_all(data.epoch_from(epoch, drawn, examples), left)? {
            return Ok(false);
        }
        let step = self.progress.step;
        self.report
            .scalar(step, "train/objective", self.objective.mean())?;
        // A validation that fails costs no epoch that is to be saved: a resumed training begins with it.
        let is_due = self.args.saves_after_epoch(epoch);
        if is_due {
            self.save_unless_saved()?;
        }
        let metrics = merged_metrics(Split::Train)?;
        self.report.end(step, &metrics)?;
        let Some(validation) = validate(epoch, step, &self.datasets.validation, self.report)?
        else {
            self.save_unless_saved()?;
            self.tell_how_to_go_on(&format!("in the validation after step {step}"));
            return Ok(false);
        };
        if let Err(error) = NON_FINITE.handle_validation(&validation) {
            self.checkpoints.set_diverged_apart(step)?;
            return Err(error);
        }
        self.report.parameters(step)?;
        let context = CallbackContext::after_epoch(self.progress, metrics, validation.clone());
        self.callbacks.after_epoch(context, self.report)?;
        reset_metrics(Split::Train)?;
        self.progress.end_epoch();
        // After the last epoch there is nothing to stop.
        let stop = match self.progress.epoch > self.args.epochs {
            true => None,
            false => self.stop_request()?,
        };
        if stop.is_some() || is_due {
            self.save(validation)?;
        }
        stop.map_or(Ok(true), |stop| self.stop(stop))
    }

    /// Trains on the `left` batches of an epoch as `--loop-style` says; false where it was
    /// stopped.
    fn train_on_all(&mut self, mut batches: Epoch<Example>, left: usize) -> Result<bool> {
        match self.args.loop_style {
            LoopStyle::Elements => {
                while let Some(inputs) = self.report.wait_for(|| batches.next()) {
                    if !self.step(inputs)? {
                        return Ok(false);
                    }
                }
            }
            LoopStyle::Iterator => {
                for _ in 0..left {
                    let inputs = self.report.wait_for(|| batches.next());
                    if !self.step(inputs.context("the epoch has too few batches")?)? {
                        return Ok(false);
                    }
                }
            }
            LoopStyle::Function => {
                self.objective = distributed_train_epoch(batches, &mut self.progress)?;
            }
        }
        Ok(true)
    }

    /// Trains on a batch; false where training stops after it.
    fn step(&mut self, inputs: PerReplica<Shard<Example>>) -> Result<bool> {
        let batch = inputs.info();
        let losses = train_on(inputs, &mut self.progress, &mut self.objective)?;
        self.report.step(&losses);
        self.losses.push(losses);
        if !batch.completes_update {
            return Ok(true);
        }
        let losses = Losses::sum(mem::take(&mut self.losses));
        self.report
            .update(self.progress, batch.examples_in_update, &losses)?;
        let context = CallbackContext::after_step(self.progress, losses);
        self.callbacks.after_step(context, self.report)?;
        // Looked at once: a signal can come at any time, and must not stop what was not saved. It
        // may come to one worker only, and all stop after the same step.
        let step = self.progress.step;
        let stop = self.stop_request()?;
        if stop.is_some() || self.args.saves_after(step) {
            self.save(IndexMap::new())?;
        }
        stop.map_or(Ok(true), |stop| self.stop(stop))
    }

    /// Saves what is trained of an epoch whose validation has not ended.
    fn save_unless_saved(&mut self) -> Result<()> {
        match self.saved == Some(self.progress.step) {
            true => Ok(()),
            false => self.save(IndexMap::new()),
        }
    }

    fn save(&mut self, validation: IndexMap<String, f64>) -> Result<()> {
        let examples = self.datasets.train.dataset().len();
        self.checkpoints
            .save(self.args, self.progress, examples, validation)?;
        self.saved = Some(self.progress.step);
        Ok(())
    }

    /// The request of any process to stop, if there is one.
    fn stop_request(&self) -> Result<Option<Stop>> {
        let by_callback = self.callbacks.stop_reason().map(|_| Stop::Callback);
        interrupt::agreed(by_callback)
    }

    /// Tells why training stops; false, as it does not go on.
    fn stop(&mut self, stop: Stop) -> Result<bool> {
        let place = format!("after step {}", self.progress.step);
        match stop {
            Stop::Signal(_) => self.tell_how_to_go_on(&place),
            Stop::Callback => {
                let reason = self.callbacks.agreed_stop_reason()?;
                self.ended = true;
                self.report.say(&format!("training ends {place}: {reason}"));
            }
        }
        Ok(false)
    }

    fn tell_how_to_go_on(&self, place: &str) {
        self.report.say(&format!(
            "stopped {place}; go on with the same options and --resume (the checkpoints are in {})",
            self.args.output_dir.display()
        ));
    }
}
