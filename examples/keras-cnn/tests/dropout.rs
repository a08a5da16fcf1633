//! Dropout is on in training and off elsewhere, differs between replicas, and repeats by seed.

#[allow(dead_code)]
#[path = "contract/support.rs"]
mod support;

use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use kiln_engine::{
    data::{BatchOptions, Collate, Remainder},
    globals::{inference_model, prepare_inference},
};
use training::{
    cli::Args,
    dataset::Batch,
    globals::{self, Project},
};

use support::{Job, difference, set_up, values};

/// Predictions of two replicas for the same 8 examples, at a batch of the data.
fn predicted(job: &Job, training: bool, seed: u64, batch: usize) -> Result<Vec<Vec<f32>>> {
    let dataset = Arc::clone(job.datasets.train.dataset());
    let examples = (0..8).map(|index| dataset.get(index));
    let examples = examples.collect::<Result<Vec<_>>>()?;
    let options = BatchOptions {
        global_batch_size: 64,
        seed,
        shuffle: true,
        remainder: Remainder::Keep,
        accumulate: 1,
        prefetch: Some(0),
        training,
        augment: None,
    };
    let data = job.strategy.distribute_dataset(dataset, options)?;
    let shards = data.epoch(1).nth(batch).expect("a batch");
    let outputs = job.strategy.run(shards, move |shard| {
        let model = match training {
            true => globals::model()?,
            false => inference_model::<Project>()?,
        };
        // The share begins the replica's random numbers and names the device. Its own examples are
        // not looked at.
        let share: Batch = shard.load()?.expect("a share");
        let batch = Batch::collate(examples.clone(), &share.features.device())?;
        Ok(values(&model.forward(&batch))) // [8, classes]
    })?;
    Ok(outputs.into_iter().collect())
}

#[test]
fn dropout_is_on_in_training_and_off_in_validation() -> Result<()> {
    // Without --dropout, at the default of one half.
    let job = set_up(&["--strategy", "mirrored", "--replicas", "2"])?;
    job.strategy.run_on_all(prepare_inference::<Project>)?;
    let (training, validation) = (predicted(&job, true, 7, 0)?, predicted(&job, false, 7, 0)?);
    assert_ne!(training[0], training[1], "both replicas drop the same");
    assert_eq!(validation[0], validation[1]);
    let dropped = difference(&training[0], &validation[0]);
    assert!(dropped > 1e-3, "nothing is dropped in training");
    assert_eq!(predicted(&job, false, 8, 1)?, validation);
    Ok(())
}

#[test]
fn dropout_repeats_and_differs_by_seed_and_batch() -> Result<()> {
    let job = set_up(&["--strategy", "mirrored", "--replicas", "2"])?;
    let first = predicted(&job, true, 7, 0)?;
    assert_eq!(predicted(&job, true, 7, 0)?, first);
    assert_ne!(predicted(&job, true, 7, 1)?, first);
    assert_ne!(predicted(&job, true, 8, 0)?, first);
    Ok(())
}

#[test]
fn dropout_of_zero_drops_nothing() -> Result<()> {
    let job = set_up(&[
        "--strategy",
        "mirrored",
        "--replicas",
        "2",
        "--dropout",
        "0",
    ])?;
    job.strategy.run_on_all(prepare_inference::<Project>)?;
    let (training, validation) = (predicted(&job, true, 7, 0)?, predicted(&job, false, 7, 0)?);
    assert_eq!(training[0], training[1]);
    // Burn computes a softmax that records for gradients in another order.
    assert!(difference(&training[0], &validation[0]) < 1e-6);
    Ok(())
}

#[test]
fn a_share_that_leaves_nothing_is_refused() {
    for share in ["1", "-0.1", "nan", "half"] {
        let error = Args::try_parse_from(["keras-cnn", &format!("--dropout={share}")]);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("--dropout"), "{error}");
    }
}
