//! Step 6, too: the loop over epochs, with callbacks, validation, checkpoints and signals.

use anyhow::{Context, Result, ensure};
use indexmap::IndexMap;

use crate::{
    callbacks::create_callbacks,
    checkpoint::{Checkpoints, Progress, interrupt},
    cli::{Args, LoopStyle},
    data::{BatchInfo, Epoch, Shard},
    dataset::{Datasets, Example},
    distribute::{Callbacks, Losses, PerReplica, hash_parameters},
    globals::{self, Split},
    metric::{merged_metrics, reset_metrics},
    report::Report,
    train::distributed_train_step,
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

/// Trains until `--epochs`, with a validation after each and checkpoints. `None` means that a
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
    progress: Progress,
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
        let checkpoints = Checkpoints::new(args);
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
            progress,
            objective: Objective::default(),
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
        self.objective = Objective::default();
        if !self.train_on_all(data.epoch_from(epoch, drawn, examples), left)? {
            return Ok(false);
        }
        let step = self.progress.step;
        self.report
            .scalar(step, "train/objective", self.objective.mean())?;
        self.report.end(step, &merged_metrics(Split::Train)?)?;
        let validation = validate(epoch, step, &self.datasets.validation, self.report)?;
        self.report.parameters(step)?;
        self.callbacks.after_epoch(self.progress, self.report)?;
        reset_metrics(Split::Train)?;
        self.progress.end_epoch();
        let stop = globals::strategy()?.any_stops(interrupt::requested())?;
        if stop || self.args.saves_after_epoch(epoch) {
            self.save(validation)?;
        }
        Ok(self.progress.epoch > self.args.epochs || !self.stops(stop))
    }

    /// Trains on the `left` batches of an epoch as `--loop-style` says; false where a signal stopped
    /// it.
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

    /// Trains on a batch; false where a signal asked to stop after it.
    fn step(&mut self, inputs: PerReplica<Shard<Example>>) -> Result<bool> {
        let completes_update = inputs.info().completes_update;
        let losses = train_on(inputs, &mut self.progress, &mut self.objective)?;
        self.report.step(&losses);
        if !completes_update {
            return Ok(true);
        }
        self.callbacks.after_step(self.progress, self.report)?;
        // Looked at once: a signal can come at any time, and must not stop what was not saved. It
        // may come to one worker only, and all stop after the same step.
        let stop = globals::strategy()?.any_stops(interrupt::requested())?;
        if stop || self.args.saves_after(self.progress.step) {
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
