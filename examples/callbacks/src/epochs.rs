//! Step 6, too: the loop over epochs, with callbacks, validation, checkpoints and signals.

use std::mem;

use anyhow::{Context, Result};
use indexmap::IndexMap;

use crate::{
    callbacks::{create_callbacks, remember_losses},
    checkpoint::{Checkpoints, Progress, interrupt},
    cli::Args,
    data::Shard,
    dataset::{Datasets, Example},
    digits::CALLBACKS,
    distribute::{Callbacks, Losses, PerReplica, hash_parameters},
    globals::{self, Split},
    metric::{merged_metrics, reset_metrics},
    report::Report,
    train::distributed_train_step,
    train_callbacks::TrainCallbacks,
    validation::validate,
};

/// Trains until `--epochs`, with a validation and a checkpoint after each. `None` means that a
/// signal stopped it before.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn train(args: &Args, datasets: &Datasets, report: &mut Report) -> Result<Option<Progress>> {
    let mut training = Training::start(args, datasets, report)?;
    interrupt::listen();
    training.report.introduce(datasets.train.dataset())?;
    let mut goes_on = true;
    while goes_on && training.progress.epoch <= args.epochs {
        goes_on = training.epoch()?;
    }
    training.report.conclude(training.progress)?;
    Ok(goes_on.then_some(training.progress))
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
    /// Of the batches of the current update.
    losses: Vec<Losses>,
    progress: Progress,
}

impl<'a> Training<'a> {
    /// Starts anew, or with `--resume` where the latest checkpoint stopped, if there is one.
    fn start(args: &'a Args, datasets: &'a Datasets, report: &'a mut Report) -> Result<Self> {
        let checkpoints = CALLBACKS.create_ckpt(args);
        let latest = match args.resume {
            true => checkpoints.latest_for_all()?,
            false => None,
        };
        reset_metrics(Split::Train)?;
        let progress = match latest {
            None => {
                report.start_training()?;
                checkpoints.start()?;
                Progress::START
            }
            Some(checkpoint) => {
                checkpoints.prepare()?;
                let progress = checkpoint.restore(args, datasets.train.dataset().len())?;
                report.resume_training(progress)?;
                report.say(&format!("resumed from {}", checkpoint.path.display()));
                progress
            }
        };
        ensure_equal_parameters()?;
        Ok(Training {
            args,
            datasets,
            report,
            checkpoints,
            callbacks: create_callbacks(args),
            losses: Vec::new(),
            progress,
        })
    }

    /// Trains and validates an epoch, or what is left of it; false where a signal stopped it.
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

    /// Validates and saves; false where training is over, or a signal stopped it.
    fn end_epoch(&mut self) -> Result<bool> {
        let Progress { epoch, step, .. } = self.progress;
        self.report.end(step, &merged_metrics(Split::Train)?)?;
        let validation = validate(epoch, step, &self.datasets.validation, self.report)?;
        self.report.parameters(step)?;
        self.callbacks.after_epoch(self.progress, self.report)?;
        reset_metrics(Split::Train)?;
        self.progress.end_epoch();
        self.save(validation)?;
        let stop = globals::strategy()?.any_stops(interrupt::requested())?;
        Ok(self.progress.epoch > self.args.epochs || !self.stops(stop))
    }

    /// Trains on a batch; false where a signal asked to stop after it.
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
        remember_losses(Losses::sum(mem::take(&mut self.losses)));
        self.callbacks.after_step(self.progress, self.report)?;
        // Looked at once: a signal can come at any time, and must not stop what was not saved. It
        // may come to one worker only, and all stop after the same step.
        let stop = strategy.any_stops(interrupt::requested())?;
        if stop || self.args.saves_after(step) {
            self.save(IndexMap::new())?;
        }
        Ok(!self.stops(stop))
    }

    fn save(&self, validation: IndexMap<String, f64>) -> Result<()> {
        let examples = self.datasets.train.dataset().len();
        self.checkpoints
            .save(self.args, self.progress, examples, validation)?;
        Ok(())
    }

    /// Tells how to go on after a stop.
    fn stops(&self, stop: bool) -> bool {
        if stop {
            self.report.say(&format!(
                "stopped after step {}; go on with the same options and --resume (the checkpoints \
                 are in {})",
                self.progress.step,
                self.args.output_dir.display()
            ));
        }
        stop
    }
}
