//! Step 7: the test.

use anyhow::Result;

use crate::{
    cli::Args,
    dataset::{Batch, Datasets, Example},
    distribute::{Losses, PerReplica, ReduceOp, Shard},
    globals::{self, Split},
    loss::{compute_loss, per_example_losses},
    metric::{merged_metrics, reset_metrics},
    report::Report,
};

/// One replica's losses for its share of a batch; nothing is learnt.
pub fn test_step(batch: Batch) -> Result<Losses> {
    // TODO(test.step): Evaluate a batch of the test split.
    //   Now: the loss and the metrics of training.
    //   Shapes: features [batch, 1, height, width] and labels [batch] in.
    let predictions = globals::inference_model()?.forward(batch.features.clone()); // [batch, classes]
    let per_example = per_example_losses(&predictions, &batch)?; // [batch]
    globals::with_metrics(Split::Test, |metrics| {
        metrics.update(&per_example, &predictions, &batch);
    })?;
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

/// Tests the weights that were trained or loaded; each example counts once.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn test(args: &Args, datasets: &Datasets, report: &mut Report) -> Result<()> {
    // A test of saved weights does not know how long they were trained.
    let epoch = if args.trains() { args.epochs } else { 0 };
    reset_metrics(Split::Test)?;
    report.begin(Split::Test, epoch, datasets.test.steps_per_epoch());
    for inputs in datasets.test.epoch(1) {
        let losses = distributed_test_step(inputs)?;
        report.step(&losses);
    }
    report.end(
        epoch * datasets.train.steps_per_epoch(),
        &merged_metrics(Split::Test)?,
    )
}
