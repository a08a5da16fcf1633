//! Huber and smooth L1 losses, of regression.

use anyhow::{Context, Result, ensure};
use burn::{
    nn::loss::{HuberLossConfig, SmoothL1LossConfig},
    tensor::Tensor,
};

use super::Reduction;
use crate::{anomalies::Watch, observations::ensure_equal_shapes};

/// Huber loss: d² / 2 for an error d up to `delta`, and delta · (|d| - delta / 2) beyond it, so that outliers
/// count less than in a squared error.
///
/// Source: `torch.nn.HuberLoss(delta, reduction="none")`; `burn::nn::loss::HuberLoss`.
#[derive(Clone, Debug)]
pub struct Huber {
    /// The reduction over the examples of a batch.
    pub reduction: Reduction,
    delta: f32,
}

impl Default for Huber {
    fn default() -> Self {
        Huber {
            reduction: Reduction::None,
            delta: 1.0,
        }
    }
}

impl Huber {
    /// One loss per example, with `delta` 1.
    pub fn new() -> Self {
        Huber::default()
    }

    /// Sets the reduction.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// Sets the error at which the loss becomes linear, above 0, in the unit of the targets.
    #[must_use]
    pub fn with_delta(mut self, delta: f32) -> Self {
        self.delta = delta;
        self
    }

    /// The losses of a batch, each the mean over the values of an example.
    ///
    /// Shapes: `[batch, ..]` twice in; `[batch]` out, or `[1]` with [`Reduction::Sum`].
    ///
    /// # Errors
    /// The shapes differ, or `delta` is not above 0 and finite.
    pub fn forward<const D: usize>(
        &self,
        predictions: Tensor<D>,
        targets: Tensor<D>,
    ) -> Result<Tensor<1>> {
        ensure_fits("a Huber loss", "delta", self.delta, &predictions, &targets)?;
        let watch = Watch::begin("Huber", None);
        let predictions = watch.input(predictions);
        let huber = HuberLossConfig::new(self.delta).init();
        let losses = huber.forward_no_reduction(predictions, targets);
        Ok(watch.output(self.reduction.apply(losses)))
    }
}

/// Smooth L1 loss: d² / (2 · beta) for an error d below `beta`, and |d| - beta / 2 beyond it, which is the
/// [`Huber`] loss divided by `beta`.
///
/// Source: `torch.nn.SmoothL1Loss(beta, reduction="none")`; `burn::nn::loss::SmoothL1Loss`.
#[derive(Clone, Debug)]
pub struct SmoothL1 {
    /// The reduction over the examples of a batch.
    pub reduction: Reduction,
    beta: f32,
}

impl Default for SmoothL1 {
    fn default() -> Self {
        SmoothL1 {
            reduction: Reduction::None,
            beta: 1.0,
        }
    }
}

impl SmoothL1 {
    /// One loss per example, with `beta` 1.
    pub fn new() -> Self {
        SmoothL1::default()
    }

    /// Sets the reduction.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// Sets the error at which the loss becomes linear, above 0, in the unit of the targets. For the absolute
    /// error itself, which is `beta` 0 in PyTorch, use
    /// [`mean_absolute_error`](crate::metric::mean_absolute_error).
    #[must_use]
    pub fn with_beta(mut self, beta: f32) -> Self {
        self.beta = beta;
        self
    }

    /// The losses of a batch, each the mean over the values of an example.
    ///
    /// Shapes: `[batch, ..]` twice in; `[batch]` out, or `[1]` with [`Reduction::Sum`].
    ///
    /// # Errors
    /// The shapes differ, or `beta` is not above 0 and finite.
    pub fn forward<const D: usize>(
        &self,
        predictions: Tensor<D>,
        targets: Tensor<D>,
    ) -> Result<Tensor<1>> {
        ensure_fits(
            "a smooth L1 loss",
            "beta",
            self.beta,
            &predictions,
            &targets,
        )?;
        let watch = Watch::begin("SmoothL1", None);
        let predictions = watch.input(predictions);
        let smooth = SmoothL1LossConfig::new().with_beta(self.beta).init();
        let losses = smooth.forward(predictions, targets);
        Ok(watch.output(self.reduction.apply(losses)))
    }
}

fn ensure_fits<const D: usize>(
    loss: &str,
    name: &str,
    value: f32,
    predictions: &Tensor<D>,
    targets: &Tensor<D>,
) -> Result<()> {
    ensure!(
        value.is_finite() && value > 0.0,
        "the `{name}` of {loss} is {value}; it is above 0 and finite"
    );
    ensure_equal_shapes(predictions, targets).with_context(|| format!("{loss} cannot be computed"))
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    #[test]
    fn what_does_not_fit_is_refused() {
        let device = Device::flex();
        let (wide, narrow) = (
            Tensor::<2>::zeros([2, 3], &device),
            Tensor::<2>::zeros([2, 1], &device),
        );
        let refused = |result: Result<Tensor<1>>| format!("{:#}", result.unwrap_err());
        let error = refused(Huber::new().forward(wide.clone(), narrow));
        assert!(
            error.starts_with("a Huber loss cannot be computed: predictions of"),
            "{error}"
        );
        for value in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let huber = Huber::new().with_delta(value);
            let error = refused(huber.forward(wide.clone(), wide.clone()));
            assert!(
                error.contains(&format!("the `delta` of a Huber loss is {value}")),
                "{error}"
            );
            let smooth = SmoothL1::new().with_beta(value);
            let error = refused(smooth.forward(wide.clone(), wide.clone()));
            assert!(
                error.contains(&format!("`beta` of a smooth L1 loss is {value}")),
                "{error}"
            );
        }
    }

    #[test]
    fn a_sum_is_over_examples() {
        let predictions = Tensor::<2>::from_floats([[0.5, 3.0], [1.0, 0.0]], &Device::flex());
        let huber = Huber::new().with_reduction(Reduction::Sum);
        let sum = huber.forward(predictions.clone(), predictions.zeros_like());
        let sum: Vec<f32> = sum.unwrap().into_data().iter::<f32>().collect();
        assert_eq!(sum, [(0.125 + 2.5) / 2.0 + 0.25]);
    }
}
