//! The check of `--detect-anomalies`: values and gradients that pass through layers and losses, and the gradients and
//! parameters of each replica after each backward pass, before the sum over replicas.
//!
//! Layers and losses record what passes through them in a [`Trace`]. A value from any other operation, such as a
//! layer called by Burn's `forward`, is located between two checked layers.
//!
//! Source: `torch.autograd.detect_anomaly`, which names the operation whose backward pass gave NaN.

mod report;
#[cfg(test)]
mod tests;

use anyhow::{Result, bail};
use burn::{
    module::{Module, Param},
    tensor::Tensor,
};

use report::Finite;

use crate::{
    anomalies::Trace,
    globals,
    loss::Losses,
    model::{Choose, TRAINED, first_non_finite},
    optim::Gradients,
    precision::{self, LossScale},
    task::Task,
};

/// Trains with `step` on a shard with `examples`, given by their indices in the dataset, in `parts` micro-batches,
/// and checks the step.
///
/// # Errors
/// Those of `step`; a value or gradient is not finite, or a device failed.
pub(super) fn checked<T: Task>(
    examples: Vec<usize>,
    parts: usize,
    step: impl FnOnce() -> Result<(Losses, Gradients)>,
) -> Result<(Losses, Gradients)> {
    let trace = Trace::new(examples, parts);
    let (losses, gradients) = trace.clone().during(step)?;
    globals::with_model::<T, _>(|model| ensure_no_anomaly(model, &losses, &gradients, &trace))??;
    Ok((losses, gradients))
}

/// Checks a step on this replica, whose `model` is the one before the update.
fn ensure_no_anomaly<M: Module>(
    model: &M,
    losses: &Losses,
    gradients: &Gradients,
    trace: &Trace,
) -> Result<()> {
    // An overflow of float16 lowers the loss scale.
    if precision::loss_scale().is_some_and(LossScale::can_fall) {
        losses.read()?;
        if losses.iter().all(|(_, loss)| loss.is_finite()) {
            return Ok(());
        }
    }
    match anomaly(model, losses, gradients, trace)? {
        Some(anomaly) => bail!("--detect-anomalies: {anomaly}"),
        None => Ok(()),
    }
}

/// Message on the values of a step that are not finite: their origin, the loss, the first gradient, and whether the
/// parameters were finite before.
fn anomaly<M: Module>(
    model: &M,
    losses: &Losses,
    gradients: &Gradients,
    trace: &Trace,
) -> Result<Option<String>> {
    losses.read()?;
    let loss = losses.iter().find(|(_, value)| !value.is_finite());
    let gradient = first_non_finite(model, gradients)?;
    let finite = Finite {
        losses: loss.is_none(),
        gradients: gradient.is_none(),
    };
    let place = report::place(model, &trace.record(), finite);
    if place.is_none() && finite.all() {
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
    let parameter = match (first_non_finite(model, TRAINED)?, &place) {
        (Some((path, value)), _) => format!(
            "the parameter `{path}` held {value} before this step: look at the update before it"
        ),
        (None, Some(_)) => "all parameters were finite before this step".to_owned(),
        (None, None) => "all parameters were finite before this step: look at the batch, the layers and the loss"
            .to_owned(),
    };
    let parts = [place, Some(loss), Some(gradient), Some(parameter)];
    Ok(Some(
        parts.into_iter().flatten().collect::<Vec<_>>().join("; "),
    ))
}

/// The gradients of trainable parameters.
impl Choose for &Gradients {
    fn tensor<const D: usize>(&self, param: &Param<Tensor<D>>) -> Option<Tensor<D>> {
        let gradient = param.is_require_grad().then(|| self.get::<D>(param.id));
        gradient.flatten()
    }
}
