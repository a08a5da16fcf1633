//! The expected calibration error of a classifier.

use std::cell::{Ref, RefCell};

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::{FloatDType, Int, Tensor, activation::softmax};

use super::{
    accuracy::predicted_classes,
    labels::{flat, flat_labels, label_of_no_class},
};
use crate::{
    metric::{Metric, unread::Unread, value_by_name},
    observations::{ensure_labels_fit, no_class},
};

/// The expected calibration error: how far the confidence of a classifier, the probability of the class that
/// it predicts, is from its accuracy. Predictions are counted in bins of equal width by confidence, each with
/// its lower bound, and the error is the mean over the bins of |accuracy - mean confidence|, weighted by the
/// predictions in them; from 0 to 1.
///
/// A prediction with a NaN logit, or whose largest logit is infinite, counts as wrong with a confidence of 1.
/// Undefined, and without result, without observations.
///
/// Source: `torchmetrics.CalibrationError(task="multiclass", norm="l1")`, after Guo et al. (2017), "On
/// Calibration of Modern Neural Networks", <https://arxiv.org/abs/1706.04599>.
#[derive(Clone, Debug)]
pub struct CalibrationError {
    name: &'static str,
    bins: usize,
    ignored: Option<i64>,
    counted: RefCell<Counted>,
}

#[derive(Clone, Debug)]
struct Counted {
    examples: f64,
    bins: Vec<Bin>,
    /// Confidences, predictions (the number of classes if invalid), and labels (NaN if ignored).
    unread: Unread<3>,
    /// The number of classes of the last batch.
    classes: usize,
    /// A label of no class that a read met, and the number of classes.
    invalid: Option<(f64, usize)>,
}

/// The predictions of a bin: how many, how many of them are right, and the sum of confidences.
type Bin = [f64; 3];

impl Counted {
    /// A bin more than asked for, of the confidence 1, as in torchmetrics.
    fn new(bins: usize) -> Self {
        Counted {
            examples: 0.0,
            bins: vec![Bin::default(); bins + 1],
            unread: Unread::default(),
            classes: 0,
            invalid: None,
        }
    }

    /// Counts what is still to be read. A batch with an invalid label is left out.
    fn read(&mut self) -> Result<()> {
        for [confidences, predicted, labels] in self.unread.read()? {
            if let Some(label) = label_of_no_class(&labels, self.classes) {
                self.invalid = Some((label, self.classes));
                continue;
            }
            for ((confidence, predicted), label) in
                confidences.into_iter().zip(predicted).zip(labels)
            {
                if !label.is_nan() {
                    self.count(confidence, predicted == label);
                }
            }
        }
        Ok(())
    }

    fn count(&mut self, confidence: f32, is_right: bool) {
        let bins = self.bins.len() - 1;
        let bin = (f64::from(confidence) * bins as f64) as usize;
        let [count, right, sum] = &mut self.bins[bin.min(bins)];
        *count += 1.0;
        *right += f64::from(is_right);
        *sum += f64::from(confidence);
    }
}

impl CalibrationError {
    /// Creates an empty metric with 15 bins, called `name` in reports.
    pub fn new(name: &'static str) -> Self {
        CalibrationError {
            name,
            bins: 15,
            ignored: None,
            counted: RefCell::new(Counted::new(15)),
        }
    }

    /// Sets the number of bins, at least 1.
    #[must_use]
    pub fn with_bins(mut self, bins: usize) -> Self {
        self.bins = bins.max(1);
        self.counted = RefCell::new(Counted::new(self.bins));
        self
    }

    /// Ignores observations with this label, such as padding; it may be outside of the classes.
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
    /// The shapes do not match, or a label is neither that of a class nor ignored; nothing is added then. On
    /// a GPU, such a label is an error of a later call, at the latest of that which merges the states of
    /// replicas. A device failed.
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
        let (predicted, is_invalid) = predicted_classes(logits); // [batch, 1, ..] each
        let probabilities = softmax(logits.clone().detach(), 1); // [batch, classes, ..]
        let confidences = probabilities.max_dim(1).mask_fill(is_invalid.clone(), 1.0); // [batch, 1, ..]
        let predicted = predicted.mask_fill(is_invalid, classes as i64); // [batch, 1, ..]
        let labels = flat_labels(labels, self.ignored); // [observations]
        let counted = self.counted.get_mut();
        if counted.classes != classes {
            counted.read()?;
            counted.classes = classes;
        }
        let confidences = confidences.cast(FloatDType::F32).reshape([-1]); // [observations]
        if counted.unread.push([confidences, flat(predicted), labels]) {
            counted.read()?;
        }
        if let Some((label, classes)) = counted.invalid.take() {
            bail!(no_class(label, classes));
        }
        counted.examples += batch as f64;
        Ok(())
    }

    /// # Panics
    /// A device failed.
    fn counted_bins(&self) -> Ref<'_, Vec<Bin>> {
        let read = self.counted.borrow_mut().read();
        read.expect("a device that gives confidences, predictions and labels");
        Ref::map(self.counted.borrow(), |counted| &counted.bins)
    }

    /// The error; `None` without observations.
    pub fn result(&self) -> Option<f64> {
        let bins = self.counted_bins();
        let total: f64 = bins.iter().map(|[count, ..]| count).sum();
        // The count of a bin cancels in its weight.
        let errors = bins.iter().map(|[_, right, sum]| (right - sum).abs());
        (total > 0.0).then(|| errors.sum::<f64>() / total)
    }
}

impl Metric for CalibrationError {
    fn name(&self) -> &'static str {
        self.name
    }

    fn examples(&self) -> usize {
        self.counted.borrow().examples as usize
    }

    fn observations(&self) -> usize {
        let bins = self.counted_bins();
        bins.iter().map(|[count, ..]| count).sum::<f64>() as usize
    }

    fn read(&self) -> Result<()> {
        let counted = &mut *self.counted.borrow_mut();
        counted.read()?;
        match counted.invalid {
            Some((label, classes)) => {
                let label = no_class(label, classes);
                bail!("`{}` cannot count a batch: {label}", self.name)
            }
            None => Ok(()),
        }
    }

    fn state(&self) -> Vec<f64> {
        let mut state: Vec<f64> = self.counted_bins().iter().flatten().copied().collect();
        state.push(self.counted.borrow().examples);
        state
    }

    fn add_state(&mut self, state: &[f64]) -> Result<()> {
        let counted = self.counted.get_mut();
        let needed = 3 * counted.bins.len() + 1;
        ensure!(
            state.len() == needed,
            "the state of `{}` has {} numbers, and {needed} are needed: 3 of each of {} bins, and how many \
             examples",
            self.name,
            state.len(),
            counted.bins.len()
        );
        let sums = counted.bins.iter_mut().flatten();
        let sums = sums.chain([&mut counted.examples]);
        sums.zip(state).for_each(|(sum, more)| *sum += more);
        Ok(())
    }

    fn results(&self) -> Vec<(String, f64)> {
        value_by_name(self.name, self.result())
    }

    fn reset(&mut self) {
        self.counted = RefCell::new(Counted::new(self.bins));
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::replica::visible_devices;

    const NAN: f32 = f32::NAN;

    #[test]
    fn a_prediction_that_is_not_finite_is_wrong_and_sure() {
        for device in visible_devices() {
            let mut error = CalibrationError::new("calibration").ignoring(255);
            assert_eq!(error.results(), []);
            let logits = [[0.0, 0.0], [NAN, 0.0], [f32::INFINITY, 0.0], [9.0, 9.0]];
            let logits = Tensor::<2>::from_floats(logits, &device);
            let labels = Tensor::<1, Int>::from_ints([0, 0, 0, 255], &device);
            error.update(&logits, &labels).unwrap();
            // Half sure and right, then twice sure and wrong.
            assert_eq!(error.result(), Some((0.5 + 1.0 + 1.0) / 3.0));
            assert_eq!((error.examples(), error.observations()), (4, 3));
            error.reset();
            assert_eq!((error.examples(), error.result()), (0, None));
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_not_counted() {
        let device = Device::flex();
        let mut error = CalibrationError::new("calibration");
        let logits = Tensor::<2>::zeros([2, 3], &device);
        let refused = |result: Result<()>| format!("{:#}", result.unwrap_err());
        let labels = Tensor::<1, Int>::zeros([3], &device);
        assert_eq!(
            refused(error.update(&logits, &labels)),
            "`calibration` cannot count a batch: logits of shape [2, 3] need labels of shape [2], and they have [3]"
        );
        let labels = Tensor::<1, Int>::full([2], 3, &device);
        assert!(refused(error.update(&logits, &labels)).contains("`ignoring(3)`"));
        assert_eq!((error.examples(), error.observations()), (0, 0));
        let of_two = CalibrationError::new("calibration").with_bins(2).state();
        let message = refused(error.add_state(&of_two));
        assert!(
            message.contains("has 10 numbers, and 49 are needed"),
            "{message}"
        );
    }

    /// As on a GPU, whose labels are read late.
    #[test]
    fn a_label_of_no_class_is_refused_by_the_merge_at_the_latest() {
        let mut error = CalibrationError::new("calibration");
        let batch = [[0.5, 0.9], [1.0, 0.0], [1.0, 2.0]];
        let batch = batch.map(|values| Tensor::from_floats(values, &Device::flex()));
        error.counted.get_mut().classes = 2;
        error.counted.get_mut().unread.push(batch);
        let message = format!("{:#}", error.read().unwrap_err());
        assert!(
            message.contains("the label 2, and there are 2 classes"),
            "{message}"
        );
    }
}
