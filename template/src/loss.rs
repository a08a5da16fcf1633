//! Step 2: the losses.

use anyhow::Result;
use burn::tensor::{Int, Tensor, activation::log_softmax};
use kiln_engine::distribute::{Reduction, compute_average_loss, replica_context};

use crate::{dataset::Batch, globals};

/// The loss objects of a replica, reached with `globals::loss_objects()`.
#[derive(Clone, Debug)]
pub struct LossObjects {
    pub cross_entropy: SparseCategoricalCrossentropy,
}

/// Creates the loss objects.
pub fn create_loss_objects() -> LossObjects {
    // TODO(loss.objects): Create the losses of your task, each with one value an example.
    //   Now: sparse categorical cross-entropy from logits.
    //   Shapes: predictions [batch, classes] and labels [batch] in, losses [batch] out.
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
    // TODO(loss.compute): Weight the examples and add what does not depend on them.
    //   Now: the sum over the examples of this replica, divided by the true number of examples in
    //        the update, over all replicas.
    //   Note: `globals::global_batch_size()` would divide by the nominal number; add weight decay
    //         with `scale_regularization_loss`.
    //   Shapes: losses [batch] in, loss [1] out.
    let denominator = replica_context()?.examples_in_update();
    compute_average_loss(per_example_losses, None, denominator)
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
