//! The check of `--detect-anomalies`: losses, gradients and parameters of each replica after each backward
//! pass, before the sum over replicas.
//!
//! Source: `torch.autograd.set_detect_anomaly`, which names operations; Burn's graph has no names, so that
//! parameters stand for the layers.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::Tensor,
};

use super::Gradients;
use crate::{loss::Losses, replica::read_all};

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
    match anomaly(model, losses, gradients)? {
        Some(anomaly) => bail!("--detect-anomalies: {anomaly}"),
        None => Ok(()),
    }
}

/// What is not finite after a backward pass, and whether the parameters were finite before it.
fn anomaly<M: Module>(model: &M, losses: &Losses, gradients: &Gradients) -> Result<Option<String>> {
    losses.read()?;
    let loss = losses.iter().find(|(_, value)| !value.is_finite());
    let gradient = first_non_finite(model, Some(gradients))?;
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
    let parameter = match first_non_finite(model, None)? {
        Some((path, value)) => format!(
            "the parameter `{path}` held {value} before this step: look at the update before it"
        ),
        None => "all parameters were finite before this step: look at the batch, the layers and the loss"
            .to_owned(),
    };
    Ok(Some(format!("{loss}; {gradient}; {parameter}")))
}

/// The first parameter, in the order of the model, whose gradient in `gradients`, or value without them, is
/// not finite.
fn first_non_finite<M: Module>(
    model: &M,
    gradients: Option<&Gradients>,
) -> Result<Option<(String, f32)>> {
    let mut collect = Collect {
        gradients,
        path: Vec::new(),
        paths: Vec::new(),
        tensors: Vec::new(),
    };
    model.visit(&mut collect);
    let values = read_all(collect.tensors)?.into_iter();
    let mut of_each = values.zip(collect.paths);
    Ok(of_each.find_map(|(values, path)| {
        let value = values.into_iter().find(|value| !value.is_finite())?;
        Some((path, value))
    }))
}

/// Collects the gradients or the values of trainable parameters.
struct Collect<'a> {
    gradients: Option<&'a Gradients>,
    path: Vec<String>,
    paths: Vec<String>,
    /// Of one dimension each.
    tensors: Vec<Tensor<1>>,
}

impl ModuleVisitor for Collect<'_> {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        // Others may be constants, such as a mask of minus infinity.
        if !param.is_require_grad() {
            return;
        }
        let tensor = match self.gradients {
            Some(gradients) => gradients.get::<D>(param.id),
            None => Some(param.val()),
        };
        if let Some(tensor) = tensor {
            let len = tensor.shape().num_elements();
            self.tensors.push(tensor.reshape([len]));
            self.paths.push(self.path.join("."));
        }
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
