//! Step 2: the losses.

use anyhow::Result;
use burn::tensor::{Int, Tensor};
use kiln_engine::{
    loss::{Reduction, compute_average_loss},
    replica::replica_context,
};

use crate::{
    dataset::Batch,
    globals,
    model::{Predictions, cross_entropy},
};

/// The loss objects of a replica, reached with `globals::loss_objects()`.
#[derive(Clone, Debug)]
pub struct LossObjects {
    pub cross_entropy: SparseCategoricalCrossentropy,
}

/// Creates the loss objects.
pub fn create_loss_objects() -> LossObjects {
    LossObjects {
        cross_entropy: SparseCategoricalCrossentropy,
    }
}

/// The loss of each example, shape `[batch]`: the mean over its bytes, in nats.
pub fn per_example_losses(predictions: &Predictions, batch: &Batch) -> Result<Tensor<1>> {
    let cross_entropy = globals::loss_objects()?.cross_entropy;
    Ok(cross_entropy.forward(predictions.clone(), batch.labels.clone()))
}

/// The replica's part of the loss of the global batch, shape `[1]`, to be summed over replicas.
pub fn compute_loss(per_example_losses: Tensor<1>) -> Result<Tensor<1>> {
    let denominator = replica_context()?.examples_in_update();
    compute_average_loss(per_example_losses, None, denominator)
}

/// Cross-entropy between the next bytes and the logits for them. Unlike the engine's, it has classes in
/// the last dimension, and on the CPU takes few passes over memory.
///
/// Source: `tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)`.
#[derive(Clone, Debug)]
pub struct SparseCategoricalCrossentropy;

impl SparseCategoricalCrossentropy {
    /// From logits `[batch, time, 256]` and labels `[batch, time]` to losses `[batch]`.
    pub fn forward(&self, logits: Tensor<3>, labels: Tensor<2, Int>) -> Tensor<1> {
        let losses = cross_entropy(logits, labels); // [batch, time]
        // The mean over the bytes of an example, and no mean over examples.
        Reduction::None.apply(losses)
    }
}
