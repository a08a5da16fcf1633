//! Step 3: the metrics.

use anyhow::Result;
use burn::tensor::{Int, Tensor};
use kiln_engine::{
    checkpoint::{Best, Goal},
    metric::{Mean, Metric, sparse_categorical_accuracy},
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
        perplexity: Perplexity::new(),
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
        self.perplexity.update(losses);
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

/// The exponential of the mean loss: among how many bytes, all as probable, the model wavers.
///
/// It is taken of the merged total: a mean of the perplexities of batches or replicas would be
/// larger, as the exponential is convex. It is NaN of a mean loss that is not finite.
#[derive(Clone, Debug)]
pub struct Perplexity {
    loss: Mean,
}

impl Perplexity {
    pub fn new() -> Self {
        Perplexity {
            loss: Mean::new("perplexity"),
        }
    }

    /// Counts the losses `[batch]` of a replica's batch, each example once.
    pub fn update(&mut self, losses: &Tensor<1>) {
        self.loss.update(losses);
    }
}

impl Default for Perplexity {
    fn default() -> Self {
        Perplexity::new()
    }
}

impl Metric for Perplexity {
    fn name(&self) -> &'static str {
        self.loss.name()
    }

    fn examples(&self) -> usize {
        self.loss.examples()
    }

    fn state(&self) -> Vec<f64> {
        self.loss.state()
    }

    fn add_state(&mut self, state: &[f64]) -> Result<()> {
        self.loss.add_state(state)
    }

    fn results(&self) -> Vec<(String, f64)> {
        let loss = self.loss.result();
        // The exponential of -inf would be 0, the best of all.
        let perplexity = if loss.is_finite() {
            loss.exp()
        } else {
            f64::NAN
        };
        vec![(self.name().to_owned(), perplexity)]
    }

    fn reset(&mut self) {
        self.loss.reset();
    }
}
