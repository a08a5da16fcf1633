use anyhow::{Result, bail, ensure};
use burn::tensor::{Int, Tensor};

use super::{Metric, per_example::predicted_classes};

/// How often examples of each class were taken for each class, with the precision, recall and F1
/// that follow.
///
/// An example with a logit that is NaN, or whose largest logit is infinite, counts as one of its
/// class that was taken for none: the recall of its class falls, and no precision changes.
///
/// Source: `sklearn.metrics.confusion_matrix` and `precision_recall_fscore_support` with
/// `average="macro"` and `zero_division=0`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfusionMatrix {
    name: &'static str,
    classes: usize,
    /// `[classes, classes + 1]`: by label, then by prediction, of which the last is none.
    counts: Vec<f64>,
}

impl ConfusionMatrix {
    /// A matrix of `classes` classes without examples; `name` is the prefix of its values in reports.
    pub fn new(name: &'static str, classes: usize) -> Self {
        ConfusionMatrix {
            name,
            classes,
            counts: vec![0.0; classes * (classes + 1)],
        }
    }

    /// Counts the examples of a replica's batch.
    ///
    /// Shapes: logits `[batch, classes]`, labels `[batch]`.
    ///
    /// # Errors
    /// There are other classes than in the matrix, or another number of labels than predictions;
    /// nothing is counted then.
    pub fn update(&mut self, logits: &Tensor<2>, labels: &Tensor<1, Int>) -> Result<()> {
        let classes = logits.dims()[1];
        ensure!(
            classes == self.classes,
            "`{}` counts {} classes, and the predictions have {classes}",
            self.name,
            self.classes
        );
        let (predicted, is_invalid) = predicted_classes(logits); // [batch] each
        let predicted = predicted.mask_fill(is_invalid, classes as i64).into_data(); // [batch]
        let labels = labels.clone().into_data(); // [batch]
        ensure!(
            predicted.num_elements() == labels.num_elements(),
            "`{}` got {} predictions for {} labels",
            self.name,
            predicted.num_elements(),
            labels.num_elements()
        );
        // All are checked before any is counted.
        if let Some(label) = labels
            .iter::<i64>()
            .find(|label| !(0..classes as i64).contains(label))
        {
            bail!(
                "`{}` met the label {label}, and there are {classes} classes",
                self.name
            );
        }
        for (label, predicted) in labels.iter::<i64>().zip(predicted.iter::<i64>()) {
            self.counts[label as usize * (classes + 1) + predicted as usize] += 1.0;
        }
        Ok(())
    }

    /// Examples of class `label` that were taken for class `predicted`.
    pub fn get(&self, label: usize, predicted: usize) -> usize {
        self.of_label(label)[predicted] as usize
    }

    /// Examples of class `label` that were taken for no class, as their predictions are not finite.
    pub fn unpredicted(&self, label: usize) -> usize {
        self.get(label, self.classes)
    }

    /// Examples of class `label` by prediction: `[classes + 1]`, of which the last is none.
    fn of_label(&self, label: usize) -> &[f64] {
        &self.counts[label * (self.classes + 1)..][..=self.classes]
    }

    /// The share of what was taken for the class that belongs to it; 0 where nothing was.
    pub fn precision(&self, class: usize) -> f64 {
        let predicted = (0..self.classes).map(|label| self.get(label, class)).sum();
        ratio(self.get(class, class), predicted)
    }

    /// The share of the class that was taken for it; 0 where the class has no example.
    pub fn recall(&self, class: usize) -> f64 {
        let labelled = self.of_label(class).iter().sum::<f64>() as usize;
        ratio(self.get(class, class), labelled)
    }

    /// The harmonic mean of precision and recall; 0 where both are.
    pub fn f1(&self, class: usize) -> f64 {
        let (precision, recall) = (self.precision(class), self.recall(class));
        match precision + recall {
            0.0 => 0.0,
            sum => 2.0 * precision * recall / sum,
        }
    }

    fn named(&self, value: &str) -> String {
        format!("{}_{value}", self.name)
    }

    /// The mean over the classes that have examples or predictions.
    fn macro_mean(&self, value: impl Fn(usize) -> f64) -> f64 {
        let occurs = |class: &usize| {
            let is_label = self.of_label(*class).iter().any(|count| *count > 0.0);
            is_label || (0..self.classes).any(|label| self.get(label, *class) > 0)
        };
        let values: Vec<f64> = (0..self.classes).filter(occurs).map(value).collect();
        values.iter().sum::<f64>() / values.len().max(1) as f64
    }
}

fn ratio(part: usize, whole: usize) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

impl Metric for ConfusionMatrix {
    fn name(&self) -> &'static str {
        self.name
    }

    fn count(&self) -> usize {
        self.counts.iter().sum::<f64>() as usize
    }

    fn state(&self) -> Vec<f64> {
        self.counts.clone()
    }

    fn add_state(&mut self, state: &[f64]) -> Result<()> {
        ensure!(
            state.len() == self.counts.len(),
            "the state of `{}` has {} counts, and {} classes need {}",
            self.name,
            state.len(),
            self.classes,
            self.counts.len()
        );
        for (count, more) in self.counts.iter_mut().zip(state) {
            *count += more;
        }
        Ok(())
    }

    fn results(&self) -> Vec<(String, f64)> {
        vec![
            (
                self.named("precision"),
                self.macro_mean(|class| self.precision(class)),
            ),
            (
                self.named("recall"),
                self.macro_mean(|class| self.recall(class)),
            ),
            (self.named("f1"), self.macro_mean(|class| self.f1(class))),
        ]
    }

    fn reset(&mut self) {
        self.counts.fill(0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribute::visible_devices;

    const NAN: f32 = f32::NAN;
    const INFINITY: f32 = f32::INFINITY;

    /// Logits of three classes, and the label; the only example of the third has no prediction.
    const EXAMPLES: [([f32; 3], i32); 8] = [
        ([2.0, 1.0, -INFINITY], 0),
        ([2.0, 1.0, 0.0], 0),
        ([NAN, 1.0, 0.0], 0),
        ([2.0, 1.0, 0.0], 1),
        ([1.0, 2.0, 0.0], 1),
        ([0.0, INFINITY, 0.0], 1),
        ([-INFINITY; 3], 1),
        ([NAN; 3], 2),
    ];

    #[test]
    fn examples_without_a_prediction_count_for_the_recall_alone() {
        for device in visible_devices() {
            let counted = |examples: &[([f32; 3], i32)]| {
                let (logits, labels): (Vec<_>, Vec<_>) = examples.iter().copied().unzip();
                let logits = Tensor::<1>::from_floats(&logits.concat()[..], &device);
                let labels = Tensor::from_ints(&labels[..], &device);
                let mut confusion = ConfusionMatrix::new("confusion", 3);
                let logits = logits.reshape([examples.len(), 3]);
                confusion.update(&logits, &labels).unwrap();
                confusion
            };
            let confusion = counted(&EXAMPLES);
            let by_class = |value: &dyn Fn(usize) -> usize| [0, 1, 2].map(value);
            assert_eq!(by_class(&|label| confusion.get(label, 0)), [2, 1, 0]);
            assert_eq!(by_class(&|label| confusion.get(label, 1)), [0, 1, 0]);
            assert_eq!(by_class(&|label| confusion.get(label, 2)), [0, 0, 0]);
            assert_eq!(by_class(&|label| confusion.unpredicted(label)), [1, 2, 1]);
            assert_eq!(confusion.count(), 8);
            let values = |value: &dyn Fn(usize) -> f64| [0, 1, 2].map(value);
            let precision = values(&|class| confusion.precision(class));
            assert_eq!(precision, [2.0 / 3.0, 1.0, 0.0]);
            let recall = values(&|class| confusion.recall(class));
            assert_eq!(recall, [2.0 / 3.0, 0.25, 0.0]);
            // The third class occurs, so it belongs to the means.
            let expected = [5.0 / 9.0, 11.0 / 36.0, (2.0 / 3.0 + 0.4) / 3.0];
            for ((name, value), expected) in confusion.results().into_iter().zip(expected) {
                assert!((value - expected).abs() < 1e-12, "{name} is {value}");
            }
            let (first, second) = EXAMPLES.split_at(3);
            let mut merged = counted(first);
            merged.add_state(&counted(second).state()).unwrap();
            assert_eq!(merged, confusion, "merged of two replicas");
        }
    }
}
