//! Step 6, too: the loop over epochs, with callbacks, validation, checkpoints and signals.

use std::mem;

use anyhow::{Context, Result};
use indexmap::IndexMap;

use crate::{
    callbacks::create_callbacks,
    checkpoint::{
        Checkpoints, Progress,
        interrupt::{self, Stop},
    },
    cli::Args,
    data::Shard,
    dataset::{Datasets, Example},
    distribute::{CallbackContext, Callbacks, Losses, PerReplica, hash_parameters},
    globals::{self, Split},
    metric::{merged_metrics, reset_metrics},
    report::Report,
    run_record::RunRecord,
    train::{NON_FINITE, distributed_train_step},
    validation::validate,
};

/// Trains until `--epochs`, or until a callback ends it, with a checkpoint and a validation after each
/// epoch. `None` means that a signal stopped it before.
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
}

impl<'a> Training<'a> {
    /// Starts anew, or with `--resume` where the latest checkpoint stopped, if there is one.
    fn start(args: &'a Args, datasets: &'a Datasets, report: &'a mut Report) -> Result<Self> {
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
        let mut batches = data.epoch_from(epoch, drawn, examples);
        while let Some(inputs) = self.report.wait_for(|| batches.next()) {
            if !self.step(inputs)? {
                return Ok(false);
            }
        }
        self.end_epoch()
            .with_context(|| format!("training stopped at epoch {epoch}, after its last step"))
    }

    /// Saves, validates, and saves the results; false where training was stopped before its last epoch.
    fn end_epoch(&mut self) -> Result<bool> {
        let Progress { epoch, step, .. } = self.progress;
        // A validation that fails or is stopped costs no epoch: a resumed training begins with it.
        if self.saved != Some(step) {
            self.save(IndexMap::new())?;
        }
        let metrics = merged_metrics(Split::Train)?;
        self.report.end(step, &metrics)?;
        let Some(validation) = validate(epoch, step, &self.datasets.validation, self.report)?
        else {
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
        self.save(validation)?;
        // After the last epoch there is nothing to stop.
        if self.progress.epoch > self.args.epochs {
            return Ok(true);
        }
        let stop = self.stop_request()?;
        stop.map_or(Ok(true), |stop| self.stop(stop))
    }

    /// Trains on a batch; false where training stops after it.
    fn step(&mut self, inputs: PerReplica<Shard<Example>>) -> Result<bool> {
        let (epoch, step) = (self.progress.epoch, self.progress.step + 1);
        self.train_on(inputs, step)
            .with_context(|| format!("training stopped at epoch {epoch}, step {step}"))
    }

    fn train_on(&mut self, inputs: PerReplica<Shard<Example>>, step: usize) -> Result<bool> {
        let (batch, strategy) = (inputs.info(), globals::strategy()?);
        strategy.workers().note_step(step);
        let losses = distributed_train_step(inputs)?;
        self.report.step(&losses);
        self.losses.push(losses);
        self.progress.examples += batch.examples;
        if !batch.completes_update {
            return Ok(true);
        }
        self.progress.step = step;
        let losses = Losses::sum(mem::take(&mut self.losses));
        self.report
            .update(self.progress, batch.examples_in_update, &losses)?;
        let context = CallbackContext::after_step(self.progress, losses);
        self.callbacks.after_step(context, self.report)?;
        // Looked at once: a signal can come at any time, and must not stop what was not saved. It
        // may come to one worker only, and all stop after the same step.
        let stop = self.stop_request()?;
        if stop.is_some() || self.args.saves_after(step) {
            self.save(IndexMap::new())?;
        }
        stop.map_or(Ok(true), |stop| self.stop(stop))
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
