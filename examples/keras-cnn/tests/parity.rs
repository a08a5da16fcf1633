//! Three updates against Keras on the same weights and batch: `fixtures/parity.py` made
//! `fixtures/parity.json`.

#[allow(dead_code)]
#[path = "contract/support.rs"]
mod support;

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::{Device, Tensor, TensorData};
use kiln_engine::{
    data::{BatchOptions, Dataset, Remainder},
    globals::{update_model, weights_and_gradients},
    loss::Losses,
    model::{load_parameters, named_parameters},
};
use serde_json::Value;
use training::{
    dataset::{CLASSES, Example},
    globals::Project,
    loss::create_loss_objects,
    train::distributed_train_step,
};

use support::{Job, difference, on_own_thread, set_up, values};

const EXAMPLES: usize = 6;
const SIZE: usize = 28;

/// Names of parameters, each with its values.
type Named = Vec<(String, Vec<f32>)>;

fn reference(part: &str) -> Value {
    let text = include_str!("fixtures/parity.json");
    let reference: Value = serde_json::from_str(text).unwrap();
    reference[part].clone()
}

fn floats(value: &Value) -> Vec<f32> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap() as f32).collect()
}

/// Value i of array `number` is scale * sin(frequency * i + number), as in `parity.py`.
fn wave(number: usize, len: usize, scale: f64, frequency: f64) -> Vec<f32> {
    let value = |i| (scale * (i as f64 * frequency + number as f64).sin()) as f32;
    (0..len).map(value).collect()
}

/// The examples of the batch.
struct Given;

impl Dataset for Given {
    type Example = Example;

    fn len(&self) -> usize {
        EXAMPLES
    }

    fn get(&self, index: usize) -> Result<Example> {
        let size = SIZE * SIZE;
        let all = wave(7, EXAMPLES * size, 0.5, 4.1);
        let pixels = all[index * size..(index + 1) * size].iter();
        let mut label = [0.0; CLASSES];
        label[index * 3 % CLASSES] = 1.0;
        Ok(Example {
            pixels: pixels.map(|value| 0.5 + value).collect(),
            height: SIZE,
            width: SIZE,
            label,
        })
    }
}

/// A job with the weights of `parity.py` on all replicas, and without dropout.
fn given_job(replicas: usize) -> Result<Job> {
    let replicas = replicas.to_string();
    let job = set_up(&[
        "--strategy",
        "mirrored",
        "--replicas",
        &replicas,
        "--dropout",
        "0",
        "--learning-rate",
        "0.001",
    ])?;
    job.strategy.run_on_all(|_| {
        update_model::<Project>(|model| {
            let scales = [0.15, 0.1, 0.03, 0.1, 0.06, 0.1];
            let named = named_parameters(&model).into_iter().zip(scales);
            let given = named
                .enumerate()
                .map(|(number, ((_, values), scale))| wave(number, values.len(), scale, 0.7));
            let given: Vec<f32> = given.flatten().collect();
            load_parameters(model, &given)
        })
    })?;
    Ok(job)
}

/// Trains on the batch once.
fn step(job: &Job) -> Result<Losses> {
    let options = BatchOptions {
        global_batch_size: EXAMPLES,
        seed: 42,
        shuffle: false,
        remainder: Remainder::Keep,
        accumulate: 1,
        prefetch: Some(0),
        training: true,
        augment: None,
    };
    let data = job.strategy.distribute_dataset(Arc::new(Given), options)?;
    distributed_train_step(data.epoch(1).next().expect("a batch"))
}

/// The weights and last gradients whose names start with `prefix`.
fn of_replica(job: &Job, prefix: &'static str) -> Result<Named> {
    job.strategy.run_on_first(move |_| {
        let all = weights_and_gradients::<Project>()?.into_iter();
        let stripped =
            all.map(|(path, values)| (path.strip_prefix(prefix).map(str::to_owned), values));
        Ok(stripped
            .filter_map(|(path, values)| Some((path?, values)))
            .collect())
    })
}

struct Trained {
    losses: Vec<f32>,
    /// Of the first update.
    gradients: Named,
    /// After the third.
    weights: Named,
}

fn trained(replicas: usize) -> Trained {
    on_own_thread(move || {
        let job = given_job(replicas)?;
        let step = || -> Result<f32> { Ok(step(&job)?.get("loss").expect("a loss") as f32) };
        let first = step()?;
        let gradients = of_replica(&job, "gradients/")?;
        let losses = vec![first, step()?, step()?];
        Ok(Trained {
            losses,
            gradients,
            weights: of_replica(&job, "weights/")?,
        })
    })
    .unwrap()
}

#[track_caller]
fn assert_norms(values: &Named, expected: &Value, tolerance: f64) {
    assert_eq!(values.len(), expected.as_object().unwrap().len());
    for (path, values) in values {
        let squares: f64 = values.iter().map(|value| f64::from(*value).powi(2)).sum();
        let (norm, expected) = (squares.sqrt(), expected[path].as_f64().unwrap());
        assert!(
            (norm - expected).abs() <= tolerance * expected,
            "the norm of {path} is {norm} and not {expected}"
        );
    }
}

/// The differences of the weights that the fixture has.
fn differences(weights: &Named, expected: &Value) -> Vec<f32> {
    let of_parameter = |(path, values): &(String, Vec<f32>)| {
        let step = expected[path]["step"].as_u64().unwrap() as usize;
        let expected = floats(&expected[path]["values"]);
        let values = values.iter().step_by(step);
        assert_eq!(values.len(), expected.len());
        values
            .zip(expected)
            .map(|(value, expected)| (value - expected).abs())
            .collect::<Vec<_>>()
    };
    weights.iter().flat_map(of_parameter).collect()
}

#[test]
fn three_updates_are_those_of_keras() {
    let expected = reference("keras");
    for replicas in [1, 2] {
        let trained = trained(replicas);
        let losses = difference(&trained.losses, &floats(&expected["losses"]));
        assert!(losses < 1e-5, "losses differ by {losses}");
        assert_norms(&trained.gradients, &expected["gradient_norms"], 1e-5);
        assert_norms(&trained.weights, &expected["weight_norms"], 1e-5);
        let differences = differences(&trained.weights, &expected["weights"]);
        let largest = differences.into_iter().fold(0.0, f32::max);
        assert!(
            largest < 1e-5,
            "weights differ by {largest} on {replicas} replicas"
        );
    }
}

#[test]
fn cross_entropy_is_that_of_keras_from_certain_and_right_to_certain_and_wrong() {
    let expected = reference("cross_entropy");
    let matrix = |part: &str| {
        let rows = expected[part].as_array().unwrap();
        let values: Vec<f32> = rows.iter().flat_map(floats).collect();
        let shape = [rows.len(), values.len() / rows.len()];
        Tensor::<2>::from_data(TensorData::new(values, shape), &Device::flex().autodiff())
    };
    let probabilities = matrix("probabilities").require_grad(); // [6, 3]
    let cross_entropy = create_loss_objects().cross_entropy;
    let losses = cross_entropy.forward(probabilities.clone(), matrix("labels")); // [6]
    assert!(difference(&values(&losses), &floats(&expected["losses"])) < 1e-5);
    let gradients = probabilities.grad(&losses.sum().backward()).unwrap(); // [6, 3]
    assert!(difference(&values(&gradients), &values(&matrix("gradients"))) < 1e-5);
}
