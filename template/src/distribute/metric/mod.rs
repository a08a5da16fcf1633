mod auc;
mod confusion;
mod per_example;

use anyhow::{Result, ensure};
use burn::tensor::Tensor;

pub use auc::AreaUnderRoc;
pub use confusion::ConfusionMatrix;
pub use per_example::{
    mean_absolute_error, mean_squared_error, sparse_categorical_accuracy,
    sparse_top_k_categorical_accuracy,
};

/// A metric whose state merges over replicas.
pub trait Metric: Send + 'static {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// How many examples were counted.
    fn count(&self) -> usize;

    /// What other replicas and checkpoints get of it.
    fn state(&self) -> Vec<f64>;

    /// Counts what another replica counted.
    ///
    /// # Errors
    /// The state is of another metric.
    fn add_state(&mut self, state: &[f64]) -> Result<()>;

    /// The values for all examples that were counted, by name.
    fn results(&self) -> Vec<(String, f64)>;

    /// Forgets all examples.
    fn reset(&mut self);
}

/// The mean of one value an example, kept as total and count.
///
/// Source: `tf.keras.metrics.Mean`.
#[derive(Clone, Debug, PartialEq)]
pub struct Mean {
    name: &'static str,
    total: f64,
    count: f64,
}

impl Mean {
    pub fn new(name: &'static str) -> Self {
        Mean {
            name,
            total: 0.0,
            count: 0.0,
        }
    }

    /// Counts the values `[batch]` of a replica's batch, each example once.
    pub fn update(&mut self, per_example: &Tensor<1>) {
        let values = per_example.clone().into_data();
        self.total += values.iter::<f64>().sum::<f64>();
        self.count += per_example.dims()[0] as f64;
    }

    /// The mean; 0 of no examples.
    pub fn result(&self) -> f64 {
        match self.count {
            0.0 => 0.0,
            count => self.total / count,
        }
    }
}

impl Metric for Mean {
    fn name(&self) -> &'static str {
        self.name
    }

    fn count(&self) -> usize {
        self.count as usize
    }

    fn state(&self) -> Vec<f64> {
        vec![self.total, self.count]
    }

    fn add_state(&mut self, state: &[f64]) -> Result<()> {
        ensure!(
            state.len() == 2,
            "the state of the mean `{}` has {} numbers, and a total and a count are needed",
            self.name,
            state.len()
        );
        self.total += state[0];
        self.count += state[1];
        Ok(())
    }

    fn results(&self) -> Vec<(String, f64)> {
        vec![(self.name.to_owned(), self.result())]
    }

    fn reset(&mut self) {
        (self.total, self.count) = (0.0, 0.0);
    }
}

/// A value of a metric over all replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedMetric {
    pub name: String,
    pub value: f64,
    /// How many examples were counted.
    pub examples: usize,
}

/// The values of `metrics`, in their order.
pub fn metric_results(metrics: &[&mut dyn Metric]) -> Vec<MergedMetric> {
    let results = metrics.iter().flat_map(|metric| {
        let examples = metric.count();
        let named = move |(name, value)| MergedMetric {
            name,
            value,
            examples,
        };
        metric.results().into_iter().map(named)
    });
    results.collect()
}

/// The states of all metrics of a replica, in their order.
pub type MetricStates = Vec<Vec<f64>>;

/// The states of `metrics`.
pub fn metric_states(metrics: &[&mut dyn Metric]) -> MetricStates {
    metrics.iter().map(|metric| metric.state()).collect()
}

/// Replaces what `metrics` counted by what `replicas` did.
///
/// # Errors
/// The states are of other metrics.
pub fn merge_metric_states(
    metrics: &mut [&mut dyn Metric],
    replicas: &[MetricStates],
) -> Result<()> {
    metrics.iter_mut().for_each(|metric| metric.reset());
    for states in replicas {
        ensure!(
            states.len() == metrics.len(),
            "there are states of {} metrics, and {} metrics",
            states.len(),
            metrics.len()
        );
        for (metric, state) in metrics.iter_mut().zip(states) {
            metric.add_state(state)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn replicas_merge_by_examples_and_not_by_means() {
        let counted = |values: &[f32]| {
            let mut mean = Mean::new("loss");
            mean.update(&Tensor::from_floats(values, &Device::flex()));
            mean
        };
        let (mut three, one) = (counted(&[1.0, 1.0, 1.0]), counted(&[5.0]));
        three.add_state(&one.state()).unwrap();
        assert_eq!((three.result(), three.count()), (2.0, 4));
        three.reset();
        assert_eq!((three.result(), three.count()), (0.0, 0));
    }
}
