//! Step 3: the metrics.

use anyhow::Result;
use burn::tensor::Tensor;

use crate::{
    dataset::Batch,
    distribute::{Mean, Metric},
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

// TODO(metric.set): Choose what is measured beside the loss.
//   Now: the mean loss, and the accuracy: the share of examples whose largest logit is the label's.
//   Shapes: losses [batch], predictions [batch, classes], labels [batch] in; one value an example.
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

    /// Counts the examples of a batch.
    pub fn update(&mut self, losses: &Tensor<1>, predictions: &Tensor<2>, batch: &Batch) {
        let predicted = predictions.clone().argmax(1).squeeze_dim(1); // [batch]
        let correct = predicted.equal(batch.labels.clone()).float(); // [batch], 0 or 1
        self.loss.update(losses);
        self.accuracy.update(&correct);
    }

    /// All metrics of the split, in the order of reports; the loss is the first.
    pub fn all(&mut self) -> Vec<&mut Mean> {
        vec![&mut self.loss, &mut self.accuracy]
    }
}

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
pub fn merged_metrics(split: Split) -> Result<Vec<Mean>> {
    let strategy = globals::strategy()?;
    let mut per_replica: Vec<SplitMetrics> = strategy
        .run_on_all(move |_| globals::with_metrics(split, |metrics| metrics.clone()))?
        .into_iter()
        .collect();
    let number = per_replica[0].all().len();
    let merge = |metric: usize| {
        let of_each = per_replica
            .iter_mut()
            .map(|metrics| metrics.all()[metric].clone());
        strategy.merge(of_each.collect())
    };
    (0..number).map(merge).collect()
}
