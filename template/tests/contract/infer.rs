use std::path::Path;

use anyhow::{Context, Result, ensure};
use burn::module::Module;
use clap::Parser;
use kiln_engine::{data::Collate, report::predictions::ensure_finite};
use serde_json::Value;
use training::{
    cli::Args,
    dataset::{Batch, read_examples},
    globals,
    infer::{predict, read_inputs},
};

use crate::support::{amounts, contract, set_up_replicas};

#[test]
fn every_example_gets_one_prediction() {
    contract("infer.predict", || {
        let job = set_up_replicas(1)?;
        let (_, test) = read_examples(&Args::try_parse_from(["contract"])?)?;
        let examples = (0..amounts().few.min(test.len()))
            .map(|index| test.get(index))
            .collect::<Result<Vec<_>>>()?;
        let (all, first) = job.strategy.run_on_first(move |replica| {
            let (model, device) = (
                globals::model()?.valid(),
                replica.device().clone().without_autodiff(),
            );
            let predict_first = |count| -> Result<Vec<Value>> {
                let predictions =
                    predict(&model, Batch::collate(examples[..count].to_vec(), &device)?)?;
                let values = predictions.iter().map(|prediction| {
                    ensure_finite(prediction)?;
                    Ok(serde_json::to_value(prediction)?)
                });
                values.collect()
            };
            let (all, first) = (predict_first(examples.len())?, predict_first(1)?);
            ensure!(
                all.len() == examples.len(),
                "{} examples have {} predictions",
                examples.len(),
                all.len()
            );
            Ok((all, first))
        })?;
        ensure!(
            first.len() == 1,
            "one example has {} predictions",
            first.len()
        );
        ensure!(
            is_close(&first[0], &all[0]),
            "the prediction for an example depends on the others in its batch: {} alone, and {}",
            first[0],
            all[0]
        );
        Ok(())
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
