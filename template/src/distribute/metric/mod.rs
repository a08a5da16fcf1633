mod auc;
mod confusion;
mod per_example;

use std::{cell::RefCell, mem};

use anyhow::{Result, ensure};
use burn::tensor::{Device, Tensor};

use super::read_all;

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
#[derive(Clone, Debug)]
pub struct Mean {
    name: &'static str,
    counted: RefCell<Counted>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    total: f64,
    count: f64,
    /// The values of batches that are in `count` and not yet in `total`, shape `[batch]` each.
    unread: Vec<Tensor<1>>,
}

/// Batches whose values are read together.
const UNREAD: usize = 64;

impl Counted {
    /// # Panics
    /// A device failed.
    fn read(&mut self) {
        let values = read_all(mem::take(&mut self.unread));
        for batch in values.expect("a device that gives the values of a metric") {
            self.total += batch.into_iter().map(f64::from).sum::<f64>();
        }
    }
}

impl Mean {
    pub fn new(name: &'static str) -> Self {
        Mean {
            name,
            counted: RefCell::default(),
        }
    }

    /// Counts the values `[batch]` of a replica's batch, each example once.
    ///
    /// # Panics
    /// A device failed.
    pub fn update(&mut self, per_example: &Tensor<1>) {
        let counted = self.counted.get_mut();
        counted.count += per_example.dims()[0] as f64;
        // Without what was recorded for gradients, which would stay in memory.
        counted.unread.push(per_example.clone().detach());
        // A GPU would be waited for in each step, before it is told of the next operations.
        if per_example.device() == Device::flex() || counted.unread.len() == UNREAD {
            counted.read();
        }
    }

    /// The mean; 0 of no examples.
    ///
    /// # Panics
    /// A device failed.
    pub fn result(&self) -> f64 {
        match self.state()[..] {
            [total, count] if count > 0.0 => total / count,
            _ => 0.0,
        }
    }
}

impl Metric for Mean {
    fn name(&self) -> &'static str {
        self.name
    }

    fn count(&self) -> usize {
        self.counted.borrow().count as usize
    }

    fn state(&self) -> Vec<f64> {
        let mut counted = self.counted.borrow_mut();
        counted.read();
        vec![counted.total, counted.count]
    }

    fn add_state(&mut self, state: &[f64]) -> Result<()> {
        ensure!(
            state.len() == 2,
            "the state of the mean `{}` has {} numbers, and a total and a count are needed",
            self.name,
            state.len()
        );
        let counted = self.counted.get_mut();
        counted.total += state[0];
        counted.count += state[1];
        Ok(())
    }

    fn results(&self) -> Vec<(String, f64)> {
        vec![(self.name.to_owned(), self.result())]
    }

    fn reset(&mut self) {
        self.counted = RefCell::default();
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
    use super::*;
    use crate::distribute::visible_devices;

    #[test]
    fn values_may_wait_until_they_are_asked_for() {
        for device in visible_devices() {
            let mut mean = Mean::new("loss");
            for batch in 0..2 * UNREAD + 3 {
                mean.update(&Tensor::from_floats([batch as f32, 1.0], &device));
            }
            let batches = (2 * UNREAD + 3) as f64;
            assert_eq!(mean.count() as f64, 2.0 * batches);
            let total = batches * (batches - 1.0) / 2.0 + batches;
            assert_eq!(mean.clone().state(), [total, 2.0 * batches]);
            assert_eq!(mean.result(), total / (2.0 * batches));
            assert_eq!(mean.results()[0].1, mean.result(), "asked again");
        }
    }

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
