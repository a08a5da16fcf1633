//! Focal losses, of labels and of binary targets.

use anyhow::{Context, Result, ensure};
use burn::tensor::{
    Int, Tensor,
    activation::{log_softmax, sigmoid, softmax},
};

use super::{
    Reduction,
    binary::cross_entropies,
    cross_entropy::{ensure_weights_of_classes, losses_of_labels},
};
use crate::{
    anomalies::Watch,
    observations::{ensure_equal_shapes, ensure_labels_fit, ensure_labels_of_classes},
};

/// The least probability of being wrong, the smallest normal 32-bit number: the power of a `gamma` below 1
/// has no finite derivative at 0.
const LEAST: f32 = f32::MIN_POSITIVE;

/// Focal loss between integer labels and logits: -w · (1 - p)^gamma · log p, of the probability p and the
/// weight w of the label's class. Observations that are already predicted well count less than in a
/// cross-entropy, which is its value for `gamma` 0.
///
/// Source: Lin et al. (2017), "Focal Loss for Dense Object Detection", <https://arxiv.org/abs/1708.02002>,
/// with the softmax; `tf.keras.losses.CategoricalFocalCrossentropy`, whose default `alpha` 0.25 is a weight
/// of all classes.
#[derive(Clone, Debug)]
pub struct SparseCategoricalFocal {
    /// The reduction over the examples of a batch.
    pub reduction: Reduction,
    gamma: f64,
    class_weights: Option<Vec<f32>>,
}

impl Default for SparseCategoricalFocal {
    fn default() -> Self {
        SparseCategoricalFocal {
            reduction: Reduction::None,
            gamma: 2.0,
            class_weights: None,
        }
    }
}

impl SparseCategoricalFocal {
    /// One loss per example, with `gamma` 2 and without class weights.
    pub fn new() -> Self {
        SparseCategoricalFocal::default()
    }

    /// Sets the reduction.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// Sets the exponent, 0 or more.
    #[must_use]
    pub fn with_gamma(mut self, gamma: f64) -> Self {
        self.gamma = gamma;
        self
    }

    /// Sets a weight of each class, the `alpha` of the paper. As for
    /// [`SparseCategoricalCrossentropy`](super::SparseCategoricalCrossentropy::with_class_weights), nothing
    /// is divided by their sum.
    #[must_use]
    pub fn with_class_weights(mut self, weights: Vec<f32>) -> Self {
        self.class_weights = Some(weights);
        self
    }

    /// The losses of a batch, each the mean over the observations of an example.
    ///
    /// Shapes: logits `[batch, classes, ..]`, labels `[batch, ..]` in; `[batch]` out, or `[1]` with
    /// [`Reduction::Sum`].
    ///
    /// # Errors
    /// The shapes do not match, `gamma` is negative or not finite, or the class weights are not one finite
    /// number, 0 or more, for each class. On the CPU only, a label is not that of a class; on a GPU the
    /// result is then undefined.
    pub fn forward<const D: usize, const E: usize>(
        &self,
        logits: Tensor<D>,
        labels: Tensor<E, Int>,
    ) -> Result<Tensor<1>> {
        let watch = Watch::begin("SparseCategoricalFocal", None);
        let losses = self.of_observations(watch.input(logits), labels);
        let losses = losses.context("a focal loss cannot be computed")?;
        Ok(watch.output(self.reduction.apply(losses)))
    }

    fn of_observations<const D: usize, const E: usize>(
        &self,
        logits: Tensor<D>,
        labels: Tensor<E, Int>,
    ) -> Result<Tensor<D>> {
        ensure_gamma(self.gamma)?;
        ensure_labels_fit(logits.dims(), labels.dims())?;
        let classes = logits.dims()[1];
        ensure_weights_of_classes("it", self.class_weights.as_deref(), classes)?;
        ensure_labels_of_classes(&labels, classes, None)?;
        let labels = labels.unsqueeze_dim::<D>(1); // [batch, 1, ..]
        // The sum over the other classes, as 1 - p would cancel.
        let zeros = Tensor::zeros(labels.dims(), &logits.device()); // [batch, 1, ..]
        let others = logits.ones_like().scatter(
            1,
            labels.clone(),
            zeros - 1.0,
            burn::tensor::IndexingUpdateOp::Add,
        ); // [batch, classes, ..]
        let wrong = (softmax(logits.clone(), 1) * others).sum_dim(1); // [batch, 1, ..]
        let weights = self.class_weights.as_deref();
        let of_label = losses_of_labels(log_softmax(logits, 1), labels, weights); // [batch, 1, ..]
        Ok(of_label * focus(wrong, self.gamma))
    }
}

/// Focal loss between targets from 0 to 1 and logits, of one or several independent outputs:
/// -a · (1 - p)^gamma · log p, p being the probability of the target, and a `alpha` for the target 1 and
/// 1 - `alpha` for 0. Stable for logits of any size.
///
/// Source: `torchvision.ops.sigmoid_focal_loss`, with its defaults; Lin et al. (2017), "Focal Loss for Dense
/// Object Detection", <https://arxiv.org/abs/1708.02002>, equation 5.
#[derive(Clone, Debug)]
pub struct BinaryFocal {
    /// The reduction over the examples of a batch.
    pub reduction: Reduction,
    gamma: f64,
    alpha: Option<f64>,
}

impl Default for BinaryFocal {
    fn default() -> Self {
        BinaryFocal {
            reduction: Reduction::None,
            gamma: 2.0,
            alpha: Some(0.25),
        }
    }
}

impl BinaryFocal {
    /// One loss per example, with `gamma` 2 and `alpha` 0.25.
    pub fn new() -> Self {
        BinaryFocal::default()
    }

    /// Sets the reduction.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// Sets the exponent, 0 or more.
    #[must_use]
    pub fn with_gamma(mut self, gamma: f64) -> Self {
        self.gamma = gamma;
        self
    }

    /// Sets the weight of positive targets, from 0 to 1; `None` for no weights.
    #[must_use]
    pub fn with_alpha(mut self, alpha: Option<f64>) -> Self {
        self.alpha = alpha;
        self
    }

    /// The losses of a batch, each the mean over the outputs of an example.
    ///
    /// Shapes: logits and targets `[batch, ..]` in; `[batch]` out, or `[1]` with [`Reduction::Sum`].
    ///
    /// # Errors
    /// The shapes differ, `gamma` is negative or not finite, or `alpha` is not from 0 to 1. Targets are not
    /// checked, which would stall a GPU.
    pub fn forward<const D: usize>(
        &self,
        logits: Tensor<D>,
        targets: Tensor<D>,
    ) -> Result<Tensor<1>> {
        let watch = Watch::begin("BinaryFocal", None);
        let losses = self.of_outputs(watch.input(logits), targets);
        let losses = losses.context("a binary focal loss cannot be computed")?;
        Ok(watch.output(self.reduction.apply(losses)))
    }

    fn of_outputs<const D: usize>(
        &self,
        logits: Tensor<D>,
        targets: Tensor<D>,
    ) -> Result<Tensor<D>> {
        ensure_gamma(self.gamma)?;
        ensure_equal_shapes(&logits, &targets)?;
        let negatives = targets.ones_like() - targets.clone(); // [batch, ..]
        // Of both signs of the logit, as 1 - p would cancel.
        let wrong = sigmoid(logits.clone()) * negatives.clone()
            + sigmoid(logits.clone().neg()) * targets.clone(); // [batch, ..]
        let losses = cross_entropies(logits, targets.clone(), None) * focus(wrong, self.gamma); // [batch, ..]
        let Some(alpha) = self.alpha else {
            return Ok(losses);
        };
        ensure!(
            (0.0..=1.0).contains(&alpha),
            "`alpha` is {alpha}, and it goes from 0 to 1"
        );
        Ok(losses * (targets * alpha + negatives * (1.0 - alpha)))
    }
}

fn ensure_gamma(gamma: f64) -> Result<()> {
    ensure!(
        gamma.is_finite() && gamma >= 0.0,
        "`gamma` is {gamma}, and it is finite, and 0 or more"
    );
    Ok(())
}

/// The power of the probability of being wrong.
fn focus<const D: usize>(wrong: Tensor<D>, gamma: f64) -> Tensor<D> {
    wrong.clamp_min(LEAST).powf_scalar(gamma)
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, TensorData};

    use super::*;
    use crate::loss::SparseCategoricalCrossentropy;

    fn values(tensor: Tensor<1>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    #[test]
    fn without_an_exponent_it_is_a_cross_entropy() {
        let device = Device::flex();
        let logits = [[[0.3, -2.0], [1.0, 5.0], [0.0, 0.5]]]; // [batch, classes, tokens]
        let logits = Tensor::<3>::from_floats(logits, &device);
        let labels = Tensor::<2, Int>::from_ints([[1, 0]], &device);
        let focal = SparseCategoricalFocal::new().with_gamma(0.0);
        let focal = focal.forward(logits.clone(), labels.clone()).unwrap();
        let cross_entropy = SparseCategoricalCrossentropy::new().forward(logits, labels);
        assert_eq!(values(focal), values(cross_entropy.unwrap()));
    }

    #[test]
    fn a_prediction_that_is_sure_has_a_finite_gradient() {
        let device = Device::flex().autodiff();
        for gamma in [0.0, 0.5, 1.0, 2.0] {
            for logit in [0.0, 30.0, 200.0, -200.0] {
                let logits = TensorData::new(vec![logit, 0.0], [1, 2]);
                let logits = Tensor::<2>::from_data(logits, &device).require_grad();
                let labels = Tensor::<1, Int>::from_ints([0], &device);
                let loss = SparseCategoricalFocal::new().with_gamma(gamma);
                let loss = loss.forward(logits.clone(), labels).unwrap();
                let gradient = logits.grad(&loss.backward()).unwrap();
                let is_finite = |value: f32| value.is_finite();
                assert!(
                    values(gradient.flatten(0, 1)).into_iter().all(is_finite),
                    "{gamma} {logit}"
                );

                let targets = Tensor::<2>::from_floats([[1.0, 0.0]], &device);
                let loss = BinaryFocal::new().with_gamma(gamma);
                let loss = loss.forward(logits.clone(), targets).unwrap();
                let gradient = logits.grad(&loss.backward()).unwrap();
                assert!(
                    values(gradient.flatten(0, 1)).into_iter().all(is_finite),
                    "{gamma} {logit}"
                );
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let device = Device::flex();
        let logits = Tensor::<2>::zeros([2, 3], &device);
        let labels = Tensor::<1, Int>::from_ints([0, 3], &device);
        let refused = |result: Result<Tensor<1>>| format!("{:#}", result.unwrap_err());
        let focal = SparseCategoricalFocal::new();
        let error = refused(focal.forward(logits.clone(), labels.clone()));
        assert!(
            error.starts_with("a focal loss cannot be computed: it met the label 3"),
            "{error}"
        );
        let error = refused(
            focal
                .clone()
                .with_gamma(-1.0)
                .forward(logits.clone(), labels.clone()),
        );
        assert!(error.contains("`gamma` is -1"), "{error}");
        let weighted = focal.with_class_weights(vec![]);
        let error = refused(weighted.forward(logits.clone(), labels));
        assert!(
            error.contains("it has 0 class weights, and there are 3 classes"),
            "{error}"
        );
        let targets = Tensor::zeros([2, 3], &device);
        let binary = BinaryFocal::new();
        let error = refused(
            binary
                .clone()
                .with_alpha(Some(2.0))
                .forward(logits.clone(), targets),
        );
        assert!(error.contains("`alpha` is 2"), "{error}");
        let error = refused(binary.forward(logits, Tensor::zeros([2, 1], &device)));
        assert!(
            error.starts_with("a binary focal loss cannot be computed: pred"),
            "{error}"
        );
    }
}
