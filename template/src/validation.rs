//! The validation after each epoch.

use anyhow::Result;
use indexmap::IndexMap;
use kiln_engine::{
    checkpoint::{Progress, interrupt},
    data::{DistributedDataset, Shard},
    distribute::{Losses, PerReplica, ReduceOp},
    globals::{merged_metrics, reset_metrics},
    report::Report,
};

use crate::{
    callbacks::{prepare_inputs, prepare_loss_inputs},
    dataset::{Batch, Example},
    globals::{self, Project, Split},
    loss::{compute_loss, per_example_losses},
};

/// One replica's losses for its share of a batch; nothing is learnt.
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

/// Validates the whole split; each example counts once. Returns the metrics by name, or `None` where a
/// signal stopped it.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn validate(
    progress: Progress,
    data: &DistributedDataset<Example>,
    report: &mut Report,
) -> Result<Option<IndexMap<String, f64>>> {
    reset_metrics::<Project>(Split::Validation)?;
    globals::strategy()?.run_on_all(globals::prepare_inference)?;
    report.begin(Split::Validation, progress.epoch, data.batches_per_epoch());
    let mut batches = data.epoch(1);
    while let Some(inputs) = report.wait_for(|| batches.next()) {
        let losses = distributed_validation_step(inputs)?;
        report.step(&losses);
        if interrupt::agreed(None)?.is_some() {
            report.abandon();
            return Ok(None);
        }
    }
    let metrics = merged_metrics::<Project>(Split::Validation)?;
    report.end(progress.step, &metrics)?;
    let by_name = metrics
        .into_iter()
        .map(|metric| (metric.name, metric.value));
    Ok(Some(by_name.collect()))
}
