//! Step 2: the losses.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_engine::{
    globals::inference_model,
    loss::{SparseCategoricalCrossentropy, compute_average_loss},
    replica::replica_context,
};

use crate::{
    dataset::Batch,
    digits::CALLBACKS,
    globals::{self, Project},
    model::Predictions,
    train_callbacks::TrainCallbacks,
};

/// The loss objects of a replica, reached with `globals::loss_objects()`.
#[derive(Clone, Debug)]
pub struct LossObjects {
    pub cross_entropy: SparseCategoricalCrossentropy,
}

/// Creates the loss objects.
pub fn create_loss_objects() -> LossObjects {
    CALLBACKS.create_loss()
}

/// The loss of each example, shape `[batch]`.
pub fn per_example_losses(predictions: &Predictions, batch: &Batch) -> Result<Tensor<1>> {
    let cross_entropy = globals::loss_objects()?.cross_entropy;
    cross_entropy.forward(predictions.clone(), batch.labels.clone())
}

/// The replica's part of the loss of the global batch, shape `[1]`, to be summed over replicas:
/// that of its examples `[batch]`, and its part of a loss `[1]` that does not depend on examples.
///
/// Each example carries `extra_loss`. So it counts once in the mean over the global batch, however
/// many replicas there are, and where some of them have no example.
pub fn compute_loss(per_example_losses: Tensor<1>) -> Result<Tensor<1>> {
    let denominator = replica_context()?.examples_in_update();
    // Only a step of training records for gradients.
    let (loss, extra_loss) = match per_example_losses.device().is_autodiff() {
        true => CALLBACKS.grad_pre(per_example_losses, &globals::model()?)?,
        false => CALLBACKS.eval_pre(per_example_losses, &inference_model::<Project>()?)?,
    }; // [batch], [1]
    compute_average_loss(loss + extra_loss, None, denominator)
}
