//! Metrics whose states merge over replicas and processes.

mod best;
mod classification;
mod mean;
mod regression;
mod text;
mod unread;

use anyhow::{Result, ensure};

pub use best::{Best, Goal};
pub use classification::{
    Area, AreaUnderRoc, AveragePrecision, BinaryRanking, CalibrationError, ConfusionMatrix,
    HasLabels, MulticlassAreaUnderRoc, PrecisionArea, RocArea, Statistic,
    sparse_categorical_accuracy, sparse_top_k_categorical_accuracy,
};
pub use mean::Mean;
pub use regression::{
    PearsonCorrelation, R2Score, RootMeanSquaredError, mean_absolute_error, mean_squared_error,
};
pub use text::{Bleu, Perplexity};

/// A metric whose state merges over replicas, as by `tf.keras.metrics.Metric.merge_state`.
pub trait Metric: Send + 'static {
    /// The name in reports.
    fn name(&self) -> &'static str;

    /// Number of examples so far.
    fn examples(&self) -> usize;

    /// Number of observations so far, such as pixels or tokens; by default one per example.
    fn observations(&self) -> usize {
        self.examples()
    }

    /// Reads the values of batches that are still on a GPU; always called before [`state`](Self::state). A
    /// metric made of others calls theirs.
    ///
    /// # Errors
    /// A batch since the last reset had an invalid value, such as a label that is no class, or a device failed.
    fn read(&self) -> Result<()> {
        Ok(())
    }

    /// The state, to be merged with that of other replicas and saved in checkpoints.
    fn state(&self) -> Vec<f64>;

    /// Merges the state of another replica.
    ///
    /// # Errors
    /// The state is of another metric.
    fn add_state(&mut self, state: &[f64]) -> Result<()>;

    /// The values over all observations, by name in reports.
    fn results(&self) -> Vec<(String, f64)>;

    /// Resets the state.
    fn reset(&mut self);
}

/// Implements [`Metric`] for a type, with at most one parameter, whose state is that of a field, and whose results are
/// those of its `named`.
macro_rules! metric_by {
    ($metric:ty, $field:ident $(, $parameter:ident: $bound:ident)?) => {
        impl$(<$parameter: $bound>)? Metric for $metric {
            fn name(&self) -> &'static str {
                self.$field.name()
            }

            fn examples(&self) -> usize {
                self.$field.examples()
            }

            fn observations(&self) -> usize {
                self.$field.observations()
            }

            fn read(&self) -> Result<()> {
                self.$field.read()
            }

            fn state(&self) -> Vec<f64> {
                self.$field.state()
            }

            fn add_state(&mut self, state: &[f64]) -> Result<()> {
                self.$field.add_state(state)
            }

            fn results(&self) -> Vec<(String, f64)> {
                self.named()
            }

            fn reset(&mut self) {
                self.$field.reset();
            }
        }
    };
}
use metric_by;

/// The results of a metric with one value, called `name`; none if it is undefined.
fn value_by_name(name: &str, value: Option<f64>) -> Vec<(String, f64)> {
    let named = |value| (name.to_owned(), value);
    value.map(named).into_iter().collect()
}

/// A value of a metric, merged over all replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct MergedMetric {
    /// The name in reports.
    pub name: String,
    /// The value over all observations.
    pub value: f64,
    /// Number of examples.
    pub examples: usize,
    /// Number of observations, such as pixels or tokens.
    pub observations: usize,
}

/// The values of `metrics`, in order.
pub fn metric_results(metrics: &[&mut dyn Metric]) -> Vec<MergedMetric> {
    let results = metrics.iter().flat_map(|metric| {
        let (examples, observations) = (metric.examples(), metric.observations());
        let named = move |(name, value)| MergedMetric {
            name,
            value,
            examples,
            observations,
        };
        metric.results().into_iter().map(named)
    });
    results.collect()
}

/// The states of all metrics of a replica, in order.
pub type MetricStates = Vec<Vec<f64>>;

/// The states of `metrics`.
///
/// # Errors
/// Those of [`Metric::read`].
pub fn metric_states(metrics: &[&mut dyn Metric]) -> Result<MetricStates> {
    let states = metrics.iter().map(|metric| {
        metric.read()?;
        Ok(metric.state())
    });
    states.collect()
}

/// Replaces the states of `metrics` by the merged states of `replicas`.
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
    use burn::tensor::{Device, Int, Tensor};

    use super::*;
    use crate::replica::visible_devices;

    /// Predictions of a model that diverged.
    const BROKEN: [f32; 3] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];

    /// The largest probability of the logits 1 and 0.
    const SIGMOID_OF_ONE: f64 = 0.731_058_578_630_004_9;

    /// The labels of four examples.
    const LABELS: [i32; 4] = [0, 1, 0, 1];

    /// Predictions `[4, 2]`: `value` for the first `broken` examples, and correct for the others.
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
        let mut calibration = CalibrationError::new("calibration");
        calibration.update(predictions, &labels).unwrap();
        let mut perplexity = Perplexity::new("perplexity");
        perplexity.update(predictions, &labels).unwrap();
        let mut root = RootMeanSquaredError::new("root");
        root.update(predictions, &targets).unwrap();
        let mut r2 = R2Score::new("r2").with_outputs(2);
        r2.update(predictions, &targets).unwrap();
        let mut pearson = PearsonCorrelation::new("pearson").with_outputs(2);
        pearson.update(predictions, &targets).unwrap();
        let mut area = AreaUnderRoc::new("auc");
        let scores = predictions.clone().narrow(1, 1, 1).squeeze_dim(1);
        area.update(&scores, &labels).unwrap();
        let mut average_precision = AveragePrecision::new("average_precision");
        average_precision.update(&scores, &labels).unwrap();
        let mut of_classes = MulticlassAreaUnderRoc::new("auc_of_classes", 2);
        of_classes.update(predictions, &labels).unwrap();
        let all = means.iter().map(|mean| mean as &dyn Metric);
        let all = all.chain([&confusion as &dyn Metric, &area, &average_precision]);
        let all = all.chain([&of_classes as &dyn Metric, &calibration, &perplexity]);
        let all = all.chain([&root as &dyn Metric, &r2, &pearson]);
        all.flat_map(|metric| {
            assert_eq!(metric.examples(), 4, "{}", metric.name());
            metric.results()
        })
        .collect()
    }

    #[test]
    fn no_metric_counts_what_is_not_finite_as_right() {
        // With none, the first and all examples broken; `None` for a value that is not finite.
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
            ("average_precision", 1.0, Some(2.0 / 3.0), Some(0.5)),
            ("auc_of_classes", 1.0, Some(0.5), Some(0.0)),
            (
                "calibration",
                1.0 - SIGMOID_OF_ONE,
                Some((3.0 - 3.0 * SIGMOID_OF_ONE + 1.0) / 4.0),
                Some(1.0),
            ),
            ("perplexity", 1.0 / SIGMOID_OF_ONE, None, None),
            ("root", 0.0, None, None),
            ("r2", 1.0, None, None),
            ("pearson_0", 1.0, None, None),
            ("pearson_1", 1.0, None, None),
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
                        let is_right = match expected {
                            None => !result.is_finite(),
                            Some(expected) => (result - expected).abs() < 1e-6,
                        };
                        assert!(is_right, "`{name}` of {value}: {values:?}");
                    }
                }
            }
        }
    }
}
