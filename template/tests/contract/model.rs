use anyhow::ensure;
use kiln_engine::distribute::{Activation, FlatGradients, ensure_split};
use training::{
    globals,
    loss::per_example_losses,
    model::STAGES,
    train::{distributed_train_step, train_step},
};

use crate::support::{EXAMPLES, contract, difference, set_up_replicas, values};

#[test]
fn every_parameter_gets_a_gradient() {
    contract("model.architecture", || {
        let job = set_up_replicas(1)?;
        job.with_batch(EXAMPLES, |batch| {
            let (_, gradients) = train_step(batch)?;
            let gradients = FlatGradients::new(&globals::model()?, gradients)?;
            ensure!(
                gradients.iter().count() > 0,
                "the model has no parameters to train"
            );
            for (path, gradient) in gradients.iter() {
                ensure!(
                    gradient.iter().all(|value| value.is_finite()),
                    "the gradient of `{path}` is not finite"
                );
                ensure!(
                    gradient.iter().any(|value| *value != 0.0),
                    "the gradient of `{path}` is zero: does `forward` use it, and is it left out \
                     of `detach`?"
                );
            }
            Ok(())
        })
    });
}

#[test]
fn examples_do_not_mix() {
    contract("model.architecture", || {
        let job = set_up_replicas(1)?;
        let losses_of = |examples| {
            job.strategy.run_on_all(globals::prepare_inference)?;
            job.with_batch(examples, |batch| {
                let predictions =
                    globals::inference_model()?.forward(batch.features.clone().inner());
                let rows = predictions.dims()[0];
                let batch = training::dataset::Batch {
                    features: batch.features.inner(),
                    ..batch
                };
                Ok((rows, values(&per_example_losses(&predictions, &batch)?)))
            })
        };
        let ((_, one), (rows, many)) = (losses_of(1)?, losses_of(5)?);
        ensure!(rows == 5, "5 examples have {rows} predictions");
        ensure!(
            difference(&one, &many[..1]) < 1e-4,
            "the prediction for an example depends on the others in its batch"
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
        job.strategy.run_on_all(globals::prepare_inference)?;
        job.with_batch(5, |batch| {
            let model = globals::inference_model()?;
            let features = batch.features.inner();
            let predictions = model.forward(features.clone());
            let mut x = Activation::from(features);
            for stage in STAGES {
                x = (stage.forward)(&model, x);
            }
            let differences = values(&(predictions - x.tensor()));
            let difference = difference(&differences, &vec![0.0; differences.len()]);
            ensure!(
                difference < 1e-5,
                "the predictions of the model and of its stages differ by {difference}"
            );
            Ok(())
        })
    });
}

#[test]
fn the_loss_falls_in_a_few_steps() {
    contract("optimizer.choice", || {
        let job = set_up_replicas(1)?;
        let mut losses = Vec::new();
        for _ in 0..30 {
            let step = distributed_train_step(job.batches(EXAMPLES, EXAMPLES)?.remove(0))?;
            losses.push(step.iter().map(|(_, loss)| loss).sum::<f64>());
        }
        let (first, last) = (losses[0], losses[losses.len() - 1]);
        ensure!(
            last < 0.9 * first,
            "30 steps on the same {EXAMPLES} examples changed the loss from {first} to {last}"
        );
        Ok(())
    });
}
