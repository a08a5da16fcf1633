//! Three steps against the original's in TensorFlow: `fixtures/parity.py` made
//! `fixtures/parity.json`. All three clip their gradients.

#[path = "contract/support.rs"]
#[allow(dead_code)]
mod support;

use std::{collections::BTreeMap, sync::Arc};

use anyhow::Result;
use kiln_engine::{
    data::{BatchOptions, Dataset, Remainder},
    globals::{update_model, weights_and_gradients},
    model::{load_parameters, named_parameters},
};
use serde::Deserialize;
use support::{Job, on_own_thread, set_up};
use training::{
    dataset::{CLASSES, Example},
    globals::{self, Project},
    train::distributed_train_step,
};

const BATCH: usize = 12;
const SIZE: usize = 8;

#[derive(Deserialize)]
struct Parity {
    steps: Vec<Step>,
    weights: BTreeMap<String, Weights>,
}

#[derive(Deserialize)]
struct Step {
    loss: f64,
    gradient_norms: BTreeMap<String, f64>,
}

/// A parameter after all steps: its norm, and every so many of its values.
#[derive(Deserialize)]
struct Weights {
    scale: f64,
    norm: f64,
    every: usize,
    values: Vec<f32>,
}

/// The images of `fixtures/parity.py`.
struct Patterns;

impl Dataset for Patterns {
    type Example = Example;

    fn len(&self) -> usize {
        BATCH
    }

    fn get(&self, index: usize) -> Result<Example> {
        let pixel = |place| (place * 37 + index * 101 + place * place * index) % 256;
        Ok(Example {
            pixels: (0..SIZE * SIZE).map(|place| pixel(place) as u8).collect(),
            height: SIZE,
            width: SIZE,
            label: (index % CLASSES) as u8,
        })
    }
}

/// The initial weights of `fixtures/parity.py`, in the order of the parameters of the model.
fn initial_weights(parity: &Parity) -> Result<Vec<f32>> {
    let parameters = named_parameters(&globals::model()?).into_iter().enumerate();
    let values = parameters.flat_map(|(number, (name, values))| {
        let scale = parity.weights[&name].scale;
        let value = move |index| scale * (index as f64 * 0.7 + number as f64).sin();
        (0..values.len()).map(move |index| value(index) as f32)
    });
    Ok(values.collect())
}

fn load_initial_weights(job: &Job, parity: &Arc<Parity>) -> Result<()> {
    let parity = Arc::clone(parity);
    let loaded = job.strategy.run_on_all(move |_| {
        let values = initial_weights(&parity)?;
        update_model::<Project>(|model| load_parameters(model, &values))
    });
    loaded.map(drop)
}

fn norm(values: &[f32]) -> f64 {
    let squares = values.iter().map(|value| f64::from(*value).powi(2));
    squares.sum::<f64>().sqrt()
}

#[track_caller]
fn assert_close(what: &str, value: f64, expected: f64, tolerance: f64) {
    let difference = (value - expected).abs();
    assert!(
        difference <= tolerance,
        "{what} is {value} and not {expected}"
    );
}

fn check_step(job: &Job, expected: &Step) -> Result<()> {
    let options = BatchOptions {
        global_batch_size: BATCH,
        seed: 0,
        shuffle: false,
        remainder: Remainder::Keep,
        accumulate: 1,
        prefetch: Some(0),
        training: true,
        augment: None,
    };
    let data = job
        .strategy
        .distribute_dataset(Arc::new(Patterns), options)?;
    let losses = distributed_train_step(data.epoch(1).next().expect("a batch"))?;
    let loss = losses.get("loss").expect("a loss");
    assert_close("the loss", loss, expected.loss, 1e-5 * expected.loss);
    let values = job
        .strategy
        .run_on_first(|_| weights_and_gradients::<Project>())?;
    let values: BTreeMap<_, _> = values.into_iter().collect();
    for (name, expected) in &expected.gradient_norms {
        let gradient = norm(&values[&format!("gradients/{name}")]);
        assert_close(
            &format!("the gradient of {name}"),
            gradient,
            *expected,
            1e-4 * expected,
        );
    }
    Ok(())
}

fn check(options: &[&str]) {
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    let checked = on_own_thread(move || {
        let parity: Parity = serde_json::from_str(include_str!("fixtures/parity.json"))?;
        let parity = Arc::new(parity);
        let job = set_up(&options.iter().map(String::as_str).collect::<Vec<_>>())?;
        load_initial_weights(&job, &parity)?;
        for step in &parity.steps {
            check_step(&job, step)?;
        }
        let trained = job
            .strategy
            .run_on_first(|_| Ok(named_parameters(&globals::model()?)))?;
        assert_eq!(trained.len(), parity.weights.len());
        for (name, values) in trained {
            let expected = &parity.weights[&name];
            assert_close(
                &format!("the norm of {name}"),
                norm(&values),
                expected.norm,
                1e-4,
            );
            let values: Vec<f32> = values.into_iter().step_by(expected.every).collect();
            let difference = support::difference(&values, &expected.values);
            assert!(difference < 1e-5, "{name} differs by {difference}");
        }
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn three_steps_are_those_of_tensorflow() {
    check(&["--strategy", "one-device"]);
}

#[test]
fn three_steps_on_three_replicas_are_too() {
    check(&["--strategy", "mirrored", "--replicas", "3"]);
}

#[test]
fn three_steps_in_stages_are_too() {
    check(&["--strategy", "model-parallel", "--replicas", "1"]);
}
