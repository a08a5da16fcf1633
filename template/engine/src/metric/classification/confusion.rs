//! The confusion matrix of a classifier, with its statistics.

use std::cell::{Ref, RefCell};

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::{Int, Tensor};

use super::{
    accuracy::predicted_classes,
    labels::{flat, flat_labels, label_of_no_class},
};
use crate::{
    metric::{Metric, unread::Unread},
    observations::{ensure_labels_fit, no_class},
};

/// A statistic of a [`ConfusionMatrix`]. Macro means are over the classes that occur as a label or a
/// prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Statistic {
    /// `NAME_accuracy`: the share of correct predictions.
    Accuracy,
    /// `NAME_precision`: the macro mean of [`ConfusionMatrix::precision`].
    Precision,
    /// `NAME_recall`: the macro mean of [`ConfusionMatrix::recall`].
    Recall,
    /// `NAME_f1`: the macro mean of [`ConfusionMatrix::f1`].
    F1,
    /// `NAME_iou`: the macro mean of [`ConfusionMatrix::iou`].
    ///
    /// Source: `tf.keras.metrics.MeanIoU`; `torchmetrics.JaccardIndex` with `average="macro"`.
    Iou,
    /// `NAME_dice`: the macro mean of [`ConfusionMatrix::dice`], which is that of F1.
    Dice,
    /// `NAME_specificity`: the macro mean of [`ConfusionMatrix::specificity`].
    Specificity,
    /// `NAME_balanced_accuracy`: [`ConfusionMatrix::balanced_accuracy`].
    BalancedAccuracy,
    /// `NAME_iou_0`, `NAME_iou_1` ..: [`ConfusionMatrix::iou`] of each class that occurs.
    PerClassIou,
    /// `NAME_precision_3`: [`ConfusionMatrix::precision`] of class 3, such as a rare one.
    PrecisionOf(usize),
    /// `NAME_recall_3`: [`ConfusionMatrix::recall`] of class 3.
    RecallOf(usize),
    /// `NAME_f1_3`: [`ConfusionMatrix::f1`] of class 3.
    F1Of(usize),
}

impl Statistic {
    /// The class of a statistic of one class.
    fn class(self) -> Option<usize> {
        match self {
            Statistic::PrecisionOf(class) | Statistic::RecallOf(class) | Statistic::F1Of(class) => {
                Some(class)
            }
            _ => None,
        }
    }
}

/// Default statistics, unless changed by [`ConfusionMatrix::reporting`].
const REPORTED: &[Statistic] = &[Statistic::Precision, Statistic::Recall, Statistic::F1];

/// The confusion matrix of observations (labelled examples, or pixels or tokens of them), with precision,
/// recall, F1, intersection over union and others from the total counts.
///
/// An observation with a NaN logit, or whose largest logit is infinite, counts for its class as predicted
/// as none: it lowers the recall and intersection over union of its class and the accuracy, but no
/// precision.
///
/// Source: `sklearn.metrics.confusion_matrix` and `precision_recall_fscore_support` with
/// `average="macro"` and `zero_division=0`.
#[derive(Clone, Debug)]
pub struct ConfusionMatrix {
    name: &'static str,
    classes: usize,
    reported: &'static [Statistic],
    ignored: Option<i64>,
    /// Number of examples.
    examples: f64,
    counted: RefCell<Counted>,
}

#[derive(Clone, Debug)]
struct Counted {
    /// `[classes, classes + 1]`: by label, then by prediction, the last of which is none.
    counts: Vec<f64>,
    /// Labels, NaN if ignored, and predictions.
    unread: Unread<2>,
    /// A label of no class that a read met.
    invalid: Option<f64>,
}

impl Counted {
    /// Counts what is still to be read. A batch with an invalid label is left out.
    fn read(&mut self, classes: usize) -> Result<()> {
        for [labels, predicted] in self.unread.read()? {
            if let Some(label) = label_of_no_class(&labels, classes) {
                self.invalid = Some(label);
                continue;
            }
            for (label, predicted) in labels.into_iter().zip(predicted) {
                if !label.is_nan() {
                    self.counts[label as usize * (classes + 1) + predicted as usize] += 1.0;
                }
            }
        }
        Ok(())
    }
}

impl ConfusionMatrix {
    /// Creates an empty matrix of `classes` classes; `name` is the prefix of its values in reports:
    /// `NAME_precision`, `NAME_recall` and `NAME_f1`.
    pub fn new(name: &'static str, classes: usize) -> Self {
        ConfusionMatrix {
            name,
            classes,
            reported: REPORTED,
            ignored: None,
            examples: 0.0,
            counted: RefCell::new(Counted {
                counts: vec![0.0; classes * (classes + 1)],
                unread: Unread::default(),
                invalid: None,
            }),
        }
    }

    /// Sets the reported statistics, in order. [`update`](Self::update) refuses those of a class that does not
    /// exist.
    #[must_use]
    pub fn reporting(mut self, statistics: &'static [Statistic]) -> Self {
        self.reported = statistics;
        self
    }

    /// Ignores observations with this label, such as padding; it may be outside of the classes.
    ///
    /// Source: `ignore_class` of `tf.keras.metrics.MeanIoU`.
    #[must_use]
    pub fn ignoring(mut self, label: i64) -> Self {
        self.ignored = Some(label);
        self
    }

    /// Adds the observations of a replica's batch. Those of a GPU are read some batches later.
    ///
    /// Shapes: logits `[batch, classes, ..]`, labels `[batch, ..]`.
    ///
    /// # Errors
    /// The number of classes differs from the matrix, a reported class does not exist, the shapes do not match,
    /// or a label is neither that of a class nor ignored; nothing is added then. On a GPU, such a label is an
    /// error of a later call, at the latest of that which merges the states of replicas. A device failed.
    pub fn update<const D: usize, const E: usize>(
        &mut self,
        logits: &Tensor<D>,
        labels: &Tensor<E, Int>,
    ) -> Result<()> {
        self.count(logits, labels)
            .with_context(|| format!("`{}` cannot count a batch", self.name))
    }

    fn count<const D: usize, const E: usize>(
        &mut self,
        logits: &Tensor<D>,
        labels: &Tensor<E, Int>,
    ) -> Result<()> {
        ensure_labels_fit(logits.dims(), labels.dims())?;
        let (batch, classes) = (logits.dims()[0], logits.dims()[1]);
        ensure!(
            classes == self.classes,
            "it has {} classes, and the predictions have {classes}",
            self.classes
        );
        let mut reported = self.reported.iter().filter_map(|one| one.class());
        if let Some(class) = reported.find(|class| *class >= classes) {
            bail!("it reports class {class}, and the {classes} classes are numbered from 0");
        }
        let (predicted, is_invalid) = predicted_classes(logits); // [batch, 1, ..] each
        let predicted = predicted.mask_fill(is_invalid, classes as i64); // [batch, 1, ..]
        let labels = flat_labels(labels, self.ignored); // [observations]
        let counted = self.counted.get_mut();
        if counted.unread.push([labels, flat(predicted)]) {
            counted.read(classes)?;
        }
        if let Some(label) = counted.invalid.take() {
            bail!(no_class(label, classes));
        }
        self.examples += batch as f64;
        Ok(())
    }

    /// The counts, `[classes, classes + 1]`.
    ///
    /// # Panics
    /// A device failed.
    fn counts(&self) -> Ref<'_, Vec<f64>> {
        let read = self.counted.borrow_mut().read(self.classes);
        read.expect("a device that gives labels and predictions");
        Ref::map(self.counted.borrow(), |counted| &counted.counts)
    }

    /// Number of observations of class `label` predicted as class `predicted`.
    pub fn get(&self, label: usize, predicted: usize) -> usize {
        self.counts()[label * (self.classes + 1) + predicted] as usize
    }

    /// Number of observations of class `label` without a finite prediction.
    pub fn unpredicted(&self, label: usize) -> usize {
        self.get(label, self.classes)
    }

    /// Number of observations predicted as the class.
    fn taken_for(&self, class: usize) -> usize {
        (0..self.classes).map(|label| self.get(label, class)).sum()
    }

    /// Number of observations labelled as the class.
    fn labelled(&self, class: usize) -> usize {
        (0..=self.classes).map(|other| self.get(class, other)).sum()
    }

    /// The share of correct predictions; 0 without observations.
    pub fn accuracy(&self) -> f64 {
        let right = (0..self.classes).map(|class| self.get(class, class)).sum();
        ratio(right, self.observations())
    }

    /// True positives over predictions of the class; 0 without predictions.
    pub fn precision(&self, class: usize) -> f64 {
        ratio(self.get(class, class), self.taken_for(class))
    }

    /// True positives over observations of the class; 0 without observations.
    pub fn recall(&self, class: usize) -> f64 {
        ratio(self.get(class, class), self.labelled(class))
    }

    /// The harmonic mean of precision and recall; 0 if both are 0.
    pub fn f1(&self, class: usize) -> f64 {
        let (precision, recall) = (self.precision(class), self.recall(class));
        match precision + recall {
            0.0 => 0.0,
            sum => 2.0 * precision * recall / sum,
        }
    }

    /// The intersection over union, or Jaccard index, of labels and predictions of the class; 0 if the class
    /// does not occur.
    ///
    /// Source: `tf.keras.metrics.IoU`; `torchmetrics.JaccardIndex`; `sklearn.metrics.jaccard_score`.
    pub fn iou(&self, class: usize) -> f64 {
        let both = self.get(class, class);
        ratio(both, self.labelled(class) + self.taken_for(class) - both)
    }

    /// The Dice score, the name of F1 in segmentation: twice the intersection over the sum of labels and
    /// predictions; 0 if the class does not occur.
    ///
    /// Source: `torchmetrics.segmentation.DiceScore` with `aggregation_level="global"`.
    pub fn dice(&self, class: usize) -> f64 {
        let both = self.get(class, class);
        ratio(2 * both, self.labelled(class) + self.taken_for(class))
    }

    /// True negatives over observations of other classes, which is recall of "not the class"; 0 without
    /// observations of other classes.
    ///
    /// Source: `torchmetrics.Specificity` with `average="none"`.
    pub fn specificity(&self, class: usize) -> f64 {
        let others = self.observations() - self.labelled(class);
        let mistaken = self.taken_for(class) - self.get(class, class);
        ratio(others - mistaken, others)
    }

    /// The mean of [`recall`](Self::recall) over the classes that have observations; 0 without observations.
    /// [`Statistic::Recall`] also includes classes that are only predicted, with a recall of 0.
    ///
    /// Source: `sklearn.metrics.balanced_accuracy_score`.
    pub fn balanced_accuracy(&self) -> f64 {
        let classes = (0..self.classes).filter(|class| self.labelled(*class) > 0);
        mean(classes.map(|class| self.recall(class)))
    }

    /// The values of a statistic, by name.
    fn statistic(&self, statistic: Statistic) -> Vec<(String, f64)> {
        let (name, value) = match statistic {
            Statistic::Accuracy => ("accuracy", self.accuracy()),
            Statistic::Precision => ("precision", self.macro_mean(Self::precision)),
            Statistic::Recall => ("recall", self.macro_mean(Self::recall)),
            Statistic::F1 => ("f1", self.macro_mean(Self::f1)),
            Statistic::Iou => ("iou", self.macro_mean(Self::iou)),
            Statistic::Dice => ("dice", self.macro_mean(Self::dice)),
            Statistic::Specificity => ("specificity", self.macro_mean(Self::specificity)),
            Statistic::BalancedAccuracy => ("balanced_accuracy", self.balanced_accuracy()),
            Statistic::PrecisionOf(class) => {
                return self.of_class("precision", class, Self::precision);
            }
            Statistic::RecallOf(class) => return self.of_class("recall", class, Self::recall),
            Statistic::F1Of(class) => return self.of_class("f1", class, Self::f1),
            Statistic::PerClassIou => {
                let named = |class| (format!("{}_iou_{class}", self.name), self.iou(class));
                return self.occurring().map(named).collect();
            }
        };
        vec![(format!("{}_{name}", self.name), value)]
    }

    /// The value of one class; none if it does not exist.
    fn of_class(
        &self,
        name: &str,
        class: usize,
        value: fn(&Self, usize) -> f64,
    ) -> Vec<(String, f64)> {
        match class < self.classes {
            true => vec![(format!("{}_{name}_{class}", self.name), value(self, class))],
            false => Vec::new(),
        }
    }

    /// The classes that have observations or predictions.
    fn occurring(&self) -> impl Iterator<Item = usize> {
        (0..self.classes).filter(|class| self.labelled(*class) + self.taken_for(*class) > 0)
    }

    /// The mean over the classes that have observations or predictions.
    fn macro_mean(&self, value: impl Fn(&Self, usize) -> f64) -> f64 {
        mean(self.occurring().map(|class| value(self, class)))
    }
}

/// The mean; 0 without values.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let values: Vec<f64> = values.collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
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

    fn examples(&self) -> usize {
        self.examples as usize
    }

    fn observations(&self) -> usize {
        self.counts().iter().sum::<f64>() as usize
    }

    fn read(&self) -> Result<()> {
        let counted = &mut *self.counted.borrow_mut();
        counted.read(self.classes)?;
        match counted.invalid {
            None => Ok(()),
            Some(label) => bail!(
                "`{}` cannot count a batch: {}",
                self.name,
                no_class(label, self.classes)
            ),
        }
    }

    /// # Panics
    /// Those of [`Self::read`](Metric::read), if that was not called.
    fn state(&self) -> Vec<f64> {
        let read = self.read();
        read.unwrap_or_else(|error| panic!("{error:#}"));
        let mut state = self.counts().clone();
        state.push(self.examples);
        state
    }

    fn add_state(&mut self, state: &[f64]) -> Result<()> {
        let counts = &mut self.counted.get_mut().counts;
        ensure!(
            state.len() == counts.len() + 1,
            "the state of `{}` has {} numbers, and {} are needed: the counts of {} classes, and how many \
             examples",
            self.name,
            state.len(),
            counts.len() + 1,
            self.classes
        );
        let sums = counts.iter_mut().chain([&mut self.examples]);
        sums.zip(state).for_each(|(sum, more)| *sum += more);
        Ok(())
    }

    fn results(&self) -> Vec<(String, f64)> {
        let statistics = self.reported.iter().copied();
        statistics.flat_map(|one| self.statistic(one)).collect()
    }

    fn reset(&mut self) {
        let counted = self.counted.get_mut();
        counted.counts.fill(0.0);
        counted.unread = Unread::default();
        counted.invalid = None;
        self.examples = 0.0;
    }
}

impl PartialEq for ConfusionMatrix {
    fn eq(&self, other: &Self) -> bool {
        let settings = |matrix: &Self| (matrix.name, matrix.reported, matrix.ignored);
        settings(self) == settings(other) && self.state() == other.state()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::{metric::metric_states, replica::visible_devices};

    const NAN: f32 = f32::NAN;
    const INFINITY: f32 = f32::INFINITY;

    /// Logits of three classes, and the label; the only example of the third class has no finite prediction.
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

    fn counted(examples: &[([f32; 3], i32)], device: &Device) -> ConfusionMatrix {
        let (logits, labels): (Vec<_>, Vec<_>) = examples.iter().copied().unzip();
        let logits = Tensor::<1>::from_floats(&logits.concat()[..], device);
        let logits = logits.reshape([examples.len(), 3]); // [batch, 3]
        let labels = Tensor::<1, Int>::from_ints(&labels[..], device);
        let mut confusion = ConfusionMatrix::new("confusion", 3);
        confusion.update(&logits, &labels).unwrap();
        confusion
    }

    #[test]
    fn examples_without_a_prediction_count_for_the_recall_alone() {
        for device in visible_devices() {
            let confusion = counted(&EXAMPLES, &device);
            let by_class = |value: &dyn Fn(usize) -> usize| [0, 1, 2].map(value);
            assert_eq!(by_class(&|label| confusion.get(label, 0)), [2, 1, 0]);
            assert_eq!(by_class(&|label| confusion.get(label, 1)), [0, 1, 0]);
            assert_eq!(by_class(&|label| confusion.get(label, 2)), [0, 0, 0]);
            assert_eq!(by_class(&|label| confusion.unpredicted(label)), [1, 2, 1]);
            assert_eq!((confusion.examples(), confusion.observations()), (8, 8));
            let values = |value: &dyn Fn(usize) -> f64| [0, 1, 2].map(value);
            let precision = values(&|class| confusion.precision(class));
            assert_eq!(precision, [2.0 / 3.0, 1.0, 0.0]);
            let recall = values(&|class| confusion.recall(class));
            assert_eq!(recall, [2.0 / 3.0, 0.25, 0.0]);
            // The third class occurs, so it is included in the means.
            let expected = [5.0 / 9.0, 11.0 / 36.0, (2.0 / 3.0 + 0.4) / 3.0];
            for ((name, value), expected) in confusion.results().into_iter().zip(expected) {
                assert!((value - expected).abs() < 1e-12, "{name} is {value}");
            }
            let (first, second) = EXAMPLES.split_at(3);
            let mut merged = counted(first, &device);
            merged.add_state(&counted(second, &device).state()).unwrap();
            assert_eq!(merged, confusion, "merged of two replicas");
        }
    }

    /// Two masks of 2 x 2 pixels over three classes; 255 is ignored, and the last class does not occur.
    const LABELS: [[[i32; 2]; 2]; 2] = [[[0, 0], [1, 1]], [[0, 255], [1, 255]]];
    const PREDICTED: [[[i32; 2]; 2]; 2] = [[[0, 1], [1, 1]], [[0, 0], [0, 1]]];

    fn masks(examples: std::ops::Range<usize>) -> ConfusionMatrix {
        let device = Device::flex();
        let part = |classes: [[[i32; 2]; 2]; 2]| {
            let classes = Tensor::<3, Int>::from_ints(classes, &device);
            classes.narrow(0, examples.start, examples.len()) // [batch, 2, 2]
        };
        let logits = part(PREDICTED).one_hot::<4>(3).float(); // [batch, 2, 2, 3]
        let mut confusion = ConfusionMatrix::new("mask", 3).ignoring(255);
        let logits = logits.permute([0, 3, 1, 2]); // [batch, 3, 2, 2]
        confusion.update(&logits, &part(LABELS)).unwrap();
        confusion
    }

    #[test]
    fn pixels_are_counted_but_for_those_that_are_ignored() {
        let confusion = masks(0..2);
        let counts = [0, 1].map(|label| [0, 1, 2].map(|class| confusion.get(label, class)));
        assert_eq!(counts, [[2, 1, 0], [1, 2, 0]]);
        assert_eq!((confusion.examples(), confusion.observations()), (2, 6));
        let mut merged = masks(0..1);
        merged.add_state(&masks(1..2).state()).unwrap();
        assert_eq!(merged, confusion, "merged of two replicas");
        merged.reset();
        assert_eq!((merged.examples(), merged.observations()), (0, 0));
    }

    #[test]
    fn statistics_that_are_chosen_are_reported_in_their_order() {
        use Statistic::*;
        let confusion = masks(0..2).reporting(&[PerClassIou, Dice, Iou, Accuracy]);
        // Per class: 2 true positives, 1 false negative, 1 false positive.
        let expected = [
            ("mask_iou_0", 2.0 / 4.0),
            ("mask_iou_1", 2.0 / 4.0),
            ("mask_dice", 4.0 / 6.0),
            ("mask_iou", 2.0 / 4.0),
            ("mask_accuracy", 4.0 / 6.0),
        ];
        let results = confusion.results();
        let results: Vec<_> = results
            .iter()
            .map(|(name, value)| (&name[..], *value))
            .collect();
        assert_eq!(results, expected);
    }

    #[test]
    fn statistics_of_one_class_are_reported_also_if_it_does_not_occur() {
        use Statistic::*;
        let statistics = &[RecallOf(1), F1Of(1), PrecisionOf(1), F1Of(2)];
        let confusion = counted(&EXAMPLES, &Device::flex()).reporting(statistics);
        let expected = [
            ("confusion_recall_1", 0.25),
            ("confusion_f1_1", 0.4),
            ("confusion_precision_1", 1.0),
            ("confusion_f1_2", 0.0),
        ];
        let named = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(confusion.results(), named);
        let names = ConfusionMatrix::new("confusion", 3).reporting(statistics);
        assert_eq!(names.results(), named.map(|(name, _)| (name, 0.0)));
    }

    #[test]
    fn a_class_that_does_not_exist_is_not_reported() {
        let mut confusion =
            ConfusionMatrix::new("confusion", 3).reporting(&[Statistic::RecallOf(3)]);
        assert_eq!(confusion.results(), []);
        let (logits, labels) = (
            Tensor::<2>::zeros([1, 3], &Device::flex()),
            Tensor::<1, Int>::zeros([1], &Device::flex()),
        );
        let error = confusion.update(&logits, &labels).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "`confusion` cannot count a batch: it reports class 3, and the 3 classes are numbered from 0"
        );
    }

    #[test]
    fn dice_is_f1_and_iou_follows_from_it() {
        for device in visible_devices() {
            let confusion = counted(&EXAMPLES, &device);
            // Of 4 examples of the second class, 1 is predicted correctly and 2 have no finite prediction.
            assert_eq!(confusion.iou(0), 2.0 / 4.0);
            assert_eq!(confusion.iou(1), 1.0 / 4.0);
            assert_eq!(confusion.iou(2), 0.0);
            for class in 0..3 {
                let (dice, f1, iou) = (
                    confusion.dice(class),
                    confusion.f1(class),
                    confusion.iou(class),
                );
                assert!((dice - f1).abs() < 1e-12, "{dice} and {f1}");
                assert!((dice - 2.0 * iou / (1.0 + iou)).abs() < 1e-12);
            }
            assert_eq!(confusion.accuracy(), 3.0 / 8.0);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_not_counted() {
        let device = Device::flex();
        let logits = Tensor::<4>::zeros([2, 3, 4, 5], &device);
        let mut confusion = ConfusionMatrix::new("mask", 3);
        let refused = |result: Result<()>| format!("{:#}", result.unwrap_err());
        let labels = Tensor::<3, Int>::zeros([2, 5, 4], &device);
        assert_eq!(
            refused(confusion.update(&logits, &labels)),
            "`mask` cannot count a batch: logits of shape [2, 3, 4, 5] need labels of shape [2, 4, 5], \
             and they have [2, 5, 4]"
        );
        let labels = Tensor::<1, Int>::zeros([2], &device);
        assert!(refused(confusion.update(&logits, &labels)).contains("and they have [2]"));
        let labels = Tensor::<3, Int>::full([2, 4, 5], 255, &device);
        assert!(refused(confusion.update(&logits, &labels)).contains("`ignoring(255)`"));
        let other = Tensor::<4>::zeros([2, 2, 4, 5], &device);
        assert!(refused(confusion.update(&other, &labels)).contains("it has 3 classes"));
        assert_eq!((confusion.examples(), confusion.observations()), (0, 0));
    }

    /// As on a GPU, whose labels are read late.
    #[test]
    fn a_label_of_no_class_is_refused_by_the_merge_at_the_latest() {
        let mut confusion = ConfusionMatrix::new("mask", 2);
        let mut push = |labels: [f32; 3]| {
            let pair = [labels, [1.0, 0.0, 1.0]];
            let pair = pair.map(|values| Tensor::from_floats(values, &Device::flex()));
            confusion.counted.get_mut().unread.push(pair);
            confusion.clone()
        };
        let counted = push([1.0, NAN, 0.0]);
        assert_eq!((counted.get(1, 1), counted.get(0, 1)), (1, 1));
        assert_eq!(counted.observations(), 2);
        let error = metric_states(&[&mut push([1.0, 7.0, 0.0])]).unwrap_err();
        assert_eq!(
            format!("{error:#}"),
            "`mask` cannot count a batch: it met the label 7, and there are 2 classes; `ignoring(7)` would \
             leave it out"
        );
    }
}
