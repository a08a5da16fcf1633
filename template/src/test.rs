//! Step 7: the test.

use anyhow::Result;
use kiln_engine::{
    checkpoint::{Progress, interrupt},
    data::{Datasets, Shard},
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
pub fn test_step(batch: Batch) -> Result<Losses> {
    // TODO(test.step): Evaluate a batch of the test split.
    //   Now: the loss and the metrics of training.
    //   Shapes: features [batch, 1, height, width] and labels [batch] in.
    let batch = prepare_inputs(batch)?;
    let predictions = globals::predict(&batch)?;
    let (predictions, batch) = prepare_loss_inputs(predictions, batch)?;
    let per_example = per_example_losses(&predictions, &batch)?; // [batch]
    globals::with_metrics(Split::Test, |metrics| {
        metrics.update(&per_example, &predictions, &batch)
    })??;
    Ok(Losses::new().with("loss", &compute_loss(per_example)?))
}

/// Tests one global batch on all replicas.
pub fn distributed_test_step(inputs: PerReplica<Shard<Example>>) -> Result<Losses> {
    let strategy = globals::strategy()?;
    let losses = strategy.run(inputs, |shard| match shard.load()? {
        Some(batch) => test_step(batch),
        None => Ok(Losses::new()),
    })?;
    strategy.reduce(ReduceOp::Sum, losses)
}

/// Tests the model that was trained until `trained`, or loaded; each example counts once. A signal stops
/// it, without a result.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn test(trained: Progress, datasets: &Datasets<Example>, report: &mut Report) -> Result<()> {
    reset_metrics::<Project>(Split::Test)?;
    globals::strategy()?.run_on_all(globals::prepare_inference)?;
    let epochs = trained.epoch - 1;
    report.begin(Split::Test, epochs, datasets.test.batches_per_epoch());
    let mut batches = datasets.test.epoch(1);
    while let Some(inputs) = report.wait_for(|| batches.next()) {
        let losses = distributed_test_step(inputs)?;
        report.step(&losses);
        if interrupt::agreed(None)?.is_some() {
            report.abandon();
            report.say("the test was stopped; `test` does it again");
            return Ok(());
        }
    }
    report.end(trained.step, &merged_metrics::<Project>(Split::Test)?)
}
