//! The check of `--detect-anomalies`: losses, gradients and parameters of each replica after each backward
//! pass, before the sum over replicas.
//!
//! Source: `torch.autograd.set_detect_anomaly`, which names operations; Burn's graph has no names, so that
//! parameters stand for the layers.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use burn::{
    module::{Module, Param},
    tensor::Tensor,
};

use super::Gradients;
use crate::{
    loss::Losses,
    model::{Choose, first_non_finite, trains},
    precision::{self, LossScale},
};

/// True if each backward pass is checked.
static DETECTED: AtomicBool = AtomicBool::new(false);

/// Makes all steps of this process check their backward pass; option `--detect-anomalies`.
pub(crate) fn detect_anomalies() {
    DETECTED.store(true, Ordering::Relaxed);
}

/// Whether steps check their backward pass.
pub(crate) fn detects_anomalies() -> bool {
    DETECTED.load(Ordering::Relaxed)
}

/// Checks a backward pass on this replica, whose `model` is the one before the update.
///
/// # Errors
/// A loss or a gradient is not finite, or a device failed.
pub(crate) fn ensure_no_anomaly<M: Module>(
    model: &M,
    losses: &Losses,
    gradients: &Gradients,
) -> Result<()> {
    // An overflow of float16 lowers the loss scale.
    if precision::loss_scale().is_some_and(LossScale::can_fall) {
        losses.read()?;
        if losses.iter().all(|(_, loss)| loss.is_finite()) {
            return Ok(());
        }
    }
    match anomaly(model, losses, gradients)? {
        Some(anomaly) => bail!("--detect-anomalies: {anomaly}"),
        None => Ok(()),
    }
}

/// What is not finite after a backward pass, and whether the parameters were finite before it.
fn anomaly<M: Module>(model: &M, losses: &Losses, gradients: &Gradients) -> Result<Option<String>> {
    losses.read()?;
    let loss = losses.iter().find(|(_, value)| !value.is_finite());
    let gradient = first_non_finite(model, gradients)?;
    if loss.is_none() && gradient.is_none() {
        return Ok(None);
    }
    let loss = match loss {
        Some((name, value)) => format!("the loss `{name}` is {value}"),
        None => "the losses are finite".to_owned(),
    };
    let gradient = match gradient {
        Some((path, value)) => {
            format!("the first gradient that is not finite is of `{path}`: {value}")
        }
        None => "all gradients are finite".to_owned(),
    };
    let parameter = match first_non_finite(model, trains)? {
        Some((path, value)) => format!(
            "the parameter `{path}` held {value} before this step: look at the update before it"
        ),
        None => "all parameters were finite before this step: look at the batch, the layers and the loss"
            .to_owned(),
    };
    Ok(Some(format!("{loss}; {gradient}; {parameter}")))
}

/// The gradients of trainable parameters.
impl Choose for &Gradients {
    fn tensor<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        let gradient = param.is_require_grad().then(|| self.get::<D>(param.id));
        gradient.flatten()
    }
}

#[cfg(test)]
mod tests {
    use burn::{optim::GradientsParams, tensor::Device};

    use super::*;

    #[derive(Module, Debug)]
    struct Weights {
        first: Param<Tensor<1>>,
        second: Param<Tensor<2>>,
    }

    /// The anomaly of the step of the loss `ln(first) + sum(second)^2`.
    fn of(first: f32, second: [[f32; 2]; 1]) -> Option<String> {
        let device = Device::flex().autodiff();
        let model = Weights {
            first: Param::from_tensor(Tensor::from_floats([first], &device)),
            second: Param::from_tensor(Tensor::from_floats(second, &device)),
        };
        let loss = model.first.val().log() + model.second.val().sum().square(); // [1]
        let losses = Losses::new().with("loss", &loss);
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        anomaly(&model, &losses, &Gradients::new().with(gradients)).unwrap()
    }

    #[test]
    fn losses_gradients_and_parameters_are_named() {
        assert_eq!(of(1.0, [[2.0, 3.0]]), None);
        let of_batch = "all parameters were finite before this step: look at the batch, the layers and the \
                        loss";
        let inf =
            "the loss `loss` is -inf; the first gradient that is not finite is of `first`: inf";
        assert_eq!(of(0.0, [[2.0, 3.0]]).unwrap(), format!("{inf}; {of_batch}"));
        let large = "the loss `loss` is inf; all gradients are finite";
        assert_eq!(
            of(1.0, [[1e25, 0.0]]).unwrap(),
            format!("{large}; {of_batch}")
        );
        assert_eq!(
            of(1.0, [[2.0, f32::NAN]]).unwrap(),
            "the loss `loss` is NaN; the first gradient that is not finite is of `second`: NaN; the \
             parameter `second` held NaN before this step: look at the update before it"
        );
    }
}
