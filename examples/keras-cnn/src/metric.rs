//! Step 3: the metrics.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_engine::{
    checkpoint::{Best, Goal},
    metric::{Mean, Metric, sparse_categorical_accuracy},
};

use crate::{dataset::Batch, model::Predictions};

/// The metrics of one split; each replica has one set per split.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub loss: Mean,
    pub accuracy: Mean,
}

/// Creates the metrics.
pub fn create_metrics() -> Metrics {
    Metrics {
        loss: Mean::new("loss"),
        accuracy: Mean::new("accuracy"),
    }
}

impl Metrics {
    /// Adds the examples of a batch. An example with a probability that is not finite is wrong, and
    /// makes the loss so.
    ///
    /// # Errors
    /// Predictions and labels do not match.
    pub fn update(
        &mut self,
        losses: &Tensor<1>,
        predictions: &Predictions,
        batch: &Batch,
    ) -> Result<()> {
        // The class that Keras's `categorical_accuracy` takes from one-hot labels, too.
        let classes = batch.labels.clone().argmax(1).squeeze_dim(1); // [batch]
        let correct = sparse_categorical_accuracy(predictions, &classes); // [batch], 0 or 1
        self.loss.update(losses);
        self.accuracy.update(&correct);
        Ok(())
    }
}

impl kiln_engine::Metrics for Metrics {
    fn all(&mut self) -> Vec<&mut dyn Metric> {
        vec![&mut self.loss, &mut self.accuracy]
    }
}

/// The checkpoint with the lowest loss of the validation is the best, as with Keras's
/// `ModelCheckpoint(monitor="val_loss", save_best_only=True)`. Accuracies of few examples tie.
pub const BEST: Best = Best {
    metric: "loss",
    goal: Goal::Lowest,
};
