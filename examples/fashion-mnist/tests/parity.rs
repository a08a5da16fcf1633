//! Three updates against TensorFlow: `fixtures/parity.py` made `fixtures/parity.json`.

#[allow(dead_code)]
#[path = "contract/support.rs"]
mod support;

use std::{collections::HashMap, sync::Arc};

use anyhow::{Context, Result};
use burn::{
    module::{Module, ModuleMapper, Param},
    tensor::{Tensor, TensorData},
};
use kiln_engine::{
    data::{BatchOptions, Dataset, Remainder},
    globals::update_trainable,
    model::named_parameters,
    optim::FlatGradients,
};
use serde::Deserialize;
use training::{
    dataset::Example,
    fashion_mnist::SIZE,
    globals::{self, Project},
    model::Model,
    train::{distributed_train_step, train_step},
};

use support::{Job, set_up};

const EXAMPLES: usize = 4;

#[derive(Deserialize)]
struct Reference {
    /// Before each update.
    losses: Vec<f64>,
    parameters: Vec<Parameter>,
}

#[derive(Deserialize)]
struct Parameter {
    name: String,
    /// As Keras lays it out.
    shape: Vec<usize>,
    /// Of the first update.
    gradient_norm: f64,
    /// Of the values after the last one.
    norm: f64,
    every: usize,
    values: Vec<f32>,
}

/// The batch of `parity.py`.
struct Images;

impl Dataset for Images {
    type Example = Example;

    fn len(&self) -> usize {
        EXAMPLES
    }

    fn get(&self, index: usize) -> Result<Example> {
        let places = (0..SIZE * SIZE).map(|place| (place / SIZE, place % SIZE));
        let pixel =
            |(y, x)| ((index * 46 + y * y * 3 + x * x * 5 + x * y * (index + 11)) % 256) as u8;
        Ok(Example {
            pixels: places.map(pixel).collect(),
            height: SIZE,
            width: SIZE,
            label: (index * 3 % 10) as u8,
        })
    }
}

/// The initial value at place `index` of a parameter as Keras lays it out.
fn initial(parameter: usize, shape: &[usize], index: usize) -> f32 {
    let scale = match shape {
        [_] => 0.1,
        [window @ .., inputs, outputs] => {
            let window: usize = window.iter().product();
            (6.0 / (window * (inputs + outputs)) as f64).sqrt()
        }
        [] => unreachable!("a parameter has a dimension"),
    };
    let number = (index * 7919 + (parameter + 1) * 104_729) % 10_007;
    (scale * (2.0 * number as f64 / 10_007.0 - 1.0)) as f32
}

/// Index in Keras of the value that Burn has at `index`: kernels are `[height, width, in, out]` and
/// not `[out, in, height, width]`, and pixels are flattened before channels.
fn place_in_keras(parameter: &Parameter, index: usize) -> usize {
    match (parameter.name.as_str(), &parameter.shape[..]) {
        (_, [height, width, inputs, outputs]) => {
            let (output, rest) = (
                index / (inputs * height * width),
                index % (inputs * height * width),
            );
            let (input, pixel) = (rest / (height * width), rest % (height * width));
            (pixel * inputs + input) * outputs + output
        }
        ("hidden.weight", [inputs, outputs]) => {
            const CHANNELS: usize = 64;
            let (row, output) = (index / outputs, index % outputs);
            let pixels = inputs / CHANNELS;
            let (channel, pixel) = (row / pixels, row % pixels);
            (pixel * CHANNELS + channel) * outputs + output
        }
        _ => index,
    }
}

/// Gives a model the initial values of `parity.py`.
struct Initial<'a> {
    parameters: &'a [Parameter],
    place: usize,
}

impl ModuleMapper for Initial<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let parameter = &self.parameters[self.place];
        let len = param.shape().num_elements();
        let value = |index| {
            initial(
                self.place,
                &parameter.shape,
                place_in_keras(parameter, index),
            )
        };
        let values: Vec<f32> = (0..len).map(value).collect();
        self.place += 1;
        param.map(|tensor| {
            let data = TensorData::new(values, tensor.shape());
            Tensor::from_data(data, &tensor.device()).require_grad()
        })
    }
}

/// A job on one device that starts from the weights of `parity.py`.
fn job(reference: &Arc<Reference>) -> Result<Job> {
    let job = set_up(&["--strategy", "one-device"])?;
    let reference = Arc::clone(reference);
    job.strategy.run_on_all(move |_| {
        update_trainable::<Project>(|mut trainable| {
            trainable.model = trainable.model.map(&mut Initial {
                parameters: &reference.parameters,
                place: 0,
            });
            Ok(trainable)
        })
    })?;
    Ok(job)
}

fn reference() -> Arc<Reference> {
    let reference = serde_json::from_str(include_str!("fixtures/parity.json"));
    Arc::new(reference.expect("parity.json holds the reference"))
}

fn batch_options() -> BatchOptions<Example> {
    BatchOptions {
        global_batch_size: EXAMPLES,
        seed: 42,
        shuffle: false,
        remainder: Remainder::Keep,
        accumulate: 1,
        prefetch: Some(0),
        training: true,
        augment: None,
    }
}

fn norm(values: &[f32]) -> f64 {
    let squares = values.iter().map(|value| f64::from(*value).powi(2));
    squares.sum::<f64>().sqrt()
}

#[track_caller]
fn assert_close(what: &str, value: f64, expected: f64, tolerance: f64) {
    let error = (value - expected).abs() / expected.abs();
    assert!(error < tolerance, "{what} is {value} and not {expected}");
}

#[test]
fn the_gradients_of_a_step_are_those_of_tensorflow() -> Result<()> {
    let reference = reference();
    let job = job(&reference)?;
    let data = job
        .strategy
        .distribute_dataset(Arc::new(Images), batch_options())?;
    let inputs = data.epoch(1).next().context("no batch")?;
    let steps = job.strategy.run(inputs, |shard| {
        let (losses, gradients) = train_step(shard.load()?.context("no examples")?)?;
        let gradients = FlatGradients::new(&globals::model()?, gradients)?;
        let norms = gradients
            .iter()
            .map(|(path, values)| (path.to_owned(), norm(&values)));
        Ok((losses, norms.collect::<HashMap<_, _>>()))
    })?;
    for (losses, norms) in steps {
        let loss = losses.get("loss").context("no loss")?;
        assert_close("the loss", loss, reference.losses[0], 1e-6);
        assert_eq!(norms.len(), reference.parameters.len());
        for parameter in &reference.parameters {
            let name = &parameter.name;
            let what = format!("the norm of the gradient of {name}");
            assert_close(&what, norms[name], parameter.gradient_norm, 1e-5);
        }
    }
    Ok(())
}

#[test]
fn three_updates_are_those_of_tensorflow() -> Result<()> {
    let reference = reference();
    let job = job(&reference)?;
    let data = job
        .strategy
        .distribute_dataset(Arc::new(Images), batch_options())?;
    for (number, expected) in reference.losses.iter().enumerate() {
        let inputs = data.epoch(1).next().context("no batch")?;
        let loss = distributed_train_step(inputs)?
            .get("loss")
            .context("no loss")?;
        assert_close(&format!("the loss of step {number}"), loss, *expected, 1e-5);
    }
    let trained: Model = job.strategy.run_on_first(|_| globals::model())?;
    let trained: HashMap<_, _> = named_parameters(&trained).into_iter().collect();
    for parameter in &reference.parameters {
        let Parameter { name, every, .. } = parameter;
        let mut values = vec![0.0; trained[name].len()]; // as Keras lays them out
        for (index, value) in trained[name].iter().enumerate() {
            values[place_in_keras(parameter, index)] = *value;
        }
        assert_close(
            &format!("the norm of {name}"),
            norm(&values),
            parameter.norm,
            1e-5,
        );
        let kept: Vec<f32> = values.iter().step_by(*every).copied().collect();
        let difference = support::difference(&kept, &parameter.values);
        assert!(difference < 1e-4, "{name} differs by {difference}");
        println!("{name} differs by {difference}");
    }
    Ok(())
}
