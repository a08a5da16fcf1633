use anyhow::{Result, bail, ensure};
use burn::tensor::{Int, Tensor};

use super::Metric;

/// How often examples of each class were taken for each class, with the precision, recall and F1
/// that follow.
///
/// Source: `sklearn.metrics.confusion_matrix` and `precision_recall_fscore_support` with
/// `average="macro"` and `zero_division=0`.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfusionMatrix {
    name: &'static str,
    classes: usize,
    /// `[classes, classes]`: by label, then by prediction.
    counts: Vec<f64>,
}

impl ConfusionMatrix {
    pub fn new(name: &'static str, classes: usize) -> Self {
        ConfusionMatrix {
            name,
            classes,
            counts: vec![0.0; classes * classes],
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
        let predicted = logits.clone().argmax(1).into_data(); // [batch, 1]
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
            self.counts[label as usize * classes + predicted as usize] += 1.0;
        }
        Ok(())
    }

    /// Examples of class `label` that were taken for class `predicted`.
    pub fn get(&self, label: usize, predicted: usize) -> usize {
        self.counts[label * self.classes + predicted] as usize
    }

    /// The share of what was taken for the class that belongs to it; 0 where nothing was.
    pub fn precision(&self, class: usize) -> f64 {
        let predicted = (0..self.classes).map(|label| self.get(label, class)).sum();
        ratio(self.get(class, class), predicted)
    }

    /// The share of the class that was taken for it; 0 where the class has no example.
    pub fn recall(&self, class: usize) -> f64 {
        let labelled = (0..self.classes)
            .map(|predicted| self.get(class, predicted))
            .sum();
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
            (0..self.classes).any(|other| self.get(*class, other) + self.get(other, *class) > 0)
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
