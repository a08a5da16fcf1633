//! Validations and tests.

use anyhow::Result;
use indexmap::IndexMap;

use super::{Inputs, end_first_step};
use crate::{
    checkpoint::interrupt,
    data::{DistributedDataset, Epoch},
    ema::{self, Weights},
    globals::{self, Split},
    loss::Losses,
    report::Report,
    task::Task,
};

/// A validation or a test in progress. The caller writes the loop over batches:
///
/// ```text
/// while let Some(inputs) = evaluation.next_batch() {
///     if !evaluation.step(inputs, distributed_validation_step)? {
///         return Ok(None);
///     }
/// }
/// evaluation.end(progress.step)
/// ```
///
/// Each example of the split counts once in the metrics, which are merged over replicas and processes.
pub struct Evaluation<'a, T: Task> {
    split: Split,
    batches: Epoch<T::Example>,
    report: &'a mut Report,
}

impl<'a, T: Task> Evaluation<'a, T> {
    /// Starts the evaluation of `data`, after `epoch` epochs of training: resets the metrics of `split`, and
    /// prepares the model of each replica for inference.
    ///
    /// # Errors
    /// A replica failed.
    pub fn start(
        split: Split,
        epoch: usize,
        data: &DistributedDataset<T::Example>,
        report: &'a mut Report,
    ) -> Result<Self> {
        globals::reset_metrics::<T>(split)?;
        let weights = globals::strategy()?.run_on_all(|replica| {
            globals::prepare_inference::<T>(replica)?;
            Ok(ema::evaluated())
        })?;
        report.begin(split, epoch, data.batches_per_epoch());
        if weights.into_iter().any(|weights| weights == Weights::Ema) {
            report.note_averaged_weights();
        }
        Ok(Evaluation {
            split,
            batches: data.epoch(1),
            report,
        })
    }

    /// Waits for the next batch; `None` at the end of the split.
    pub fn next_batch(&mut self) -> Option<Inputs<T::Example>> {
        self.report.wait_for(|| self.batches.next())
    }

    /// Evaluates a batch with `step`, and reports its losses. Returns false if a signal stops the evaluation,
    /// which then has no result.
    ///
    /// # Errors
    /// The error of `step`.
    pub fn step(
        &mut self,
        inputs: Inputs<T::Example>,
        step: impl FnOnce(Inputs<T::Example>) -> Result<Losses>,
    ) -> Result<bool> {
        let losses = step(inputs)?;
        end_first_step(&losses)?;
        self.report.step(&losses);
        let is_stopped = interrupt::agreed(None)?.is_some();
        if is_stopped {
            self.report.abandon();
        }
        Ok(!is_stopped)
    }

    /// Ends the evaluation of a model after `step` updates: reports the metrics of the split, merged over all
    /// replicas, and returns them by name.
    ///
    /// # Errors
    /// A replica failed, or a file cannot be written.
    pub fn end(self, step: usize) -> Result<IndexMap<String, f64>> {
        let metrics = globals::merged_metrics::<T>(self.split)?;
        self.report.end(step, &metrics)?;
        let values = metrics
            .into_iter()
            .map(|metric| (metric.name, metric.value));
        Ok(values.collect())
    }
}
