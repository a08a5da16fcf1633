//! Step 7: the test.

use anyhow::Result;
use burn::module::Module;

use crate::{
    callbacks::{prepare_inputs, prepare_loss_inputs},
    checkpoint::{Checkpoints, Progress, Which, interrupt},
    cli::Args,
    data::{Collate, Shard},
    dataset::{Batch, Datasets, Example, read_examples},
    distribute::{Losses, MergedMetric, PerReplica, ReduceOp, metric_results, visible_devices},
    globals::{self, Split},
    loss::{compute_loss, create_loss_objects, per_example_losses},
    metric::{create_metrics, merged_metrics, reset_metrics},
    model::Model,
    report::Report,
};

/// Examples that go through the model at once where there is no strategy.
const BATCH: usize = 256;

/// One replica's losses for its share of a batch; nothing is learnt.
pub fn test_step(batch: Batch) -> Result<Losses> {
    let batch = prepare_inputs(batch)?;
    let predictions = globals::inference_model()?.forward(batch.features.clone()); // [batch, classes]
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
pub fn test(trained: Progress, datasets: &Datasets, report: &mut Report) -> Result<()> {
    reset_metrics(Split::Test)?;
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
    report.end(trained.step, &merged_metrics(Split::Test)?)
}

/// Tests a checkpoint on one device, without a strategy and its replicas; each example counts once.
///
/// # Errors
/// The checkpoint cannot be used, or the data cannot be read.
pub fn test_without_strategy(args: &Args, which: &Which) -> Result<Vec<MergedMetric>> {
    let device = visible_devices().remove(0);
    let checkpoint = Checkpoints::new(args).find(which)?;
    let model = checkpoint.load_model(Model::new(&device))?.valid();
    let (_, examples) = read_examples(args)?;
    let (loss_objects, mut metrics) = (create_loss_objects(), create_metrics().test);
    for start in (0..examples.len()).step_by(BATCH) {
        let indices = start..examples.len().min(start + BATCH);
        let examples = indices.map(|index| examples.get(index));
        let batch = Batch::collate(examples.collect::<Result<_>>()?, &device)?;
        let batch = prepare_inputs(batch)?;
        let predictions = model.forward(batch.features.clone()); // [batch, classes]
        let (predictions, batch) = prepare_loss_inputs(predictions, batch)?;
        let labels = batch.labels.clone();
        let per_example = loss_objects
            .cross_entropy
            .forward(predictions.clone(), labels); // [batch]
        metrics.update(&per_example, &predictions, &batch)?;
    }
    let results = metric_results(&metrics.all());
    let values = results
        .iter()
        .map(|metric| format!("{} {:.4}", metric.name, metric.value));
    let values = values.collect::<Vec<_>>().join("  ");
    println!(
        "test without a strategy  {values}  ({} examples)",
        examples.len()
    );
    Ok(results)
}
