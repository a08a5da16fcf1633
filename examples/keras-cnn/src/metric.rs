//! Step 3: the metrics.

use anyhow::Result;
use burn::tensor::Tensor;

use crate::{
    checkpoint::{Best, Goal},
    dataset::Batch,
    distribute::{
        Mean, MergedMetric, Metric, merge_metric_states, metric_results, metric_states,
        sparse_categorical_accuracy,
    },
    globals::{self, Split},
};

/// The metrics of a replica: separate ones for each split.
#[derive(Clone, Debug)]
pub struct Metrics {
    pub train: SplitMetrics,
    pub validation: SplitMetrics,
    pub test: SplitMetrics,
}

impl Metrics {
    pub fn split_mut(&mut self, split: Split) -> &mut SplitMetrics {
        match split {
            Split::Train => &mut self.train,
            Split::Validation => &mut self.validation,
            Split::Test => &mut self.test,
        }
    }
}

/// Creates the metrics.
pub fn create_metrics() -> Metrics {
    Metrics {
        train: SplitMetrics::new(),
        validation: SplitMetrics::new(),
        test: SplitMetrics::new(),
    }
}

/// The metrics of one split.
#[derive(Clone, Debug)]
pub struct SplitMetrics {
    pub loss: Mean,
    pub accuracy: Mean,
}

impl SplitMetrics {
    fn new() -> Self {
        SplitMetrics {
            loss: Mean::new("loss"),
            accuracy: Mean::new("accuracy"),
        }
    }

    /// Counts the examples of a batch. An example with a probability that is not finite is wrong, and
    /// makes the loss so.
    ///
    /// # Errors
    /// Predictions and labels do not fit together.
    pub fn update(
        &mut self,
        losses: &Tensor<1>,
        predictions: &Tensor<2>,
        batch: &Batch,
    ) -> Result<()> {
        // The class that Keras's `categorical_accuracy` takes from one-hot labels, too.
        let classes = batch.labels.clone().argmax(1).squeeze_dim(1); // [batch]
        let correct = sparse_categorical_accuracy(predictions, &classes); // [batch], 0 or 1
        self.loss.update(losses);
        self.accuracy.update(&correct);
        Ok(())
    }

    /// All metrics of the split, in the order of reports; the loss is the first.
    pub fn all(&mut self) -> Vec<&mut dyn Metric> {
        vec![&mut self.loss, &mut self.accuracy]
    }
}

/// The checkpoint with the lowest loss of the validation is the best, as with Keras's
/// `ModelCheckpoint(monitor="val_loss", save_best_only=True)`. Accuracies of few examples tie.
pub const BEST: Best = Best {
    metric: "loss",
    goal: Goal::Lowest,
};

/// Forgets what all replicas counted for `split`.
pub fn reset_metrics(split: Split) -> Result<()> {
    globals::strategy()?.run_on_all(move |_| {
        globals::with_metrics(split, |metrics| {
            metrics.all().into_iter().for_each(Metric::reset)
        })
    })?;
    Ok(())
}

/// The metrics of `split` over all replicas.
pub fn merged_metrics(split: Split) -> Result<Vec<MergedMetric>> {
    let strategy = globals::strategy()?;
    let per_replica = strategy.run_on_all(move |_| {
        globals::with_metrics(split, |metrics| metric_states(&metrics.all()))
    })?;
    let states = strategy.gather_metric_states(per_replica)?;
    let mut merged = SplitMetrics::new();
    let mut metrics = merged.all();
    merge_metric_states(&mut metrics, &states)?;
    Ok(metric_results(&metrics))
}
