//! The metrics of a validation are means over its examples, and not over batches of different size.

#[allow(dead_code)]
#[path = "contract/support.rs"]
mod support;

use anyhow::{Context, Result};
use clap::Parser;
use kiln_engine::{
    checkpoint::Progress,
    data::{Collate, DistributedDataset},
    replica::replica_context,
    report::Report,
};
use training::{
    cli::Args,
    dataset::{Batch, Example, create_datasets},
    globals,
    loss::per_example_losses,
    train::distributed_train_step,
    validation::validate,
};

use support::{Job, on_own_thread, set_up, values};

/// Examples in a global batch of the validation, whose 150 leave 22 for the last one.
const BATCH: usize = 64;

/// The loss of each example for validation, and whether its prediction is right.
fn of_examples(job: &Job, data: &DistributedDataset<Example>) -> Result<Vec<[f64; 2]>> {
    let dataset = data.dataset();
    let examples = (0..dataset.len()).map(|index| dataset.get(index));
    let examples = examples.collect::<Result<Vec<_>>>()?;
    job.strategy.run_on_first(move |_| {
        let device = replica_context()?.device().clone().without_autodiff();
        let batch = Batch::collate(examples, &device)?;
        let predictions = globals::predict(&batch)?;
        let losses = values(&per_example_losses(&predictions, &batch)?);
        let right = predictions.argmax(1).equal(batch.labels.argmax(1)).float();
        let pairs = losses.into_iter().zip(values(&right));
        Ok(pairs
            .map(|(loss, right)| [loss.into(), right.into()])
            .collect())
    })
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// The validation of a model after a few updates.
fn validated(replicas: usize) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let batch_size = (BATCH / replicas).to_string();
    let options = [
        "--strategy",
        "mirrored",
        "--replicas",
        &replicas.to_string(),
        "--batch-size",
        &batch_size,
    ];
    let job = set_up(&options)?;
    for inputs in job.datasets.train.epoch(1).take(5) {
        distributed_train_step(inputs)?;
    }
    let output = folder.path().to_string_lossy();
    let args = Args::try_parse_from(["test", "--output-dir", &output])?;
    let mut report = Report::new(&args.options)?;
    let progress = Progress {
        step: 5,
        ..Progress::START
    };
    let validation = create_datasets(&args)?.validation;
    let metrics = validate(progress, &validation, &mut report)?;
    let metrics = metrics.context("it was stopped")?;
    let examples = of_examples(&job, &validation)?;
    assert_eq!(examples.len() % BATCH, 22);
    for (at, name) in ["loss", "accuracy"].into_iter().enumerate() {
        let values: Vec<f64> = examples.iter().map(|example| example[at]).collect();
        let of_batches: Vec<f64> = values.chunks(BATCH).map(mean).collect();
        let (measured, expected) = (metrics[name], mean(&values));
        assert!(
            (measured - expected).abs() < 1e-6,
            "{name} is {measured} and not {expected}"
        );
        // The mean of Keras's article; it differs, or this test could not fail.
        assert!((mean(&of_batches) - expected).abs() > 1e-4, "{name}");
    }
    Ok(())
}

#[test]
fn an_uneven_last_batch_counts_by_its_examples() -> Result<()> {
    for replicas in [1, 2] {
        on_own_thread(move || validated(replicas))?;
    }
    Ok(())
}
