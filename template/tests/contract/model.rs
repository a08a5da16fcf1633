use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use anyhow::{Result, bail, ensure};
use burn::module::Module;
use kiln_engine::{
    globals::{inference_model, learning_rates},
    loss::Losses,
    optim::FlatGradients,
    pipeline::{ensure_split, run_stages},
    replica::replica_context,
    weights::ensure_names,
};
use training::{
    dataset::Batch,
    globals::{self, Project},
    loss::per_example_losses,
    model::{STAGES, WEIGHT_NAMES},
    train::{distributed_train_step, train_step},
};

use crate::support::{amounts, contract, difference, losses, set_up, set_up_replicas, values};

/// Maximum number of updates until gradients reach all parameters, as behind a layer that starts at zero, which may be
/// frozen at first.
const UPDATES: usize = 20;

#[test]
fn every_parameter_gets_a_gradient() {
    contract("model.architecture", || {
        let job = set_up_replicas(1)?;
        let examples = amounts().examples;
        let mut left = job.with_batch(examples, parameters_without_gradient)?;
        for _ in 0..UPDATES {
            if left.is_empty() {
                break;
            }
            distributed_train_step(job.batches(examples, examples)?.remove(0))?;
            let without = job.with_batch(examples, parameters_without_gradient)?;
            left.retain(|path| without.contains(path));
        }
        ensure!(
            left.is_empty(),
            "the gradients of {left:?} are zero: does `forward` use them, and are they left out of `detach`?"
        );
        Ok(())
    });
}

/// The parameters whose gradients are zero.
fn parameters_without_gradient(batch: Batch) -> Result<Vec<String>> {
    let (losses, gradients) = train_step(batch.clone())?;
    ensure_repeats([losses, train_step(batch)?.0].map(total))?;
    let gradients = FlatGradients::new(&globals::model()?, gradients)?;
    ensure!(
        gradients.iter().count() > 0,
        "the model has no parameters to train"
    );
    let mut without = Vec::new();
    for (path, gradient) in gradients.iter() {
        ensure!(
            gradient.iter().all(|value| value.is_finite()),
            "the gradient of `{path}` is not finite"
        );
        if gradient.iter().all(|value| *value == 0.0) {
            without.push(path.to_owned());
        }
    }
    Ok(without)
}

/// The sum of the losses of a step.
fn total(losses: Losses) -> f64 {
    losses.iter().map(|(_, loss)| loss).sum()
}

/// Random layers are off here, as in validation.
fn ensure_repeats([first, second]: [f64; 2]) -> Result<()> {
    ensure!(
        first.is_finite() && second.is_finite(),
        "the loss of a batch is not finite: {first}, and then {second}"
    );
    ensure!(
        (first - second).abs() <= 1e-4 * first.abs().max(1.0),
        "the same batch gives a loss of {first}, and then of {second}: does `forward` draw random numbers? Draw them \
         in a layer, such as `burn::nn::GaussianNoise`, which is off in validation and repeats with the seed"
    );
    Ok(())
}

#[test]
fn examples_do_not_mix() {
    contract("model.architecture", || {
        let job = set_up_replicas(1)?;
        job.prepare_inference()?;
        let loss = || job.with_batch(amounts().few, |batch| losses(&batch.valid()));
        let sum = |losses: Vec<f32>| losses.into_iter().map(f64::from).sum();
        ensure_repeats([loss()?, loss()?].map(sum))?;
        let (alone, together) = job.losses_alone_and_together(amounts().few)?;
        ensure!(
            together.len() == alone.len(),
            "{} examples have {} losses",
            alone.len(),
            together.len()
        );
        ensure!(
            difference(&alone, &together) < 3e-5,
            "the prediction for an example depends on the others in its batch: {alone:?} alone and \
             {together:?} together; is padding masked?"
        );
        Ok(())
    });
}

#[test]
fn each_layer_is_in_one_stage() {
    contract("model.split", || {
        let job = set_up_replicas(1)?;
        job.strategy
            .run_on_first(|_| ensure_split(&globals::model()?, STAGES))
    });
}

#[test]
fn the_stages_are_the_model() {
    contract("model.split", || {
        let job = set_up_replicas(1)?;
        job.prepare_inference()?;
        job.with_batch(amounts().few, |batch| {
            let (model, batch) = (inference_model::<Project>()?, batch.valid());
            let devices = vec![replica_context()?.device().clone(); STAGES.len()];
            let staged = run_stages(&model, STAGES, &devices, &batch).into();
            let [whole, staged] = [model.forward(&batch), staged]
                .map(|predictions| per_example_losses(&predictions, &batch));
            let difference = difference(&values(&whole?), &values(&staged?));
            ensure!(
                difference < 1e-5,
                "the losses of the model and of its stages differ by {difference}"
            );
            Ok(())
        })
    });
}

#[test]
fn names_in_files_are_mapped_to_the_model() {
    contract("model.weights", || {
        let job = set_up_replicas(1)?;
        ensure!(
            WEIGHT_NAMES.iter().all(|(pattern, _)| !pattern.is_empty()),
            "an empty pattern in WEIGHT_NAMES fits between all letters of a name"
        );
        job.strategy
            .run_on_first(|_| ensure_names(&globals::model()?, WEIGHT_NAMES))
    });
}

/// Maximum number of steps for the loss to fall, beyond the warm-up of a schedule.
const STEPS: usize = 300;

#[test]
fn the_loss_falls_in_a_few_steps() {
    contract("optimizer.choice", || {
        // Random layers and batch normalisation act as in training.
        let job = set_up(&["--strategy", "one-device", "--batch-size", "12"])?;
        let examples = amounts().examples;
        job.prepare_inference()?;
        let of_examples = job.with_batch(examples, |batch| losses(&batch.valid()))?;
        let step = || -> Result<(f64, f64)> {
            let losses = distributed_train_step(job.batches(examples, examples)?.remove(0))?;
            let rates = job.strategy.run_on_first(|_| learning_rates::<Project>())?;
            let rate = rates.into_iter().map(|(_, rate)| rate).sum();
            Ok((total(losses), rate))
        };
        let ((first, mut rate), started) = (step()?, Instant::now());
        // A constant part of the loss, which stays, may be large: examples differ by the rest.
        let least = (2.0 * deviation(&of_examples)).max(1e-3 * first.abs());
        let least = least.min(0.1 * first.abs());
        let (mut last, mut steps) = (VecDeque::from([first]), 1);
        while steps < STEPS && started.elapsed() < Duration::from_secs(60) {
            let (loss, new_rate) = step()?;
            steps += usize::from(new_rate <= rate);
            rate = new_rate;
            last.push_back(loss);
            if last.len() > 5 {
                last.pop_front();
            }
            let mean = last.iter().sum::<f64>() / last.len() as f64;
            if first - mean > least {
                return Ok(());
            }
        }
        bail!(
            "the loss of the same {examples} examples went from {first} to {last:?} in {steps} steps besides those of a \
             warm-up: are the learning rate and the warm-up right?"
        )
    });
}

/// The standard deviation.
fn deviation(values: &[f32]) -> f64 {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
    let center = mean(&values);
    let squares: Vec<f64> = values
        .iter()
        .map(|value| (value - center).powi(2))
        .collect();
    mean(&squares).sqrt()
}
