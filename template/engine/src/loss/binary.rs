//! Binary cross-entropy.

use anyhow::{Context, Result, ensure};
use burn::tensor::{Tensor, activation::log_sigmoid};

use super::Reduction;
use crate::{anomalies::Watch, observations::ensure_equal_shapes};

/// Binary cross-entropy between targets from 0 to 1 and logits, of one or several independent outputs: of a
/// logit x with the target t, -w · t · log σ(x) - (1 - t) · log (1 - σ(x)), with w = 1 unless
/// [weights](Self::with_positive_weights) are set. Stable for logits of any size.
///
/// Source: `torch.nn.BCEWithLogitsLoss(pos_weight, reduction="none")`;
/// `tf.keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing)`.
#[derive(Clone, Debug, Default)]
pub struct BinaryCrossentropy {
    /// The reduction over the examples of a batch.
    pub reduction: Reduction,
    label_smoothing: f64,
    positive_weights: Option<Vec<f32>>,
}

impl BinaryCrossentropy {
    /// One loss per example, without weights and label smoothing.
    pub fn new() -> Self {
        BinaryCrossentropy::default()
    }

    /// Sets the reduction.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// Sets the label smoothing `s`: targets become `(1 - s) * target + s / 2`.
    #[must_use]
    pub fn with_label_smoothing(mut self, smoothing: f64) -> Self {
        self.label_smoothing = smoothing;
        self
    }

    /// Sets the weight of positive targets: one for all outputs, or one for each output in the second
    /// dimension. Above 1, it raises recall; the ratio of negative to positive targets balances both.
    #[must_use]
    pub fn with_positive_weights(mut self, weights: Vec<f32>) -> Self {
        self.positive_weights = Some(weights);
        self
    }

    /// The losses of a batch, each the mean over the outputs of an example.
    ///
    /// Shapes: logits and targets `[batch]` or `[batch, outputs, ..]` in; `[batch]` out, or `[1]` with
    /// [`Reduction::Sum`].
    ///
    /// # Errors
    /// The shapes differ, the smoothing is not from 0 to 1, or the weights are not as many as the outputs, or
    /// not finite and 0 or more. Targets are not checked, which would stall a GPU.
    pub fn forward<const D: usize>(
        &self,
        logits: Tensor<D>,
        targets: Tensor<D>,
    ) -> Result<Tensor<1>> {
        let watch = Watch::begin("BinaryCrossentropy", None);
        let losses = self.of_outputs(watch.input(logits), targets);
        let losses = losses.context("a binary cross-entropy cannot be computed")?;
        Ok(watch.output(self.reduction.apply(losses)))
    }

    fn of_outputs<const D: usize>(
        &self,
        logits: Tensor<D>,
        targets: Tensor<D>,
    ) -> Result<Tensor<D>> {
        let smoothing = self.label_smoothing;
        ensure!(
            (0.0..=1.0).contains(&smoothing),
            "the label smoothing is {smoothing}, and it goes from 0 to 1"
        );
        ensure_equal_shapes(&logits, &targets)?;
        let weights = match &self.positive_weights {
            None => None,
            Some(weights) => Some(by_output(weights, &logits)?),
        };
        let targets = match smoothing {
            0.0 => targets,
            _ => targets * (1.0 - smoothing) + smoothing / 2.0, // [batch, ..]
        };
        Ok(cross_entropies(logits, targets, weights))
    }
}

/// The weights in the second dimension, all others being 1.
fn by_output<const D: usize>(weights: &[f32], logits: &Tensor<D>) -> Result<Tensor<D>> {
    let (len, shape) = (weights.len(), logits.dims());
    ensure!(
        len == 1 || shape.get(1) == Some(&len),
        "it has {len} weights of positive targets for logits of shape {shape:?}: one, or one for each output in \
         the second dimension"
    );
    ensure_weights(weights)?;
    let mut dims = [1; D];
    if len > 1 {
        dims[1] = len;
    }
    Ok(Tensor::<1>::from_floats(weights, &logits.device()).reshape(dims))
}

fn ensure_weights(weights: &[f32]) -> Result<()> {
    let is_weight = |weight: &f32| weight.is_finite() && *weight >= 0.0;
    match weights.iter().find(|weight| !is_weight(weight)) {
        None => Ok(()),
        Some(weight) => anyhow::bail!(
            "a weight of positive targets is {weight}; weights are finite, and 0 or more"
        ),
    }
}

/// The binary cross-entropy of each logit: (1 - t) · x - (1 + (w - 1) · t) · log σ(x), of the same shape.
pub(super) fn cross_entropies<const D: usize>(
    logits: Tensor<D>,
    targets: Tensor<D>,
    positive_weights: Option<Tensor<D>>,
) -> Tensor<D> {
    let of_one = log_sigmoid(logits.clone()); // [batch, ..]
    let of_one = match positive_weights {
        None => of_one,
        Some(weights) => of_one * ((weights - 1.0) * targets.clone() + 1.0),
    };
    (1.0 - targets) * logits - of_one
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn smoothing_moves_targets_to_a_half() {
        let device = Device::flex();
        let logits = Tensor::<2>::from_floats([[2.0], [-1.0]], &device);
        let targets = Tensor::<2>::from_floats([[1.0], [0.0]], &device);
        let smoothed = BinaryCrossentropy::new().with_label_smoothing(0.2);
        let losses = smoothed.forward(logits.clone(), targets).unwrap();
        let soft = Tensor::<2>::from_floats([[0.9], [0.1]], &device);
        let expected = BinaryCrossentropy::new().forward(logits, soft).unwrap();
        let difference = (losses - expected).abs().max().into_data();
        assert!(difference.iter::<f32>().all(|difference| difference < 1e-6));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let device = Device::flex();
        let logits = Tensor::<2>::zeros([2, 3], &device);
        let refused = |loss: BinaryCrossentropy, targets: [usize; 2]| {
            let result = loss.forward(logits.clone(), Tensor::zeros(targets, &device));
            format!("{:#}", result.unwrap_err())
        };
        let loss = BinaryCrossentropy::new();
        assert_eq!(
            refused(loss.clone(), [2, 1]),
            "a binary cross-entropy cannot be computed: predictions of shape [2, 3] have targets of shape [2, 1]"
        );
        let weighted = |weights| loss.clone().with_positive_weights(weights);
        let error = refused(weighted(vec![1.0, 2.0]), [2, 3]);
        assert!(
            error.contains("2 weights of positive targets for logits of shape [2, 3]"),
            "{error}"
        );
        let error = refused(weighted(vec![f32::NAN]), [2, 3]);
        assert!(
            error.contains("a weight of positive targets is NaN"),
            "{error}"
        );
        let error = refused(loss.with_label_smoothing(1.5), [2, 3]);
        assert!(error.contains("the label smoothing is 1.5"), "{error}");
    }
}
