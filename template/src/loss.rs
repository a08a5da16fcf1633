//! Step 2: the losses.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_engine::{
    loss::{SparseCategoricalCrossentropy, compute_average_loss},
    replica::replica_context,
};

use crate::{dataset::Batch, globals, model::Predictions};

// TODO(loss.objects): Choose the losses of your task, each with one value per example.
//   Now: sparse categorical cross-entropy from logits.
//   Note: `kiln_engine::loss` also has class weights, and binary, focal, Huber and CTC losses.
//   Shapes: predictions [batch, classes] and labels [batch] in, losses [batch] out.
/// The loss objects of a replica, reached with `globals::loss_objects()`.
#[derive(Clone, Debug)]
pub struct LossObjects {
    pub cross_entropy: SparseCategoricalCrossentropy,
}

/// Creates the loss objects.
pub fn create_loss_objects() -> LossObjects {
    LossObjects {
        cross_entropy: SparseCategoricalCrossentropy::new(),
    }
}

/// The loss of each example, shape `[batch]`.
pub fn per_example_losses(predictions: &Predictions, batch: &Batch) -> Result<Tensor<1>> {
    let cross_entropy = globals::loss_objects()?.cross_entropy;
    cross_entropy.forward(predictions.clone(), batch.labels.clone())
}

/// The replica's part of the loss of the global batch, shape `[1]`, to be summed over replicas.
pub fn compute_loss(per_example_losses: Tensor<1>) -> Result<Tensor<1>> {
    // TODO(loss.compute): Apply sample weights; add regularisation.
    //   Now: the sum over this replica's examples, divided by the number of examples in the update
    //        over all replicas.
    //   Note: the last update of an epoch may have fewer than `globals::global_batch_size()` examples;
    //         scale weight decay and the like with `scale_regularization_loss`.
    //   Shapes: losses [batch] in, loss [1] out.
    let denominator = replica_context()?.examples_in_update();
    compute_average_loss(per_example_losses, None, denominator)
}
