//! Step 3: the metrics.

use anyhow::Result;

use crate::{
    checkpoint::{Best, Goal},
    distribute::{Mean, MergedMetric, Metric, merge_metric_states, metric_results, metric_states},
    globals::{self, Split},
    loss::{CycleLosses, ERRORS, Errors, LOSSES},
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
    /// The sum of what the four networks minimise.
    pub loss: Mean,
    pub losses: [Mean; LOSSES.len()],
    pub errors: [Mean; ERRORS.len()],
}

impl SplitMetrics {
    fn new() -> Self {
        SplitMetrics {
            loss: Mean::new("loss"),
            losses: LOSSES.map(Mean::new),
            errors: ERRORS.map(Mean::new),
        }
    }

    /// Counts the examples of a batch. An image with a value that is not finite makes the means of its
    /// losses and errors so.
    pub fn update(&mut self, losses: &CycleLosses, errors: &Errors) {
        self.loss.update(&losses.sum());
        let losses = self.losses.iter_mut().zip(losses.values());
        let errors = self.errors.iter_mut().zip(errors.values());
        losses
            .chain(errors)
            .for_each(|(metric, values)| metric.update(values));
    }

    /// All metrics of the split, in the order of reports; the loss is the first.
    pub fn all(&mut self) -> Vec<&mut dyn Metric> {
        let means = [&mut self.loss].into_iter();
        let means = means.chain(&mut self.losses).chain(&mut self.errors);
        means.map(|mean| mean as &mut dyn Metric).collect()
    }
}

/// The lowest sum of what the four networks minimise, in which cycles and identities weigh most.
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
