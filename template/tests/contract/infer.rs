use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use kiln_engine::{data::Collate, report::predictions::ensure_finite};
use serde_json::Value;
use training::{
    dataset::{Batch, Example},
    globals,
    infer::{predict, read_inputs},
};

use crate::support::{amounts, contract, set_up_replicas};

#[test]
fn every_example_gets_one_prediction() {
    contract("infer.predict", || {
        let job = set_up_replicas(1)?;
        let test = job.datasets.test.dataset();
        let examples = (0..amounts().few.min(test.len()))
            .map(|index| test.get(index))
            .collect::<Result<Vec<_>>>()?;
        job.strategy.run_on_first(move |replica| {
            let (model, device) = (
                globals::model()?.valid(),
                replica.device().clone().without_autodiff(),
            );
            let predictions = |examples: &[Example]| -> Result<Vec<Value>> {
                let predictions = predict(&model, Batch::collate(examples.to_vec(), &device)?)?;
                let values = predictions.iter().map(|prediction| {
                    ensure_finite(prediction)?;
                    Ok(serde_json::to_value(prediction)?)
                });
                values.collect()
            };
            let alone = examples
                .chunks(1)
                .map(predictions)
                .collect::<Result<Vec<_>>>()?;
            let (alone, together) = (alone.concat(), predictions(&examples)?);
            for (count, batch) in [(alone.len(), 1), (together.len(), examples.len())] {
                ensure!(
                    count == examples.len(),
                    "{} examples in batches of {batch} have {count} predictions",
                    examples.len()
                );
            }
            for (alone, together) in alone.iter().zip(together) {
                ensure!(
                    is_close(alone, &together),
                    "the prediction for an example depends on the others in its batch: {alone} \
                     alone, and {together}"
                );
            }
            Ok(())
        })
    });
}

/// True if all numbers of two predictions are close, and the rest is equal.
fn is_close(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|((_, left), (_, right))| is_close(left, right))
        }
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len()
                && left
                    .iter()
                    .zip(right)
                    .all(|(left, right)| is_close(left, right))
        }
        _ => match (left.as_f64(), right.as_f64()) {
            (Some(left), Some(right)) => (left - right).abs() <= 1e-4 * left.abs().max(1.0),
            _ => left == right,
        },
    }
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    contract("infer.inputs", || {
        let missing = read_inputs(Path::new("no such file"));
        let error = missing.err().context("a file that is not there reads")?;
        ensure!(
            format!("{error:#}").contains("no such file"),
            "the error for a missing file does not name it: {error:#}"
        );
        Ok(())
    });
}
