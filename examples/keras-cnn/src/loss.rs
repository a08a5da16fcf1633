//! Step 2: the losses.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_engine::{
    loss::{Reduction, compute_average_loss},
    replica::replica_context,
};

use crate::{dataset::Batch, globals, model::Predictions};

/// Keras's `keras.config.epsilon()`.
const EPSILON: f64 = 1e-7;

/// The loss objects of a replica, reached with `globals::loss_objects()`.
#[derive(Clone, Debug)]
pub struct LossObjects {
    pub cross_entropy: CategoricalCrossentropy,
}

/// Creates the loss objects.
pub fn create_loss_objects() -> LossObjects {
    LossObjects {
        cross_entropy: CategoricalCrossentropy {
            reduction: Reduction::None,
        },
    }
}

/// The loss of each example, shape `[batch]`.
pub fn per_example_losses(predictions: &Predictions, batch: &Batch) -> Result<Tensor<1>> {
    let cross_entropy = globals::loss_objects()?.cross_entropy;
    Ok(cross_entropy.forward(predictions.clone(), batch.labels.clone()))
}

/// The replica's part of the loss of the global batch, shape `[1]`, to be summed over replicas.
pub fn compute_loss(per_example_losses: Tensor<1>) -> Result<Tensor<1>> {
    let denominator = replica_context()?.examples_in_update();
    compute_average_loss(per_example_losses, None, denominator)
}

/// Cross-entropy between one-hot labels and probabilities.
///
/// Probabilities are kept [`EPSILON`] away from 0 and 1, so that the logarithm of a prediction that
/// is certain and wrong is finite: such an example has the loss 16.1, and a gradient of zero.
///
/// Source: `keras.losses.CategoricalCrossentropy(from_logits=False)`.
#[derive(Clone, Debug)]
pub struct CategoricalCrossentropy {
    pub reduction: Reduction,
}

impl CategoricalCrossentropy {
    /// From probabilities and labels, both `[batch, classes]`, to losses `[batch]`.
    pub fn forward(&self, probabilities: Tensor<2>, labels: Tensor<2>) -> Tensor<1> {
        let sums = probabilities.clone().sum_dim(1); // [batch, 1]
        let probabilities = (probabilities / sums).clamp(EPSILON, 1.0 - EPSILON); // [batch, classes]
        let of_label = (labels * probabilities.log()).sum_dim(1); // [batch, 1]
        self.reduction.apply(of_label.neg())
    }
}
