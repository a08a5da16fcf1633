use anyhow::Result;

use crate::checkpoint::Progress;

/// What is done beside training, and when. Several may share a moment; they run in the order in
/// which they were added, on the thread of `main`, with the progress of training and `T`, such as
/// its report.
pub struct Callbacks<T>(Vec<(When, Callback<T>)>);

type Callback<T> = Box<dyn FnMut(Progress, &mut T) -> Result<()>>;

#[derive(Clone, Copy, Debug)]
enum When {
    EverySteps(usize),
    AtStep(usize),
    EveryEpochs(usize),
    AtEpoch(usize),
}

impl<T> Default for Callbacks<T> {
    fn default() -> Self {
        Callbacks(Vec::new())
    }
}

impl<T> Callbacks<T> {
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls `callback` after every `steps` updates; never for 0.
    #[must_use]
    pub fn every_steps(
        self,
        steps: usize,
        callback: impl FnMut(Progress, &mut T) -> Result<()> + 'static,
    ) -> Self {
        self.with(When::EverySteps(steps), callback)
    }

    /// Calls `callback` once, after update number `step`, from 1.
    #[must_use]
    pub fn at_step(
        self,
        step: usize,
        callback: impl FnMut(Progress, &mut T) -> Result<()> + 'static,
    ) -> Self {
        self.with(When::AtStep(step), callback)
    }

    /// Calls `callback` after every `epochs` epochs and their validation; never for 0.
    #[must_use]
    pub fn every_epochs(
        self,
        epochs: usize,
        callback: impl FnMut(Progress, &mut T) -> Result<()> + 'static,
    ) -> Self {
        self.with(When::EveryEpochs(epochs), callback)
    }

    /// Calls `callback` once, after epoch number `epoch`, from 1.
    #[must_use]
    pub fn at_epoch(
        self,
        epoch: usize,
        callback: impl FnMut(Progress, &mut T) -> Result<()> + 'static,
    ) -> Self {
        self.with(When::AtEpoch(epoch), callback)
    }

    fn with(
        mut self,
        when: When,
        callback: impl FnMut(Progress, &mut T) -> Result<()> + 'static,
    ) -> Self {
        self.0.push((when, Box::new(callback)));
        self
    }

    /// Calls what is due after the update that `progress` counts last.
    ///
    /// # Errors
    /// Those of the callbacks; those after it are not called.
    pub fn after_step(&mut self, progress: Progress, target: &mut T) -> Result<()> {
        self.call(progress, target, |when| match when {
            When::EverySteps(steps) => steps > 0 && progress.step.is_multiple_of(steps),
            When::AtStep(at) => at == progress.step,
            When::EveryEpochs(_) | When::AtEpoch(_) => false,
        })
    }

    /// Calls what is due after the epoch of `progress`.
    ///
    /// # Errors
    /// As [`after_step`](Self::after_step).
    pub fn after_epoch(&mut self, progress: Progress, target: &mut T) -> Result<()> {
        self.call(progress, target, |when| match when {
            When::EveryEpochs(epochs) => epochs > 0 && progress.epoch.is_multiple_of(epochs),
            When::AtEpoch(at) => at == progress.epoch,
            When::EverySteps(_) | When::AtStep(_) => false,
        })
    }

    fn call(
        &mut self,
        progress: Progress,
        target: &mut T,
        is_due: impl Fn(When) -> bool,
    ) -> Result<()> {
        let mut due = self.0.iter_mut().filter(|(when, _)| is_due(*when));
        due.try_for_each(|(_, callback)| callback(progress, target))
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    fn at(epoch: usize, step: usize) -> Progress {
        Progress {
            step,
            epoch,
            examples: 0,
            drawn: 0,
        }
    }

    fn note(name: &'static str) -> impl FnMut(Progress, &mut Vec<&'static str>) -> Result<()> {
        move |_, notes| {
            notes.push(name);
            Ok(())
        }
    }

    #[test]
    fn several_callbacks_of_a_moment_run_in_order() {
        let mut callbacks = Callbacks::new()
            .every_steps(2, note("even"))
            .at_step(4, note("four"))
            .every_steps(2, note("even again"))
            .every_steps(0, note("never"))
            .every_epochs(3, note("third epoch"))
            .at_epoch(2, note("second epoch"));
        let mut notes = Vec::new();
        for step in 1..=5 {
            callbacks.after_step(at(1, step), &mut notes).unwrap();
        }
        assert_eq!(notes, ["even", "even again", "even", "four", "even again"]);
        notes.clear();
        for epoch in 1..=4 {
            callbacks.after_epoch(at(epoch, 9), &mut notes).unwrap();
        }
        assert_eq!(notes, ["second epoch", "third epoch"]);
    }

    #[test]
    fn an_error_stops_the_rest() {
        let mut callbacks = Callbacks::new()
            .at_step(1, |_, _| bail!("no"))
            .at_step(1, note("not called"));
        let mut notes = Vec::new();
        assert!(callbacks.after_step(at(1, 1), &mut notes).is_err());
        assert!(notes.is_empty());
    }
}
