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

/// The mean of one value an example, kept as total and count. A value that is NaN or infinite makes
/// the mean so, over all replicas and until it is reset, and such a checkpoint is never the best.
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
    /// A mean without examples, called `name` in reports.
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
    /// The name in reports.
    pub name: String,
    /// The value over all examples that were counted.
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
    use burn::tensor::Int;

    use super::*;
    use crate::distribute::visible_devices;

    /// Predictions of a model that diverged.
    const BROKEN: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

    /// The labels of four examples.
    const LABELS: [i32; 4] = [0, 1, 0, 1];

    /// Predictions `[4, 2]`: `value` for the first `broken` examples, and right for the others.
    fn predictions(broken: usize, value: f32, device: &Device) -> Tensor<2> {
        let one_hot = Tensor::<2>::from_floats([[1.0, 0.0], [0.0, 1.0]], device);
        let labels = Tensor::<1, Int>::from_ints(LABELS, device);
        let is_broken = Tensor::<1, Int>::arange(0..4, device).lower_elem(broken as i64);
        let is_broken = is_broken.unsqueeze_dim::<2>(1).expand([4, 2]);
        one_hot.select(0, labels).mask_fill(is_broken, value)
    }

    /// Each metric by name, with its value for all four examples.
    fn every_metric(predictions: &Tensor<2>) -> Vec<(String, f64)> {
        let device = predictions.device();
        let labels = Tensor::<1, Int>::from_ints(LABELS, &device);
        let targets = self::predictions(0, 0.0, &device);
        let means = [
            (
                "accuracy",
                sparse_categorical_accuracy(predictions, &labels),
            ),
            (
                "top_1",
                sparse_top_k_categorical_accuracy(predictions, &labels, 1),
            ),
            (
                "top_2",
                sparse_top_k_categorical_accuracy(predictions, &labels, 2),
            ),
            (
                "absolute",
                mean_absolute_error(predictions, &targets).unwrap(),
            ),
            (
                "squared",
                mean_squared_error(predictions, &targets).unwrap(),
            ),
            ("mean", predictions.clone().narrow(1, 0, 1).squeeze_dim(1)),
        ];
        let means = means.map(|(name, values)| {
            let mut mean = Mean::new(name);
            mean.update(&values);
            mean
        });
        let mut confusion = ConfusionMatrix::new("confusion", 2);
        confusion.update(predictions, &labels).unwrap();
        let mut area = AreaUnderRoc::new("auc");
        let scores = predictions.clone().narrow(1, 1, 1).squeeze_dim(1);
        area.update(&scores, &labels).unwrap();
        let all = means.iter().map(|mean| mean as &dyn Metric);
        let all = all.chain([&confusion as &dyn Metric, &area]);
        all.flat_map(|metric| {
            assert_eq!(metric.count(), 4, "{}", metric.name());
            metric.results()
        })
        .collect()
    }

    #[test]
    fn no_metric_counts_what_is_not_finite_as_right() {
        // With no example broken, the first one, and all; nothing stands for what is not finite.
        let expected = [
            ("accuracy", 1.0, Some(0.75), Some(0.0)),
            ("top_1", 1.0, Some(0.75), Some(0.0)),
            ("top_2", 1.0, Some(0.75), Some(0.0)),
            ("absolute", 0.0, None, None),
            ("squared", 0.0, None, None),
            ("mean", 0.5, None, None),
            ("confusion_precision", 1.0, Some(1.0), Some(0.0)),
            ("confusion_recall", 1.0, Some(0.75), Some(0.0)),
            (
                "confusion_f1",
                1.0,
                Some((2.0 / 3.0 + 1.0) / 2.0),
                Some(0.0),
            ),
            ("auc", 1.0, Some(0.5), Some(0.0)),
        ];
        for device in visible_devices() {
            for value in BROKEN {
                let values =
                    [0, 1, 4].map(|broken| every_metric(&predictions(broken, value, &device)));
                assert_eq!(values[0].len(), expected.len());
                for (index, (name, right, one, all)) in expected.into_iter().enumerate() {
                    for (values, expected) in values.iter().zip([Some(right), one, all]) {
                        let (of, result) = &values[index];
                        assert_eq!(of, name);
                        let result = result.is_finite().then_some(*result);
                        assert_eq!(result, expected, "`{name}` of {value}: {values:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_mean_stays_what_a_value_that_is_not_finite_made_it() {
        for (device, value) in visible_devices()
            .iter()
            .flat_map(|device| BROKEN.map(|value| (device, value)))
        {
            let counted = |values: &[f32]| {
                let mut mean = Mean::new("loss");
                for value in values {
                    mean.update(&Tensor::from_floats([*value], device));
                }
                mean
            };
            let mut mean = counted(&[1.0, value, 2.0]);
            assert!(!mean.result().is_finite(), "{value} before 2");
            mean.add_state(&counted(&[3.0]).state()).unwrap();
            assert!(!mean.result().is_finite(), "{value} in a merge");
            let mut other = counted(&[3.0]);
            other.add_state(&mean.state()).unwrap();
            assert!(!other.result().is_finite(), "{value} of another replica");
            assert_eq!(other.count(), 5);
        }
    }

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
