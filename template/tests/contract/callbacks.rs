use anyhow::{Result, ensure};
use clap::Parser;
use indexmap::IndexMap;
use kiln_engine::{
    checkpoint::Progress,
    globals::merged_metrics,
    optim::{FlatGradients, Gradients},
    report::Report,
    training::CallbackContext,
};
use training::{
    callbacks::{create_callbacks, is_trainable, prepare_inputs, prepare_loss_inputs},
    cli::Args,
    dataset::Batch,
    globals::{self, Project, Split},
    loss::per_example_losses,
    train::distributed_train_step,
    validation::distributed_validation_step,
};

use crate::support::{amounts, contract, difference, set_up_replicas, values};

#[test]
fn callbacks_run_after_steps_and_epochs() {
    contract("callbacks.schedule", || {
        let job = set_up_replicas(2)?;
        let folder = tempfile::tempdir()?;
        let folder = folder.path().to_string_lossy();
        let args = Args::try_parse_from(["contract", "--output-dir", &folder])?;
        let (mut callbacks, mut report) = (create_callbacks(&args), Report::new(&args.options)?);
        let examples = amounts().few;
        let losses = distributed_train_step(job.batches(examples, examples)?.remove(0))?;
        job.prepare_inference()?;
        for batch in job.datasets.validation.epoch(1) {
            distributed_validation_step(batch)?;
        }
        let [metrics, validation] =
            [Split::Train, Split::Validation].map(merged_metrics::<Project>);
        let (metrics, validation) = (metrics?, validation?.into_iter());
        let validation: IndexMap<_, _> = validation
            .map(|metric| (metric.name, metric.value))
            .collect();
        for step in 1..=200 {
            let progress = Progress {
                step,
                epoch: 1,
                examples: step,
                drawn: 0,
            };
            let context = CallbackContext::after_step(progress, losses.clone());
            callbacks.after_step(context, &mut report)?;
        }
        for epoch in 1..=20 {
            let progress = Progress {
                step: 200,
                epoch,
                examples: 0,
                drawn: 200 * epoch,
            };
            let context =
                CallbackContext::after_epoch(progress, metrics.clone(), validation.clone());
            callbacks.after_epoch(context, &mut report)?;
        }
        let finite = job.parameters()?.iter().all(|value| value.is_finite());
        ensure!(finite, "callbacks left parameters that are not finite");
        Ok(())
    });
}

#[test]
fn hooks_keep_the_examples_and_let_something_train() {
    contract("callbacks.hooks", || {
        let job = set_up_replicas(1)?;
        let examples = amounts().few;
        job.with_batch(examples, move |batch| {
            let losses = |batch: Batch| -> Result<Vec<f32>> {
                let prepared = prepare_inputs(batch)?;
                let predictions = globals::model()?.forward(&prepared);
                let (predictions, prepared) = prepare_loss_inputs(predictions, prepared)?;
                Ok(values(&per_example_losses(&predictions, &prepared)?))
            };
            let (first, again) = (losses(batch.clone())?, losses(batch)?);
            ensure!(
                first.len() == examples,
                "`prepare_inputs` or `prepare_loss_inputs` makes {} of {examples} examples",
                first.len()
            );
            ensure!(
                difference(&first, &again) == 0.0,
                "`prepare_inputs` gives another batch the second time"
            );
            Ok(())
        })?;
        let trains = |step| parameters_that_train(step).map(|paths| !paths.is_empty());
        ensure!(
            job.strategy.run_on_first(move |_| trains(1))?,
            "`is_trainable` leaves no parameter to train at the first step"
        );
        Ok(())
    });
}

fn parameters_that_train(step: usize) -> Result<Vec<String>> {
    let gradients = FlatGradients::new(&globals::model()?, Gradients::new())?;
    let paths = gradients.iter().map(|(path, _)| path);
    Ok(paths
        .filter(|path| is_trainable(path, step))
        .map(str::to_owned)
        .collect())
}
