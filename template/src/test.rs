//! Step 7: the test.

use anyhow::Result;
use kiln_engine::{
    checkpoint::Progress,
    comm::ReduceOp,
    data::{Datasets, Shard},
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

/// Tests the trained or loaded model, whose training progress is `trained`; each example counts once. A
/// signal stops the test without a result.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn test(trained: Progress, datasets: &Datasets<Example>, report: &mut Report) -> Result<()> {
    let (split, epoch) = (Split::Test, trained.epoch - 1);
    let mut test = Evaluation::<Project>::start(split, epoch, &datasets.test, report)?;
    while let Some(inputs) = test.next_batch() {
        if !test.step(inputs, distributed_test_step)? {
            report.say("the test was stopped; run `test` to repeat it");
            return Ok(());
        }
    }
    test.end(trained.step).map(drop)
}
