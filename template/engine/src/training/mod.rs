//! The training loop: epochs, updates, callbacks, validation, checkpoints and stop requests.

mod anomalies;
mod callbacks;
mod evaluation;
mod first_step;
mod freeze;
mod observation;
mod stopping;
pub(crate) mod update;

use std::{mem, time::Instant};

use anyhow::{Context, Result};
use indexmap::IndexMap;

use crate::{
    checkpoint::{
        Checkpoint, Checkpoints, Progress, Writer,
        interrupt::{self, Stop},
    },
    data::{BatchInfo, Datasets, DistributedDataset, Epoch, Shard},
    device::updates_between_reads,
    ema::{self, EmaConfig},
    globals::{self, Split, erased},
    loss::Losses,
    options::Options,
    precision::{self, LossScale},
    replica::PerReplica,
    report::Report,
    run_record::RunRecord,
    task::Task,
    tracking::Outcome,
    weights::initialise,
};

pub use callbacks::{CallbackContext, Callbacks};
pub use evaluation::Evaluation;
pub(crate) use first_step::end_first_step;
pub(crate) use freeze::freeze_named;
use stopping::Stopping;
pub use update::{apply_gradients, train_shard, update_parameters};

pub use crate::checkpoint::StoppingState;

/// A global batch, sharded over the replicas of this process.
pub type Inputs<E> = PerReplica<Shard<E>>;

/// A training in progress. The caller writes the loop over epochs and batches:
///
/// ```text
/// while training.has_epochs_left() {
///     let mut batches = training.begin_epoch();
///     while let Some(inputs) = training.next_batch(&mut batches) {
///         if !training.step(inputs, distributed_train_step)? {
///             return training.end();
///         }
///     }
///     if !training.end_epoch(validate)? {
///         break;
///     }
/// }
/// training.end()
/// ```
pub struct Training<'a, T: Task> {
    options: &'a Options,
    datasets: &'a Datasets<T::Example>,
    report: &'a mut Report,
    checkpoints: Checkpoints,
    writer: Writer,
    callbacks: Callbacks<Report>,
    stopping: Stopping,
    state: State,
    /// Why training ended before its last epoch.
    ended_early: Option<String>,
    /// Losses of the batches of the current update.
    losses: Vec<Losses>,
    /// Updates since losses were last read from a GPU.
    unread: usize,
    progress: Progress,
    /// Step of the last checkpoint.
    saved: Option<usize>,
}

/// The state of a training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    /// Ended by a callback, or after the last epoch.
    Ended,
    /// Stopped by a signal.
    Stopped,
}

impl<'a, T: Task> Training<'a, T> {
    /// Starts a training, or with `--resume` continues from the latest checkpoint, if there is one.
    ///
    /// # Errors
    /// The checkpoint or an option, such as `--freeze`, does not match the model, a file cannot be written, or
    /// the parameters of replicas differ.
    pub fn start(
        options: &'a Options,
        datasets: &'a Datasets<T::Example>,
        report: &'a mut Report,
        mut callbacks: Callbacks<Report>,
    ) -> Result<Self> {
        let ema = EmaConfig::of(options)?;
        freeze_named::<T>(&options.freeze)?;
        let mut checkpoints = Checkpoints::new::<T>(options);
        let latest = match options.resume {
            true => checkpoints.latest_for_all()?,
            false => None,
        };
        // Before the files of an earlier run are set aside.
        report.connect_trackers(options, callbacks.take_trackers(), latest.is_some())?;
        globals::reset_metrics::<T>(Split::Train)?;
        let mut run = RunRecord::of_this_run(options, datasets)?;
        let stopping = latest.as_ref().and_then(|latest| latest.manifest.stopping);
        let stopping = Stopping::new(options, T::BEST, stopping);
        let progress = match &latest {
            None => {
                if options.resume {
                    let folder = options.output_dir.display();
                    report.say(&format!(
                        "nothing to resume in {folder}: training starts anew"
                    ));
                }
                // Before the files of an earlier run are set aside, of which this may be one.
                let initial = initialise::<T>(options)?;
                report.start_training(&checkpoints)?;
                if let Some((file, lines)) = initial {
                    run.initial_weights = Some(file);
                    lines.iter().for_each(|line| report.say(line));
                }
                Progress::START
            }
            Some(checkpoint) => {
                let differences = run.resume(checkpoint)?;
                let examples = datasets.train.dataset().len();
                let progress = checkpoint.restore::<T>(options, examples)?;
                let repeats_end = datasets.train.batches_after(progress.examples) == 0;
                report.resume_training(progress, repeats_end)?;
                report.say(&format!("resumed from {}", checkpoint.path.display()));
                if options.init_from.is_some() {
                    report.say("--init-from is not read: the checkpoint has the weights");
                }
                differences.iter().for_each(|line| report.say(line));
                progress
            }
        };
        start_average::<T>(ema, latest.as_ref(), report)?;
        report.record(progress.step, &run)?;
        checkpoints.record(run);
        checkpoints.prepare(report.is_alone())?;
        ensure_equal_parameters()?;
        report.introduce::<T>(&datasets.train)?;
        datasets.limits.iter().for_each(|line| report.say(line));
        let ended = stopping.ended_before();
        if let Some(reason) = &ended {
            report.say(&format!(
                "training ended after step {}: {reason}",
                progress.step
            ));
            if stopping.out_of_patience().is_some() {
                tell_the_best::<T>(&checkpoints, report)?;
            }
        }
        Ok(Training {
            options,
            datasets,
            report,
            checkpoints,
            writer: Writer::default(),
            callbacks,
            stopping,
            state: match &ended {
                Some(_) => State::Ended,
                None => State::Running,
            },
            ended_early: ended,
            losses: Vec::new(),
            unread: 0,
            progress,
            // A resumed training starts from a checkpoint.
            saved: (progress.step > 0).then_some(progress.step),
        })
    }

    /// Whether the training continues and has another of `--epochs` epochs.
    pub fn has_epochs_left(&self) -> bool {
        self.state == State::Running && self.progress.epoch <= self.options.epochs
    }

    /// The training progress.
    pub fn progress(&self) -> Progress {
        self.progress
    }

    /// The report of this training.
    pub fn report(&mut self) -> &mut Report {
        self.report
    }

    /// The batches of the current epoch; after a resume, the remaining ones.
    pub fn begin_epoch(&mut self) -> Epoch<T::Example> {
        let Progress {
            epoch,
            examples,
            drawn,
            ..
        } = self.progress;
        self.report.begin(Split::Train, epoch, self.batches_left());
        self.datasets.train.epoch_from(epoch, drawn, examples)
    }

    /// The number of batches left in the epoch.
    pub fn batches_left(&self) -> usize {
        self.datasets.train.batches_after(self.progress.examples)
    }

    /// Waits for the next batch; `None` at the end of the epoch.
    pub fn next_batch(&mut self, batches: &mut Epoch<T::Example>) -> Option<Inputs<T::Example>> {
        self.report.wait_for(|| batches.next())
    }

    /// Trains on a batch with `step`. After the last batch of an update, reports it, runs callbacks and
    /// saves a checkpoint if due. Returns false if training stops.
    ///
    /// # Errors
    /// The error of `step` or of a callback, or a file cannot be written.
    pub fn step(
        &mut self,
        inputs: Inputs<T::Example>,
        step: impl FnOnce(Inputs<T::Example>) -> Result<Losses>,
    ) -> Result<bool> {
        let place = self.place();
        let batch = inputs.info();
        let trained = self.train_on(inputs, step);
        let goes_on = trained.and_then(|losses| self.after_batch(batch, losses));
        goes_on.with_context(|| place)
    }

    /// As [`step`](Self::step), without reports, callbacks, checkpoints and stop requests.
    ///
    /// # Errors
    /// The error of `step`.
    pub fn quiet_step(
        &mut self,
        inputs: Inputs<T::Example>,
        step: impl FnOnce(Inputs<T::Example>) -> Result<Losses>,
    ) -> Result<()> {
        let place = self.place();
        let batch = inputs.info();
        self.train_on(inputs, step).with_context(|| place)?;
        self.progress.step += usize::from(batch.completes_update);
        Ok(())
    }

    fn place(&self) -> String {
        let (epoch, step) = (self.progress.epoch, self.progress.step + 1);
        format!("training stopped at epoch {epoch}, step {step}")
    }

    fn train_on(
        &mut self,
        inputs: Inputs<T::Example>,
        step: impl FnOnce(Inputs<T::Example>) -> Result<Losses>,
    ) -> Result<Losses> {
        let examples = inputs.info().examples;
        globals::strategy()?
            .workers()
            .note_step(self.progress.step + 1);
        let losses = step(inputs)?;
        self.progress.examples += examples;
        Ok(losses)
    }

    fn after_batch(&mut self, batch: BatchInfo, losses: Losses) -> Result<bool> {
        end_first_step(&losses)?;
        self.report.step(&losses);
        self.losses.push(losses);
        if !batch.completes_update {
            return Ok(true);
        }
        self.progress.step += 1;
        self.writer.check()?;
        let losses = Losses::sum(mem::take(&mut self.losses));
        self.report_update(batch.examples_in_update, &losses)?;
        let context = CallbackContext::after_step(self.progress, losses);
        self.callbacks.after_step(context, self.report)?;
        self.stop_if_out_of_time()?;
        // Check once: a signal between two checks would stop training without a checkpoint. All workers
        // agree, since a signal may reach only one.
        let stop = self.stop_request()?;
        if stop.is_some() || self.options.saves_after(self.progress.step) {
            self.save(IndexMap::new())?;
        }
        stop.map_or(Ok(true), |stop| self.stop(stop))
    }

    /// Reports an update. Updates without a report are read now and then, so that losses and norms are
    /// checked and the queue of a GPU stays short.
    fn report_update(&mut self, examples: usize, losses: &Losses) -> Result<()> {
        self.unread += 1;
        if self.report.update(self.progress, examples, losses)? {
            self.unread = 0;
        } else if self.unread > updates_between_reads() && losses.is_unread() {
            globals::strategy()?.last_update(losses)?;
            self.unread = 0;
        }
        Ok(())
    }

    /// Saves a checkpoint if due, runs `validate` if due, and saves the results. `validate` returns the metrics
    /// by name, or `None` if a signal stopped it. Returns false if training stops before its last epoch.
    ///
    /// # Errors
    /// The error of `validate` or of a callback, a non-finite validation loss, or a file cannot be written.
    pub fn end_epoch(
        &mut self,
        validate: impl FnOnce(
            Progress,
            &DistributedDataset<T::Example>,
            &mut Report,
        ) -> Result<Option<IndexMap<String, f64>>>,
    ) -> Result<bool> {
        let epoch = self.progress.epoch;
        let goes_on = self.validate_and_save(validate);
        goes_on.with_context(|| format!("training stopped at epoch {epoch}, after its last step"))
    }

    fn validate_and_save(
        &mut self,
        validate: impl FnOnce(
            Progress,
            &DistributedDataset<T::Example>,
            &mut Report,
        ) -> Result<Option<IndexMap<String, f64>>>,
    ) -> Result<bool> {
        let Progress { epoch, step, .. } = self.progress;
        // Its error names the update; a validation only shows that parameters are not finite.
        globals::strategy()?.run_on_all(|_| globals::read_gradient_norms())?;
        let is_validated = self.options.validates_after_epoch(epoch);
        let is_due = self.options.saves_after_epoch(epoch);
        // A validation that fails or is stopped costs no epoch: a resumed training begins with it.
        if is_due && is_validated {
            self.save_unless_saved()?;
        }
        let metrics = globals::merged_metrics::<T>(Split::Train)?;
        self.report.end(step, &metrics)?;
        let validation = match is_validated {
            true => validate(self.progress, &self.datasets.validation, self.report)?,
            false => {
                self.report.end_without_validation(epoch);
                Some(IndexMap::new())
            }
        };
        let Some(validation) = validation else {
            self.save_unless_saved()?;
            Checkpoints::finish(&mut self.writer)?;
            self.state = State::Stopped;
            self.tell_how_to_go_on(&format!("in the validation after step {step}"));
            return Ok(false);
        };
        if let Err(error) = T::NON_FINITE.handle_validation(&validation) {
            Checkpoints::finish(&mut self.writer)?;
            self.checkpoints.set_diverged_apart(step)?;
            return Err(error);
        }
        self.report.parameters::<T>(step)?;
        let context = CallbackContext::after_epoch(self.progress, metrics, validation.clone());
        self.callbacks.after_epoch(context, self.report)?;
        if is_validated {
            self.stopping.note_validation(&validation)?;
        }
        if let Some(reason) = self.stopping.out_of_patience() {
            self.callbacks.stop(reason);
        }
        self.stop_if_out_of_time()?;
        globals::reset_metrics::<T>(Split::Train)?;
        self.progress.end_epoch();
        // Ignore stop requests after the last epoch.
        let stop = match self.progress.epoch > self.options.epochs {
            true => None,
            false => self.stop_request()?,
        };
        if stop.is_some() || is_due {
            self.save(validation)?;
        }
        stop.map_or(Ok(true), |stop| self.stop(stop))
    }

    /// Requests a stop of all processes if the time of `--max-time` is over.
    fn stop_if_out_of_time(&mut self) -> Result<()> {
        if let Some(reason) = self.stopping.out_of_time()
            && globals::strategy()?.is_chief()
        {
            self.callbacks.stop(reason);
        }
        Ok(())
    }

    fn save_unless_saved(&mut self) -> Result<()> {
        match self.saved == Some(self.progress.step) {
            true => Ok(()),
            false => self.save(IndexMap::new()),
        }
    }

    fn save(&mut self, validation: IndexMap<String, f64>) -> Result<()> {
        let examples = self.datasets.train.dataset().len();
        let began = Instant::now();
        self.checkpoints.begin_save::<T>(
            &mut self.writer,
            self.options,
            self.progress,
            examples,
            validation,
            self.stopping.state(),
        )?;
        self.report.add_checkpoint_wait(began.elapsed());
        self.saved = Some(self.progress.step);
        Ok(())
    }

    /// The stop request of any process, if there is one.
    fn stop_request(&self) -> Result<Option<Stop>> {
        let by_callback = self.callbacks.stop_reason().map(|_| Stop::Callback);
        interrupt::agreed(by_callback)
    }

    /// Reports why training stops; returns false for the caller.
    fn stop(&mut self, stop: Stop) -> Result<bool> {
        Checkpoints::finish(&mut self.writer)?;
        let place = format!("after step {}", self.progress.step);
        match stop {
            Stop::Signal(_) => {
                self.state = State::Stopped;
                self.tell_how_to_go_on(&place);
            }
            Stop::Callback => {
                let reason = self.callbacks.agreed_stop_reason()?;
                self.state = State::Ended;
                self.report.say(&format!("training ends {place}: {reason}"));
                self.ended_early = Some(reason);
                if self.stopping.out_of_patience().is_some() {
                    tell_the_best::<T>(&self.checkpoints, self.report)?;
                }
            }
        }
        Ok(false)
    }

    fn tell_how_to_go_on(&self, place: &str) {
        self.report.say(&format!(
            "stopped {place}; go on with the same options and --resume (the checkpoints are in {})",
            self.options.output_dir.display()
        ));
    }

    /// Reports the end of training and returns its progress; `None` if a signal stopped it.
    ///
    /// # Errors
    /// A file cannot be written.
    pub fn end(mut self) -> Result<Option<Progress>> {
        Checkpoints::finish(&mut self.writer)?;
        self.tell_skipped_updates()?;
        self.report.conclude(self.progress)?;
        if let (Some(reason), Some(run)) = (self.ended_early, self.checkpoints.run()) {
            let run = RunRecord {
                ended_early: Some(reason),
                ..run.clone()
            };
            self.report.record_end(&run)?;
        }
        self.report.end_run(match self.state {
            State::Stopped => Outcome::Killed,
            State::Running | State::Ended => Outcome::Finished,
        });
        Ok((self.state != State::Stopped).then_some(self.progress))
    }

    /// Reports the updates that the loss scale of float16 skipped.
    fn tell_skipped_updates(&self) -> Result<()> {
        let loss_scale = globals::strategy()?.run_on_first(|_| Ok(precision::loss_scale()))?;
        if let Some(LossScale { scale, skipped, .. }) = loss_scale {
            let updates = self.progress.step;
            self.report.say(&format!(
                "float16: {skipped} of {updates} updates skipped; the loss scale is {scale}"
            ));
        }
        Ok(())
    }
}

/// With `--ema`, starts the average of the weights, or continues that of a checkpoint.
fn start_average<T: Task>(
    config: Option<EmaConfig>,
    latest: Option<&Checkpoint>,
    report: &Report,
) -> Result<()> {
    match (config, latest) {
        (None, _) => {}
        (Some(config), None) => ema::start::<T>(config)?,
        (Some(config), Some(checkpoint)) => {
            if !checkpoint.restore_ema::<T>(config)? {
                report.say(
                    "the checkpoint has no averaged weights: the average of --ema starts with the \
                     weights of the model",
                );
            }
        }
    }
    Ok(())
}

/// Names the best checkpoint at the end of early stopping.
fn tell_the_best<T: Task>(checkpoints: &Checkpoints, report: &Report) -> Result<()> {
    if !globals::strategy()?.is_chief() {
        return Ok(());
    }
    let Some((path, value)) = checkpoints.best_place()? else {
        return Ok(());
    };
    report.say(&format!(
        "the best checkpoint is {}, with {} {value:.4}: `test --checkpoint best` tests it; --resume with a \
         larger --patience goes on",
        path.display(),
        T::BEST.metric
    ));
    Ok(())
}

/// Checks that the replicas of all processes begin with the same parameters.
fn ensure_equal_parameters() -> Result<()> {
    let equal = globals::strategy()?
        .run_on_all(|replica| replica.check_equal("the initial parameters", erased::hash()?));
    equal.map(drop)
}

#[cfg(test)]
mod tests {
    use burn::{module::Module, optim::GradientsParams, tensor::Tensor};

    use super::*;
    use crate::{
        optim::{FlatGradients, Gradients},
        test_task::{self, Line, set_up, train_step},
    };

    /// Gradients that are not finite, whose norm is read late, as on a GPU.
    fn diverging_step(shard: Shard<f32>) -> Result<Losses> {
        let batch = shard.load()?.context("a batch")?;
        let (losses, _) = train_step(batch)?;
        let model = globals::model::<Line>()?;
        let loss = model.forward(Tensor::ones([1, 2], &model.devices()[0]));
        let gradients = (loss.sum() * f32::INFINITY).backward();
        let gradients = GradientsParams::from_grads(gradients, &model);
        let gradients = Gradients::new().with(gradients);
        update_parameters::<Line>(FlatGradients::on_devices(&model, gradients)?)?;
        Ok(losses)
    }

    #[test]
    fn a_late_norm_that_is_not_finite_is_an_error_before_the_validation_also_without_a_checkpoint()
    {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().to_str().unwrap();
        let options = ["--output-dir", output, "--checkpoint-epochs", "5"];
        let options = test_task::options(&[&options[..], &["--batch-size", "8"]].concat());
        set_up(&options).unwrap();
        let datasets = test_task::datasets(&options, 8).unwrap();
        let mut report = Report::new(&options).unwrap();
        let mut training =
            Training::<Line>::start(&options, &datasets, &mut report, Callbacks::new()).unwrap();
        let inputs = training.begin_epoch().next().unwrap();
        let step = |inputs| globals::strategy()?.train(inputs, diverging_step);
        assert!(training.step(inputs, step).unwrap());
        let error = training
            .end_epoch(|_, _, _| panic!("it is validated"))
            .unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("the gradients of step 1 are not finite"),
            "{error}"
        );
    }
}
