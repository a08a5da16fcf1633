//! Step 3: the metrics.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_engine::{
    checkpoint::{Best, Goal},
    metric::{Mean, Metric, sparse_categorical_accuracy},
};

use crate::{dataset::Batch, model::Predictions};

// TODO(metric.set): Choose the metrics besides the loss.
//   Now: the mean loss, and the accuracy: the share of examples whose largest logit is the label's.
//   Note: `kiln_engine::metric` also has F1, AUC, IoU, R2, perplexity, BLEU, calibration and others.
//   Shapes: losses [batch], predictions [batch, classes], labels [batch] in; one value per example.
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
    /// Adds a batch: losses `[batch]`, and the predictions for its examples.
    ///
    /// # Errors
    /// Predictions and labels do not match.
    pub fn update(
        &mut self,
        losses: &Tensor<1>,
        predictions: &Predictions,
        batch: &Batch,
    ) -> Result<()> {
        let correct = sparse_categorical_accuracy(predictions, &batch.labels); // [batch], 0 or 1
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

// TODO(metric.best): Choose the validation metric that selects the best checkpoint.
//   Now: the highest accuracy.
//   Shapes: none.
pub const BEST: Best = Best {
    metric: "accuracy",
    goal: Goal::Highest,
};
