//! Step 2: the losses.

use anyhow::Result;
use burn::tensor::{Int, Tensor, activation::log_softmax};
use kiln_engine::distribute::{Reduction, compute_average_loss, replica_context};

use crate::{dataset::Batch, digits::CALLBACKS, globals, train_callbacks::TrainCallbacks};

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
pub fn per_example_losses(predictions: &Tensor<2>, batch: &Batch) -> Result<Tensor<1>> {
    let loss_objects = globals::loss_objects()?;
    Ok(loss_objects
        .cross_entropy
        .forward(predictions.clone(), batch.labels.clone()))
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
        false => CALLBACKS.eval_pre(per_example_losses, &globals::inference_model()?)?,
    }; // [batch], [1]
    compute_average_loss(loss + extra_loss, None, denominator)
}

/// Cross-entropy between integer labels and logits.
///
/// Source: `tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)`.
#[derive(Clone, Debug)]
pub struct SparseCategoricalCrossentropy {
    pub reduction: Reduction,
}

impl SparseCategoricalCrossentropy {
    /// From logits `[batch, classes]` and labels `[batch]` to losses `[batch]`.
    pub fn forward(&self, logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1> {
        let log_probabilities = log_softmax(logits, 1); // [batch, classes]
        let of_label = log_probabilities.gather(1, labels.unsqueeze_dim(1)); // [batch, 1]
        self.reduction.apply(of_label.neg())
    }
}
