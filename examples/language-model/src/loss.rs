//! Step 2: the losses.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_engine::{
    loss::{SparseCategoricalCrossentropy, compute_average_loss},
    replica::replica_context,
};

use crate::{dataset::Batch, globals, model::Predictions};

/// The loss objects of a replica, reached with `globals::loss_objects()`.
#[derive(Clone, Debug)]
pub struct LossObjects {
    pub cross_entropy: SparseCategoricalCrossentropy,
}

/// Creates the loss objects.
pub fn create_loss_objects() -> LossObjects {
    LossObjects {
        // The logits of a byte are in the last dimension.
        cross_entropy: SparseCategoricalCrossentropy::new().with_classes_last(),
    }
}

/// The loss of each example, shape `[batch]`: the mean over its bytes, in nats.
pub fn per_example_losses(predictions: &Predictions, batch: &Batch) -> Result<Tensor<1>> {
    let cross_entropy = globals::loss_objects()?.cross_entropy;
    cross_entropy.forward(predictions.clone(), batch.labels.clone())
}

/// The replica's part of the loss of the global batch, shape `[1]`, to be summed over replicas.
pub fn compute_loss(per_example_losses: Tensor<1>) -> Result<Tensor<1>> {
    let denominator = replica_context()?.examples_in_update();
    compute_average_loss(per_example_losses, None, denominator)
}
