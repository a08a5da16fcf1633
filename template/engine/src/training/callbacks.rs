//! Callbacks of training and their schedules.

use std::{cell::OnceCell, mem};

use anyhow::Result;
use indexmap::IndexMap;

use crate::{
    checkpoint::Progress,
    globals,
    loss::Losses,
    metric::MergedMetric,
    replica::{PerReplica, without_panic},
    tracking::Tracker,
};

/// Callbacks of training and their schedules. They run in the order in which they were added, on the main
/// thread of every process, with the training state and `T`, such as the report.
pub struct Callbacks<T> {
    scheduled: Vec<(When, Callback<T>)>,
    trackers: Vec<Box<dyn Tracker>>,
    stop_reason: Option<String>,
}

type Callback<T> = Box<dyn FnMut(&CallbackContext, &mut T) -> Result<()>>;

#[derive(Clone, Copy, Debug)]
enum When {
    EverySteps(usize),
    AtStep(usize),
    EveryEpochs(usize),
    AtEpoch(usize),
}

/// The training state for a callback, which can also stop training.
#[derive(Clone, Debug)]
pub struct CallbackContext {
    /// Training progress; `epoch` is the current one, or the one that has just ended.
    pub progress: Progress,
    /// The losses of the update, over all replicas; empty after an epoch. With a parameter server, the losses
    /// of an earlier batch, or empty.
    pub losses: Losses,
    /// The training metrics of the finished epoch, over all replicas; empty after a step.
    pub metrics: Vec<MergedMetric>,
    /// The validation metrics after the epoch, by name; empty after a step and after an epoch without a
    /// validation.
    pub validation: IndexMap<String, f64>,
    stop_reason: OnceCell<String>,
}

impl CallbackContext {
    /// The context after update number `progress.step`.
    pub fn after_step(progress: Progress, losses: Losses) -> Self {
        CallbackContext {
            progress,
            losses,
            metrics: Vec::new(),
            validation: IndexMap::new(),
            stop_reason: OnceCell::new(),
        }
    }

    /// The context after the epoch of `progress` and its validation, if it has one.
    pub fn after_epoch(
        progress: Progress,
        metrics: Vec<MergedMetric>,
        validation: IndexMap<String, f64>,
    ) -> Self {
        CallbackContext {
            metrics,
            validation,
            ..Self::after_step(progress, Losses::new())
        }
    }

    /// Stops training after this step or epoch on all processes, even if called on one only: a checkpoint
    /// is saved, and the test follows as after `--epochs`. With a parameter server, started steps are
    /// finished first. The first reason is reported. Resuming continues training.
    pub fn stop(&self, reason: &str) {
        self.stop_reason.get_or_init(|| reason.to_owned());
    }
}

impl<T> Default for Callbacks<T> {
    fn default() -> Self {
        Callbacks {
            scheduled: Vec::new(),
            trackers: Vec::new(),
            stop_reason: None,
        }
    }
}

impl<T> Callbacks<T> {
    /// Creates an empty list, to which [`every_steps`](Self::every_steps) and others add callbacks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `callback` after every `steps` updates; never for 0.
    #[must_use]
    pub fn every_steps(
        self,
        steps: usize,
        callback: impl FnMut(&CallbackContext, &mut T) -> Result<()> + 'static,
    ) -> Self {
        self.with(When::EverySteps(steps), callback)
    }

    /// Calls `callback` once, after update number `step`, from 1.
    #[must_use]
    pub fn at_step(
        self,
        step: usize,
        callback: impl FnMut(&CallbackContext, &mut T) -> Result<()> + 'static,
    ) -> Self {
        self.with(When::AtStep(step), callback)
    }

    /// Calls `callback` after every `epochs` epochs and their validation, if due; never for 0.
    #[must_use]
    pub fn every_epochs(
        self,
        epochs: usize,
        callback: impl FnMut(&CallbackContext, &mut T) -> Result<()> + 'static,
    ) -> Self {
        self.with(When::EveryEpochs(epochs), callback)
    }

    /// Calls `callback` once, after epoch number `epoch`, from 1.
    #[must_use]
    pub fn at_epoch(
        self,
        epoch: usize,
        callback: impl FnMut(&CallbackContext, &mut T) -> Result<()> + 'static,
    ) -> Self {
        self.with(When::AtEpoch(epoch), callback)
    }

    /// Records the run with `tracker`, on the chief only, in addition to TensorBoard and `--mlflow`.
    #[must_use]
    pub fn tracker(mut self, tracker: impl Tracker + 'static) -> Self {
        self.trackers.push(Box::new(tracker));
        self
    }

    /// Takes the trackers out.
    pub(crate) fn take_trackers(&mut self) -> Vec<Box<dyn Tracker>> {
        mem::take(&mut self.trackers)
    }

    fn with(
        mut self,
        when: When,
        callback: impl FnMut(&CallbackContext, &mut T) -> Result<()> + 'static,
    ) -> Self {
        self.scheduled.push((when, Box::new(callback)));
        self
    }

    /// Runs the callbacks due after update number `context.progress.step`.
    ///
    /// # Errors
    /// The first error or panic of a callback, such as by losses that cannot be read from a device; later
    /// callbacks do not run.
    pub fn after_step(&mut self, context: CallbackContext, target: &mut T) -> Result<()> {
        let step = context.progress.step;
        self.call(context, target, |when| match when {
            When::EverySteps(steps) => steps > 0 && step.is_multiple_of(steps),
            When::AtStep(at) => at == step,
            When::EveryEpochs(_) | When::AtEpoch(_) => false,
        })
    }

    /// Runs the callbacks due after epoch number `context.progress.epoch`.
    ///
    /// # Errors
    /// As [`after_step`](Self::after_step).
    pub fn after_epoch(&mut self, context: CallbackContext, target: &mut T) -> Result<()> {
        let epoch = context.progress.epoch;
        self.call(context, target, |when| match when {
            When::EveryEpochs(epochs) => epochs > 0 && epoch.is_multiple_of(epochs),
            When::AtEpoch(at) => at == epoch,
            When::EverySteps(_) | When::AtStep(_) => false,
        })
    }

    /// Stops training as [`CallbackContext::stop`] does, unless a callback has.
    pub(crate) fn stop(&mut self, reason: String) {
        self.stop_reason.get_or_insert(reason);
    }

    /// The reason that a callback gave to [`stop`](CallbackContext::stop), if any.
    pub fn stop_reason(&self) -> Option<&str> {
        self.stop_reason.as_deref()
    }

    /// The stop reason of the first process that has one; a collective operation.
    ///
    /// # Errors
    /// Another process failed.
    pub fn agreed_stop_reason(&self) -> Result<String> {
        agreed(self.stop_reason.clone())
    }

    fn call(
        &mut self,
        context: CallbackContext,
        target: &mut T,
        is_due: impl Fn(When) -> bool,
    ) -> Result<()> {
        let mut due = self.scheduled.iter_mut().filter(|(when, _)| is_due(*when));
        due.try_for_each(|(_, callback)| {
            without_panic("a callback", || callback(&context, target))
        })?;
        // Kept until training stops, some steps later with a parameter server.
        self.stop_reason = self.stop_reason.take().or(context.stop_reason.into_inner());
        Ok(())
    }
}

/// The reason of the first process that has one. Its serialization is compiled with the engine.
fn agreed(own: Option<String>) -> Result<String> {
    let reasons =
        globals::strategy()?.gather("why training stops", PerReplica::from_iter([own]))?;
    Ok(reasons.into_iter().flatten().next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use anyhow::{bail, ensure};
    use burn::tensor::{Device, Tensor};

    use super::*;

    fn at(epoch: usize, step: usize) -> Progress {
        Progress {
            step,
            epoch,
            examples: 0,
            drawn: 0,
        }
    }

    fn step(step: usize) -> CallbackContext {
        CallbackContext::after_step(at(1, step), Losses::new())
    }

    fn epoch(epoch: usize) -> CallbackContext {
        CallbackContext::after_epoch(at(epoch, 9), Vec::new(), IndexMap::new())
    }

    fn note(
        name: &'static str,
    ) -> impl FnMut(&CallbackContext, &mut Vec<&'static str>) -> Result<()> {
        move |_, notes| {
            notes.push(name);
            Ok(())
        }
    }

    #[test]
    fn several_callbacks_that_are_due_run_in_order() {
        let mut callbacks = Callbacks::new()
            .every_steps(2, note("even"))
            .at_step(4, note("four"))
            .every_steps(2, note("even again"))
            .every_steps(0, note("never"))
            .every_epochs(3, note("third epoch"))
            .at_epoch(2, note("second epoch"));
        let mut notes = Vec::new();
        for number in 1..=5 {
            callbacks.after_step(step(number), &mut notes).unwrap();
        }
        assert_eq!(notes, ["even", "even again", "even", "four", "even again"]);
        notes.clear();
        for number in 1..=4 {
            callbacks.after_epoch(epoch(number), &mut notes).unwrap();
        }
        assert_eq!(notes, ["second epoch", "third epoch"]);
    }

    #[test]
    fn an_error_stops_the_rest() {
        let mut callbacks = Callbacks::new()
            .at_step(1, |_, _| bail!("no"))
            .at_step(1, note("not called"));
        let mut notes = Vec::new();
        assert!(callbacks.after_step(step(1), &mut notes).is_err());
        assert!(notes.is_empty());
    }

    #[test]
    fn a_panic_of_a_callback_is_an_error_with_its_message() {
        let mut callbacks = Callbacks::new()
            .at_step(1, |context, _| {
                let loss = context.losses.get("loss").expect("a loss");
                ensure!(loss.is_finite());
                Ok(())
            })
            .at_step(1, note("not called"));
        let mut notes = Vec::new();
        let error = callbacks.after_step(step(1), &mut notes).unwrap_err();
        assert_eq!(error.to_string(), "a callback panicked: a loss");
        assert!(notes.is_empty());
    }

    #[test]
    fn callbacks_see_losses_metrics_and_the_validation() {
        let mut callbacks = Callbacks::<Vec<CallbackContext>>::new()
            .every_steps(1, |context, seen| {
                seen.push(context.clone());
                Ok(())
            })
            .every_epochs(1, |context, seen| {
                seen.push(context.clone());
                Ok(())
            });
        let loss = Tensor::from_floats([0.5], &Device::flex());
        let losses = Losses::new().with("loss", &loss);
        let metrics = vec![MergedMetric {
            name: "accuracy".to_owned(),
            value: 0.75,
            examples: 8,
            observations: 8,
        }];
        let validation = IndexMap::from([("loss".to_owned(), 0.25)]);
        let mut seen = Vec::new();
        let after_step = CallbackContext::after_step(at(1, 3), losses.clone());
        callbacks.after_step(after_step, &mut seen).unwrap();
        let after_epoch =
            CallbackContext::after_epoch(at(2, 3), metrics.clone(), validation.clone());
        callbacks.after_epoch(after_epoch, &mut seen).unwrap();
        assert_eq!((seen[0].progress, &seen[0].losses), (at(1, 3), &losses));
        assert!(seen[0].metrics.is_empty() && seen[0].validation.is_empty());
        assert_eq!((seen[1].progress, &seen[1].metrics), (at(2, 3), &metrics));
        assert_eq!(seen[1].validation, validation);
        assert_eq!(seen[1].losses, Losses::new());
    }

    #[test]
    fn the_first_reason_to_stop_is_kept_and_the_other_callbacks_run() {
        let mut callbacks = Callbacks::new()
            .at_step(2, |context, _| {
                context.stop("it is good enough");
                context.stop("no");
                Ok(())
            })
            .every_steps(1, note("called"))
            .at_epoch(1, |context, _| {
                context.stop("no");
                Ok(())
            });
        let mut notes = Vec::new();
        callbacks.after_step(step(1), &mut notes).unwrap();
        assert_eq!(callbacks.stop_reason(), None);
        callbacks.after_step(step(2), &mut notes).unwrap();
        callbacks.after_step(step(3), &mut notes).unwrap();
        callbacks.after_epoch(epoch(1), &mut notes).unwrap();
        assert_eq!(callbacks.stop_reason(), Some("it is good enough"));
        assert_eq!(notes, ["called"; 3]);
    }
}
