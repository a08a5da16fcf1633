//! Step 2: the losses.

use anyhow::Result;
use burn::tensor::{Int, Tensor, activation::log_softmax};

use crate::{
    dataset::Batch,
    distribute::{Reduction, compute_average_loss, replica_context, scale_regularization_loss},
    globals,
    model::Model,
};

/// The weight of the penalty for large kernels.
pub const L2: f64 = 1e-5;

/// The loss objects of a replica, reached with `globals::loss_objects()`.
#[derive(Clone, Debug)]
pub struct LossObjects {
    pub cross_entropy: SparseCategoricalCrossentropy,
}

/// Creates the loss objects.
pub fn create_loss_objects() -> LossObjects {
    LossObjects {
        cross_entropy: SparseCategoricalCrossentropy {
            reduction: Reduction::None,
        },
    }
}

/// The loss of each example, shape `[batch]`.
pub fn per_example_losses(predictions: &Tensor<2>, batch: &Batch) -> Result<Tensor<1>> {
    let loss_objects = globals::loss_objects()?;
    Ok(loss_objects
        .cross_entropy
        .forward(predictions.clone(), batch.labels.clone()))
}

/// The replica's part of the loss of the global batch, shape `[1]`, to be summed over replicas.
pub fn compute_loss(per_example_losses: Tensor<1>) -> Result<Tensor<1>> {
    // The true number of examples in the update, so that a short last batch counts in full.
    let denominator = replica_context()?.examples_in_update();
    compute_average_loss(per_example_losses, None, denominator)
}

/// The replica's part of the penalty for large kernels, shape `[1]`: over all replicas, and all
/// batches of an update, it adds up to `L2` times the sum of the squared kernels. Training only.
///
/// Source: `tf.keras.regularizers.L2` with `tf.nn.scale_regularization_loss`.
pub fn regularization_loss(model: &Model) -> Result<Tensor<1>> {
    scale_regularization_loss(model.squared_kernels() * L2)
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
