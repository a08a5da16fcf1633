//! The validation after each epoch.

use anyhow::Result;
use indexmap::IndexMap;
use kiln_engine::{
    checkpoint::Progress,
    comm::ReduceOp,
    data::{DistributedDataset, Shard},
    loss::Losses,
    replica::PerReplica,
    report::Report,
    training::Evaluation,
};

use crate::{
    callbacks::{prepare_inputs, prepare_loss_inputs},
    dataset::{Batch, Example},
    globals::{self, Project, Split},
    loss::{compute_loss, per_example_losses},
};

/// The losses of a replica's shard of a batch; updates the metrics.
pub fn validation_step(batch: Batch) -> Result<Losses> {
    // TODO(validation.step): Evaluate a batch of the validation split.
    //   Now: the loss and the metrics of training.
    //   Shapes: features [batch, 1, height, width] and labels [batch] in.
    let batch = prepare_inputs(batch)?;
    let predictions = globals::predict(&batch)?;
    let (predictions, batch) = prepare_loss_inputs(predictions, batch)?;
    let per_example = per_example_losses(&predictions, &batch)?; // [batch]
    globals::with_metrics(Split::Validation, |metrics| {
        metrics.update(&per_example, &predictions, &batch)
    })??;
    Ok(Losses::new().with("loss", &compute_loss(per_example)?))
}

/// Validates one global batch on all replicas.
pub fn distributed_validation_step(inputs: PerReplica<Shard<Example>>) -> Result<Losses> {
    let strategy = globals::strategy()?;
    let losses = strategy.run(inputs, |shard| match shard.load()? {
        Some(batch) => validation_step(batch),
        None => Ok(Losses::new()),
    })?;
    strategy.reduce(ReduceOp::Sum, losses)
}

/// Validates the whole split; each example counts once. Returns the metrics by name, or `None` if a
/// signal stopped it.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn validate(
    progress: Progress,
    data: &DistributedDataset<Example>,
    report: &mut Report,
) -> Result<Option<IndexMap<String, f64>>> {
    let (split, epoch) = (Split::Validation, progress.epoch);
    let mut validation = Evaluation::<Project>::start(split, epoch, data, report)?;
    while let Some(inputs) = validation.next_batch() {
        if !validation.step(inputs, distributed_validation_step)? {
            return Ok(None);
        }
    }
    validation.end(progress.step).map(Some)
}
