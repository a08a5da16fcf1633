//! Cross-entropy of labels and logits, with ignored labels, class weights and label smoothing.

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::{Bool, Int, Tensor, activation::log_softmax};

use super::{Reduction, sum_per_example};
use crate::{
    anomalies::Watch,
    layers,
    observations::{ensure_labels_fit_classes, ensure_labels_of_classes},
};

/// Cross-entropy between integer labels and logits, of examples or of observations such as pixels and
/// tokens.
///
/// Source: `tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)` with its `ignore_class`; classes
/// in the second dimension, unless they are [last](Self::with_classes_last), and label smoothing as in
/// `torch.nn.CrossEntropyLoss`.
#[derive(Clone, Debug, Default)]
pub struct SparseCategoricalCrossentropy {
    /// The reduction over the examples of a batch.
    pub reduction: Reduction,
    label_smoothing: f64,
    class_weights: Option<Vec<f32>>,
    ignored: Option<i64>,
    classes_last: bool,
}

impl SparseCategoricalCrossentropy {
    /// One loss per example, of all observations, without label smoothing.
    pub fn new() -> Self {
        SparseCategoricalCrossentropy::default()
    }

    /// Sets the reduction.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// Takes logits with classes in the last dimension, `[batch, .., classes]`, such as those of the tokens of a
    /// language model. On the CPU with the feature `cpu-layers`, in `f32` and without smoothing and class weights,
    /// one kernel computes the losses in few passes over memory.
    ///
    /// Source: the logits of `tf.keras.losses.SparseCategoricalCrossentropy`.
    #[must_use]
    pub fn with_classes_last(mut self) -> Self {
        self.classes_last = true;
        self
    }

    /// Sets the label smoothing `s`, the share of the target spread evenly over all classes: the loss of an
    /// observation is `(1 - s) * nll + s * mean`, of the negative log-probabilities of the label and of all
    /// classes.
    ///
    /// Source: `torch.nn.CrossEntropyLoss(label_smoothing=s)`, after Szegedy et al. (2016), "Rethinking the
    /// Inception Architecture for Computer Vision", <https://arxiv.org/abs/1512.00567>.
    #[must_use]
    pub fn with_label_smoothing(mut self, smoothing: f64) -> Self {
        self.label_smoothing = smoothing;
        self
    }

    /// Sets a weight of each class: the loss of an observation is multiplied by that of its label. With label
    /// smoothing, the part of each class is multiplied by that of the class.
    ///
    /// Weights scale losses, and nothing is divided by their sum: the mean over an example and over the
    /// global batch is of all observations, so that an example has the same gradient in whichever batch and
    /// on whichever replica it is. `reduction="mean"` of PyTorch divides by the sum of the weights of the
    /// labels in the batch instead; weights whose mean over the training examples is 1 give losses of the
    /// same size.
    ///
    /// Source: `torch.nn.CrossEntropyLoss(weight, reduction="none")`; `class_weight` of `tf.keras.Model.fit`.
    #[must_use]
    pub fn with_class_weights(mut self, weights: Vec<f32>) -> Self {
        self.class_weights = Some(weights);
        self
    }

    /// Ignores observations with this label, such as padding; it may be outside of the classes. The loss of
    /// an example is the mean over its other observations, or 0 without any. All examples of a batch have
    /// equal weight, however many of their observations are ignored.
    ///
    /// Source: `ignore_class` of Keras and `ignore_index` of PyTorch, whose mean is over a whole batch.
    #[must_use]
    pub fn ignoring(mut self, label: i64) -> Self {
        self.ignored = Some(label);
        self
    }

    /// The losses of a batch, each the mean over the observations of an example.
    ///
    /// Shapes: logits `[batch, classes, ..]`, or `[batch, .., classes]` if classes are last, and labels `[batch,
    /// ..]` in; `[batch]` out, or `[1]` with [`Reduction::Sum`].
    ///
    /// # Errors
    /// The shapes do not match, the smoothing is not from 0 to 1, or the class weights are not one finite
    /// number, 0 or more, for each class. On the CPU only, a label is neither that of a class nor ignored; on
    /// a GPU, whose result is then undefined, the check would stall the queue.
    pub fn forward<const D: usize, const E: usize>(
        &self,
        logits: Tensor<D>,
        labels: Tensor<E, Int>,
    ) -> Result<Tensor<1>> {
        let smoothing = self.label_smoothing;
        ensure!(
            (0.0..=1.0).contains(&smoothing),
            "the label smoothing of a cross-entropy is {smoothing}, and it goes from 0 to 1"
        );
        let dimension = if self.classes_last { D - 1 } else { 1 };
        ensure_labels_fit_classes(logits.dims(), labels.dims(), dimension)?;
        let classes = logits.dims()[dimension];
        ensure_weights_of_classes("a cross-entropy", self.class_weights.as_deref(), classes)?;
        ensure_labels_of_classes(&labels, classes, self.ignored)
            .context("a cross-entropy cannot be computed")?;
        let watch = Watch::begin("SparseCategoricalCrossentropy", None);
        let logits = watch.input(logits);
        let Some(ignored) = self.ignored else {
            let losses = self.of_observations(logits, labels); // [batch, 1, ..]
            return Ok(watch.output(self.reduction.apply(losses)));
        };
        let is_ignored = labels.clone().equal_elem(ignored); // [batch, ..]
        let labels = labels.mask_fill(is_ignored.clone(), 0); // [batch, ..]
        let losses = self.of_observations(logits, labels); // [batch, 1, ..]
        let losses = mean_of_others(losses, is_ignored.unsqueeze_dim(1));
        Ok(watch.output(self.reduction.apply(losses)))
    }

    /// From logits `[batch, classes, ..]`, or `[batch, .., classes]`, and labels `[batch, ..]` to losses `[batch,
    /// 1, ..]`.
    fn of_observations<const D: usize, const E: usize>(
        &self,
        logits: Tensor<D>,
        labels: Tensor<E, Int>,
    ) -> Tensor<D> {
        let weights = self.class_weights.as_deref();
        if self.classes_last && self.label_smoothing == 0.0 && weights.is_none() {
            return layers::cross_entropy(logits, labels).unsqueeze_dim(1);
        }
        let logits = match self.classes_last {
            true => logits.movedim(D - 1, 1),
            false => logits,
        };
        let labels = labels.unsqueeze_dim::<D>(1); // [batch, 1, ..]
        let log_probabilities = log_softmax(logits, 1); // [batch, classes, ..]
        let of_label = losses_of_labels(log_probabilities.clone(), labels, weights); // [batch, 1, ..]
        if self.label_smoothing == 0.0 {
            return of_label;
        }
        let log_probabilities = match weights {
            None => log_probabilities,
            Some(weights) => {
                let weights = Tensor::<1>::from_floats(weights, &log_probabilities.device());
                let mut by_class = [1; D];
                by_class[1] = weights.dims()[0];
                log_probabilities * weights.reshape(by_class) // [batch, classes, ..]
            }
        };
        let of_all = log_probabilities.mean_dim(1).neg(); // [batch, 1, ..]
        of_label * (1.0 - self.label_smoothing) + of_all * self.label_smoothing
    }
}

/// The negative log-probability of each label, times the weight of its class.
///
/// Shapes: log-probabilities `[batch, classes, ..]`, labels `[batch, 1, ..]`, weights `[classes]` in;
/// `[batch, 1, ..]` out.
pub(super) fn losses_of_labels<const D: usize>(
    log_probabilities: Tensor<D>,
    labels: Tensor<D, Int>,
    weights: Option<&[f32]>,
) -> Tensor<D> {
    let losses = log_probabilities.gather(1, labels.clone()).neg(); // [batch, 1, ..]
    match weights {
        None => losses,
        Some(weights) => losses * weights_of_labels(weights, labels),
    }
}

/// The weight of each label.
///
/// Shapes: weights `[classes]`, labels `[batch, 1, ..]` in; `[batch, 1, ..]` out.
fn weights_of_labels<const D: usize>(weights: &[f32], labels: Tensor<D, Int>) -> Tensor<D> {
    let shape = labels.dims();
    let weights = Tensor::<1>::from_floats(weights, &labels.device()); // [classes]
    weights.select(0, labels.reshape([-1])).reshape(shape)
}

/// Checks that there is a finite weight of each class, 0 or more.
pub(super) fn ensure_weights_of_classes(
    loss: &str,
    weights: Option<&[f32]>,
    classes: usize,
) -> Result<()> {
    let Some(weights) = weights else {
        return Ok(());
    };
    ensure!(
        weights.len() == classes,
        "{loss} has {} class weights, and there are {classes} classes",
        weights.len()
    );
    let is_weight = |weight: &f32| weight.is_finite() && *weight >= 0.0;
    match weights.iter().position(|weight| !is_weight(weight)) {
        None => Ok(()),
        Some(class) => bail!(
            "{loss} has the weight {} of class {class}; weights are finite, and 0 or more",
            weights[class]
        ),
    }
}

/// The mean of the losses of each example that are not ignored; 0 if all are.
///
/// Shapes: `[batch, 1, ..]` twice in; `[batch]` out.
fn mean_of_others<const D: usize>(losses: Tensor<D>, is_ignored: Tensor<D, Bool>) -> Tensor<1> {
    let total = sum_per_example(losses.mask_fill(is_ignored.clone(), 0.0)); // [batch]
    let counted = sum_per_example(is_ignored.bool_not().float()); // [batch]
    // The total is 0 if all are ignored.
    total / counted.clamp_min(1.0)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// Logits whose probabilities are 1/2, 1/4 and 1/4.
    const LOGITS: [f32; 3] = [std::f32::consts::LN_2, 0.0, 0.0];
    const LN_2: f64 = std::f64::consts::LN_2;

    #[track_caller]
    fn assert_close(losses: &Tensor<1>, expected: &[f64]) {
        let losses: Vec<f64> = losses.to_data().iter::<f64>().collect();
        assert_eq!(losses.len(), expected.len(), "{losses:?}");
        for (loss, expected) in losses.iter().zip(expected) {
            assert!((loss - expected).abs() < 1e-6, "{losses:?}");
        }
    }

    /// Logits `[2, 3, 2]`, two observations per example, all with these probabilities.
    fn logits(device: &Device) -> Tensor<3> {
        let logits = Tensor::<1>::from_floats(LOGITS, device);
        logits.reshape([1, 3, 1]).expand([2, 3, 2])
    }

    fn labels(labels: [[i32; 2]; 2]) -> Tensor<2, Int> {
        Tensor::from_ints(labels, &Device::flex())
    }

    #[test]
    fn a_loss_is_the_negative_logarithm_of_the_labels_probability() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([LOGITS, LOGITS], &device);
        let labels = Tensor::<1, Int>::from_ints([0, 2], &device);
        let cross_entropy = SparseCategoricalCrossentropy::new();
        let losses = cross_entropy.forward(logits.clone(), labels.clone());
        assert_close(&losses.unwrap(), &[LN_2, 2.0 * LN_2]);
        let sum = cross_entropy.with_reduction(Reduction::Sum);
        assert_close(&sum.forward(logits, labels).unwrap(), &[3.0 * LN_2]);
    }

    #[test]
    fn observations_are_averaged_over_all_but_the_batch() {
        let losses = SparseCategoricalCrossentropy::new()
            .forward(logits(&Device::flex()), labels([[0, 1], [0, 0]]));
        assert_close(&losses.unwrap(), &[1.5 * LN_2, LN_2]);
    }

    #[test]
    fn classes_are_in_the_second_dimension() {
        let device = Device::flex();
        let of_pixels = [[[0.0, 5.0]], [[9.0, 2.0]]]; // [classes, height, width]
        let of_pixels = Tensor::<3>::from_floats(of_pixels, &device).unsqueeze::<4>();
        let right = Tensor::<3, Int>::from_ints([[[1, 0]]], &device);
        let losses = SparseCategoricalCrossentropy::new().forward(of_pixels, right);
        let loss = |margin: f64| f64::ln_1p(f64::exp(-margin));
        assert_close(&losses.unwrap(), &[(loss(9.0) + loss(3.0)) / 2.0]);
    }

    #[test]
    fn classes_may_be_last() {
        let device = Device::flex().autodiff();
        let logits = Tensor::<1>::from_floats(LOGITS, &device).reshape([1, 3, 1]);
        let logits =
            logits.expand([2, 3, 4]) * Tensor::arange(1..9, &device).float().reshape([2, 1, 4]);
        let last = logits.clone().detach().swap_dims(1, 2); // [2, 4, 3]
        let [logits, last] = [logits.detach(), last].map(Tensor::require_grad);
        let labels = Tensor::<2, Int>::from_ints([[0, 2, 1, 9], [9, 0, 0, 1]], &device);
        let plain = || SparseCategoricalCrossentropy::new().ignoring(9);
        for second in [
            plain(),
            plain().with_label_smoothing(0.3),
            plain().with_class_weights(vec![3.0, 0.5, 1.0]),
            plain().with_reduction(Reduction::Sum),
        ] {
            let losses = second.forward(logits.clone(), labels.clone()).unwrap();
            let of_last = second.with_classes_last();
            let of_last = of_last.forward(last.clone(), labels.clone()).unwrap();
            assert_eq!(of_last.dims(), losses.dims());
            let difference = (losses.clone() - of_last.clone()).abs().max();
            assert!(difference.into_scalar::<f32>() < 1e-5);
            let gradient = logits.grad(&losses.sum().backward()).unwrap();
            let of_last = last.grad(&of_last.sum().backward()).unwrap();
            let difference = (gradient - of_last.swap_dims(1, 2)).abs().max();
            assert!(difference.into_scalar::<f32>() < 1e-5);
        }
        let flat = SparseCategoricalCrossentropy::new().with_classes_last();
        let losses = flat.forward(last.reshape([8, 3]), Tensor::<1, Int>::zeros([8], &device));
        assert_eq!(losses.unwrap().dims(), [8]);
    }

    #[test]
    fn smoothing_takes_from_the_label_and_gives_to_all_classes() {
        let smoothed = SparseCategoricalCrossentropy::new().with_label_smoothing(0.3);
        let losses = smoothed.forward(logits(&Device::flex()), labels([[0, 0], [1, 1]]));
        // The mean over the classes is (1 + 2 + 2) / 3 of ln 2.
        let expected = [0.7 + 0.3 * 5.0 / 3.0, 1.4 + 0.3 * 5.0 / 3.0];
        assert_close(&losses.unwrap(), &expected.map(|loss| loss * LN_2));
    }

    #[test]
    fn an_example_is_the_mean_of_what_is_not_ignored() {
        for (smoothing, loss) in [(0.0, 2.0), (0.3, 1.9)] {
            let cross_entropy = SparseCategoricalCrossentropy::new()
                .with_label_smoothing(smoothing)
                .ignoring(-1);
            let labels = labels([[1, -1], [-1, -1]]);
            let losses = cross_entropy.forward(logits(&Device::flex()), labels);
            assert_close(&losses.unwrap(), &[loss * LN_2, 0.0]);
        }
    }

    #[test]
    fn weights_of_classes_scale_losses_and_divide_nothing() {
        let weighted = SparseCategoricalCrossentropy::new()
            .with_class_weights(vec![3.0, 0.5, 0.0])
            .ignoring(-1);
        let labels = labels([[0, 1], [2, -1]]);
        let losses = weighted.forward(logits(&Device::flex()), labels);
        assert_close(&losses.unwrap(), &[(3.0 + 0.5 * 2.0) / 2.0 * LN_2, 0.0]);
    }

    #[test]
    fn what_is_ignored_has_no_gradient() {
        let logits = logits(&Device::flex().autodiff()).require_grad();
        let labels = Tensor::<2, Int>::from_ints([[1, 255], [255, 255]], &logits.device());
        let losses = SparseCategoricalCrossentropy::new()
            .ignoring(255)
            .forward(logits.clone(), labels)
            .unwrap();
        let gradient = logits.grad(&losses.sum().backward()).unwrap(); // [2, 3, 2]
        // Softmax minus one-hot of the only observation that counts.
        let of_first = gradient.clone().slice([0..1, 0..3, 0..1]);
        assert_close(&of_first.reshape([3]), &[0.5, -0.75, 0.25]);
        assert_close(&gradient.abs().sum(), &[1.5]);
    }

    #[test]
    fn labels_that_are_not_ignored_give_the_same_bits() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[0.3, -1.2, 2.7], [1.1, 0.4, -0.6]], &device);
        let labels = Tensor::<1, Int>::from_ints([1, 0], &device);
        let cross_entropy = SparseCategoricalCrossentropy::new();
        let losses = cross_entropy.forward(logits.clone(), labels.clone());
        let ignoring = cross_entropy.ignoring(255).forward(logits, labels);
        assert_eq!(losses.unwrap().to_data(), ignoring.unwrap().to_data());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let device = Device::flex();
        let refused = |result: Result<Tensor<1>>| result.unwrap_err().to_string();
        let cross_entropy = SparseCategoricalCrossentropy::new();
        let flat = Tensor::<1, Int>::zeros([2], &device);
        assert_eq!(
            refused(cross_entropy.forward(logits(&device), flat)),
            "logits of shape [2, 3, 2] need labels of shape [2, 2], and they have [2]"
        );
        let last = cross_entropy.clone().with_classes_last();
        assert_eq!(
            refused(last.forward(logits(&device), labels([[0, 0], [0, 0]]))),
            "logits of shape [2, 3, 2] need labels of shape [2, 3], and they have [2, 2]"
        );
        let recorded = device.clone().autodiff();
        let of_no_class = Tensor::<2, Int>::from_ints([[0, 0, 0], [0, 2, 0]], &recorded);
        let error = last.forward(logits(&device), of_no_class);
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("the label 2, and there are 2"), "{error}");
        let of_no_class = labels([[0, 255], [0, 0]]);
        let error = cross_entropy.forward(logits(&device), of_no_class);
        let error = format!("{:#}", error.unwrap_err());
        assert!(error.contains("the label 255"), "{error}");
        let of_classes = |weights: Vec<f32>| {
            let weighted = cross_entropy.clone().with_class_weights(weights);
            refused(weighted.forward(logits(&device), labels([[0, 0], [0, 0]])))
        };
        assert_eq!(
            of_classes(vec![1.0, 2.0]),
            "a cross-entropy has 2 class weights, and there are 3 classes"
        );
        assert_eq!(
            of_classes(vec![1.0, 2.0, -1.0]),
            "a cross-entropy has the weight -1 of class 2; weights are finite, and 0 or more"
        );
        let smoothed = cross_entropy.with_label_smoothing(f64::NAN);
        let error = refused(smoothed.forward(logits(&device), labels([[0, 0], [0, 0]])));
        assert!(error.contains("from 0 to 1"), "{error}");
    }
}
