//! The model gives probabilities: they sum to 1, `infer` takes them as they are, and a prediction
//! that is certain and wrong does no harm.

#[allow(dead_code)]
#[path = "contract/support.rs"]
mod support;

use anyhow::Result;
use burn::module::Module;
use kiln_engine::{
    data::Collate,
    globals::{update_model, weights_and_gradients},
    model::{load_parameters, named_parameters},
    replica::replica_context,
};
use training::{
    dataset::{Batch, CLASSES},
    globals::{self, Project},
    infer::predict,
    train::distributed_train_step,
};

use support::{Job, difference, set_up, set_up_replicas, values};

/// Makes all replicas certain of class `class`: every other one gets a probability of exactly 0.
fn make_certain(job: &Job, class: usize) -> Result<()> {
    let certain = move |(path, mut values): (String, Vec<f32>)| {
        if path == "output.bias" {
            values[class] = 200.0;
        }
        values
    };
    job.strategy.run_on_all(move |_| {
        update_model::<Project>(|model| {
            let named = named_parameters(&model).into_iter();
            let changed: Vec<f32> = named.flat_map(certain).collect();
            load_parameters(model, &changed)
        })
    })?;
    Ok(())
}

#[test]
fn a_prediction_that_is_certain_and_wrong_has_a_finite_loss_and_gradient() -> Result<()> {
    let job = set_up(&["--strategy", "mirrored", "--replicas", "2"])?;
    let example = job.datasets.train.dataset().get(0)?;
    let right = example.label.iter().position(|share| *share == 1.0);
    make_certain(&job, (right.expect("a class") + 1) % CLASSES)?;
    // Adam moves every parameter that has a gradient, however small.
    let before = job.parameters()?;
    let losses = distributed_train_step(job.batches(1, 1)?.remove(0))?;
    // -ln(1e-7); without a limit it would be infinite, and the gradient not a number.
    let loss = losses.get("loss").expect("a loss");
    assert!((loss - 16.118_096).abs() < 1e-4, "the loss is {loss}");
    assert!(difference(&before, &job.parameters()?) < 2e-3);
    let gradients = job
        .strategy
        .run_on_first(|_| weights_and_gradients::<Project>())?;
    assert!(
        gradients
            .iter()
            .all(|(_, values)| values.iter().all(|value| value.is_finite()))
    );
    Ok(())
}

#[test]
fn predictions_are_the_probabilities_of_the_model() -> Result<()> {
    let job = set_up_replicas(1)?;
    // Weights as drawn give all classes about 0.1, where a second softmax would hardly show.
    make_certain(&job, 3)?;
    let examples = (0..5).map(|index| job.datasets.train.dataset().get(index));
    let examples = examples.collect::<Result<Vec<_>>>()?;
    let predictions = job.strategy.run_on_first(move |_| {
        let device = replica_context()?.device().clone().without_autodiff();
        predict(
            &globals::model()?.valid(),
            Batch::collate(examples, &device)?,
        )
    })?;
    for prediction in predictions {
        assert_eq!(prediction.class, 3);
        assert!(
            (prediction.probability - 1.0).abs() < 1e-6,
            "{}",
            prediction.probability
        );
    }
    Ok(())
}

#[test]
fn probabilities_of_an_example_sum_to_one() -> Result<()> {
    let job = set_up_replicas(1)?;
    let sums = job.with_batch(8, |batch| {
        let probabilities = globals::model()?.forward(&batch); // [8, classes]
        Ok(values(&probabilities.sum_dim(1)))
    })?;
    assert!(difference(&sums, &[1.0; 8]) < 1e-6, "{sums:?}");
    Ok(())
}
