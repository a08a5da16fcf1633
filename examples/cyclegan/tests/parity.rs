//! Three steps of training against TensorFlow's: `fixtures/parity.py` made `fixtures/parity.json`.

mod job;

use std::sync::Arc;

use anyhow::Result;
use kiln_engine::{
    data::Dataset,
    globals::{merged_metrics, reset_metrics, update_trainable, weights_and_gradients},
    model::{load_parameters, named_parameters},
};
use serde_json::Value;
use training::{
    dataset::{Example, Examples, Image},
    globals::{Project, Split},
    loss::{ERRORS, LOSSES},
    train::distributed_train_step,
};

use job::{Job, in_one_batch, on_own_thread, set_up};

const SIDE: usize = 16;
const OPTIONS: &[&str] = &[
    "--strategy",
    "one-device",
    "--image-size",
    "16",
    "--filters",
    "4",
    "--blocks",
    "2",
];

fn fixture() -> Value {
    serde_json::from_str(include_str!("fixtures/parity.json")).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    let values = value.as_array().unwrap().iter();
    values.map(|value| value.as_f64().unwrap()).collect()
}

/// The two images of X and of Y, as bytes.
struct Waves;

impl Dataset for Waves {
    type Example = Example;

    fn len(&self) -> usize {
        2
    }

    fn get(&self, index: usize) -> Result<Example> {
        let len = SIDE * SIDE * 3;
        let image = |phase: f64| {
            let places = index * len..(index + 1) * len;
            let wave = |place| (128.0 + 127.0 * (place as f64 * 0.37 + phase).sin()).floor() as u8;
            Image::new(places.map(wave).collect(), [SIDE; 2], [SIDE; 2])
        };
        Ok(Example {
            x: image(0.0)?,
            y: image(2.0)?,
        })
    }
}

/// The initial values of parameter `number`.
fn initial(number: usize, shape: &[f64], is_scale: bool) -> impl Iterator<Item = f32> {
    let len = shape.iter().product::<f64>() as usize;
    let amplitude = match shape {
        [_, rest @ ..] if rest.len() == 3 => (2.0 / rest.iter().product::<f64>()).sqrt(),
        _ => 0.1,
    };
    let wave = move |place| (amplitude * (place as f64 * 0.7 + number as f64).sin()) as f32;
    (0..len).map(move |place| wave(place) + f32::from(u8::from(is_scale)))
}

fn load_initial(job: &Job, parameters: &[Value]) -> Result<()> {
    let shapes: Vec<_> = parameters
        .iter()
        .map(|one| numbers(&one["shape"]))
        .collect();
    job.strategy.run_on_first(move |_| {
        update_trainable::<Project>(|mut trainable| {
            let named = named_parameters(&trainable.model).into_iter();
            let names: Vec<String> = named.map(|(name, _)| name).collect();
            assert_eq!(names.len(), shapes.len(), "parameters");
            let values = shapes.iter().enumerate().flat_map(|(number, shape)| {
                initial(number, shape, names[number].ends_with("gamma"))
            });
            trainable.model = load_parameters(trainable.model, &values.collect::<Vec<_>>())?;
            Ok(trainable)
        })
    })
}

fn norm(values: &[f32]) -> f64 {
    values
        .iter()
        .map(|value| f64::from(*value).powi(2))
        .sum::<f64>()
        .sqrt()
}

#[track_caller]
fn assert_close(what: &str, value: f64, expected: f64, tolerance: f64) {
    assert!(
        (value - expected).abs() <= tolerance * expected.abs().max(1e-3),
        "{what} is {value}, and {expected} in TensorFlow"
    );
}

/// Results of the last step: losses and errors by name, weights and gradients by path.
type Step = (Vec<(String, f64)>, Vec<(String, Vec<f32>)>);

fn train(steps: usize) -> Vec<Step> {
    on_own_thread(move || {
        let job = set_up(OPTIONS)?;
        load_initial(&job, fixture()["parameters"].as_array().unwrap())?;
        let examples: Examples = Arc::new(Waves);
        let options = in_one_batch(&examples);
        let data = job.strategy.distribute_dataset(examples, options)?;
        let step = |number| -> Result<Step> {
            reset_metrics::<Project>(Split::Train)?;
            let losses = distributed_train_step(data.epoch(number).next().unwrap())?;
            let mut values: Vec<_> = losses
                .iter()
                .map(|(name, loss)| (name.to_owned(), loss))
                .collect();
            let metrics = merged_metrics::<Project>(Split::Train)?.into_iter();
            let errors = metrics.filter(|metric| ERRORS.contains(&metric.name.as_str()));
            values.extend(errors.map(|metric| (metric.name, metric.value)));
            let tensors = job
                .strategy
                .run_on_first(|_| weights_and_gradients::<Project>())?;
            Ok((values, tensors))
        };
        (1..=steps).map(step).collect()
    })
}

#[test]
fn three_steps_have_the_losses_gradients_and_weights_of_tensorflow() {
    let fixture = fixture();
    let trained = train(3);
    let expected = fixture["steps"].as_array().unwrap();
    for (number, ((losses, tensors), expected)) in trained.iter().zip(expected).enumerate() {
        assert_eq!(losses.len(), LOSSES.len() + ERRORS.len());
        // Adam takes equal steps down small and large gradients, so that differences in the last
        // bits grow from step to step.
        let norm_tolerance = if number == 0 { 1e-4 } else { 1e-3 };
        for (name, loss) in losses {
            let expected = expected["losses"][name].as_f64().unwrap();
            assert_close(name, *loss, expected, 1e-5);
        }
        let gradients = tensors
            .iter()
            .filter(|(path, _)| path.starts_with("gradients/"));
        let norms = numbers(&expected["gradient_norms"]);
        assert_eq!(gradients.clone().count(), norms.len());
        for ((path, gradient), expected) in gradients.zip(norms) {
            assert_close(path, norm(gradient), expected, norm_tolerance);
        }
    }
    let weights = trained[2]
        .1
        .iter()
        .filter(|(path, _)| path.starts_with("weights/"));
    let parameters = fixture["parameters"].as_array().unwrap();
    assert_eq!(weights.clone().count(), parameters.len());
    for ((path, values), parameter) in weights.zip(parameters) {
        let network = parameter["network"].as_str().unwrap();
        assert!(
            path.starts_with(&format!("weights/{network}.")),
            "{path} of {network}"
        );
        let every = parameter["every"].as_u64().unwrap() as usize;
        let expected = numbers(&parameter["values"]);
        assert_eq!(values.iter().step_by(every).count(), expected.len());
        for (value, expected) in values.iter().step_by(every).zip(expected) {
            let difference = (f64::from(*value) - expected).abs();
            assert!(
                difference < 1e-4,
                "{path} holds {value}, and {expected} in TensorFlow"
            );
        }
        assert_close(
            path,
            norm(values),
            parameter["norm"].as_f64().unwrap(),
            1e-4,
        );
    }
}
