//! Step 3: the metrics.

use anyhow::Result;
use burn::tensor::{Int, Tensor};
use kiln_engine::{
    checkpoint::{Best, Goal},
    metric::{Mean, Metric, Perplexity, sparse_categorical_accuracy},
};

use crate::{dataset::Batch, model::Predictions};

/// The metrics of one split; each replica has one set per split.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub loss: Mean,
    pub perplexity: Perplexity,
    pub accuracy: Mean,
}

/// Creates the metrics.
pub fn create_metrics() -> Metrics {
    Metrics {
        loss: Mean::new("loss"),
        perplexity: Perplexity::new("perplexity"),
        accuracy: Mean::new("accuracy"),
    }
}

impl Metrics {
    /// Adds the examples of a batch.
    ///
    /// # Errors
    /// Predictions and labels do not match.
    pub fn update(
        &mut self,
        losses: &Tensor<1>,
        predictions: &Predictions,
        batch: &Batch,
    ) -> Result<()> {
        let correct = next_byte_accuracy(predictions, &batch.labels); // [batch, time], 0 or 1
        self.loss.update(losses);
        self.perplexity.update_losses(losses, None)?;
        self.accuracy.update_observations(&correct, None)
    }
}

impl kiln_engine::Metrics for Metrics {
    fn all(&mut self) -> Vec<&mut dyn Metric> {
        vec![&mut self.loss, &mut self.perplexity, &mut self.accuracy]
    }
}

/// By which metric of the validation a checkpoint is the best.
pub const BEST: Best = Best {
    metric: "loss",
    goal: Goal::Lowest,
};

/// 1 where the largest logit is the next byte's, else 0. A byte of which a logit is NaN, or the largest is
/// infinite, is wrong.
///
/// Shapes: logits `[batch, time, 256]`, labels `[batch, time]` in; `[batch, time]` out.
pub fn next_byte_accuracy(logits: &Predictions, labels: &Tensor<2, Int>) -> Tensor<2> {
    let [batch, time, bytes] = logits.dims();
    let logits = logits.clone().reshape([batch * time, bytes]); // [batch * time, 256]
    let labels = labels.clone().reshape([batch * time]); // [batch * time]
    let correct = sparse_categorical_accuracy(&logits, &labels); // [batch * time], 0 or 1
    correct.reshape([batch, time])
}
