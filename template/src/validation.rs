//! The validation after each epoch.

use anyhow::Result;

use crate::{
    dataset::{Batch, Example},
    distribute::{DistributedDataset, Losses, PerReplica, ReduceOp, Shard},
    globals::{self, Split},
    loss::{compute_loss, per_example_losses},
    metric::{merged_metrics, reset_metrics},
    report::Report,
};

/// One replica's losses for its share of a batch; nothing is learnt.
pub fn validation_step(batch: Batch) -> Result<Losses> {
    // TODO(validation.step): Evaluate a batch of the validation split.
    //   Now: the loss and the metrics of training.
    //   Shapes: features [batch, 1, height, width] and labels [batch] in.
    let predictions = globals::inference_model()?.forward(batch.features.clone()); // [batch, classes]
    let per_example = per_example_losses(&predictions, &batch)?; // [batch]
    globals::with_metrics(Split::Validation, |metrics| {
        metrics.update(&per_example, &predictions, &batch);
    })?;
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

/// Validates the whole split; each example counts once.
pub fn validate(
    epoch: usize,
    step: usize,
    data: &DistributedDataset<Example>,
    report: &mut Report,
) -> Result<()> {
    reset_metrics(Split::Validation)?;
    report.begin(Split::Validation, epoch, data.steps_per_epoch());
    for inputs in data.epoch(1) {
        let losses = distributed_validation_step(inputs)?;
        report.step(&losses);
    }
    report.end(step, &merged_metrics(Split::Validation)?)
}
