//! Step 7 without a strategy: the test on one device, with no replica.

use anyhow::Result;
use burn::module::Module;
use kiln_engine::{
    checkpoint::{Checkpoints, Which},
    data::Collate,
    metric::{MergedMetric, metric_results},
    replica::visible_devices,
};

use crate::{
    callbacks::{prepare_inputs, prepare_loss_inputs},
    cli::Args,
    dataset::{Batch, read_examples},
    globals::Project,
    loss::create_loss_objects,
    metric::create_metrics,
    model::Model,
};

/// Examples that go through the model at once.
const BATCH: usize = 256;

/// Tests a checkpoint on one device, without a strategy and its replicas; each example counts once.
///
/// # Errors
/// The checkpoint cannot be used, or the data cannot be read.
pub fn test_without_strategy(args: &Args, which: &Which) -> Result<Vec<MergedMetric>> {
    let device = visible_devices().remove(0);
    let checkpoint = Checkpoints::new::<Project>(&args.options).find(which)?;
    let model = checkpoint.load_model(Model::new(&device))?.valid();
    let (_, examples) = read_examples(args)?;
    let (loss_objects, mut metrics) = (create_loss_objects(), create_metrics());
    for start in (0..examples.len()).step_by(BATCH) {
        let indices = start..examples.len().min(start + BATCH);
        let examples = indices.map(|index| examples.get(index));
        let batch = Batch::collate(examples.collect::<Result<_>>()?, &device)?;
        let batch = prepare_inputs(batch)?;
        let predictions = model.forward(&batch); // [batch, classes]
        let (predictions, batch) = prepare_loss_inputs(predictions, batch)?;
        let (logits, labels) = (predictions.clone(), batch.labels.clone());
        let per_example = loss_objects.cross_entropy.forward(logits, labels)?; // [batch]
        metrics.update(&per_example, &predictions, &batch)?;
    }
    let results = metric_results(&kiln_engine::Metrics::all(&mut metrics));
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
