use anyhow::{Result, ensure};
use burn::module::Module;
use kiln_engine::{
    checkpoint::Goal,
    globals::{merged_metrics, reset_metrics, update_model},
    metric::MergedMetric,
    model::{load_parameters, parameters},
};
use training::{
    globals::{self, Project, Split},
    metric::BEST,
    train::distributed_train_step,
    validation::distributed_validation_step,
};

use crate::support::{Job, amounts, contract, losses, on_own_thread, set_up_replicas};

/// The training metrics of the first step, with `examples` in its batch.
fn metrics(replicas: usize, examples: usize) -> Result<Vec<MergedMetric>> {
    on_own_thread(move || {
        let job = set_up_replicas(replicas)?;
        reset_metrics::<Project>(Split::Train)?;
        distributed_train_step(job.batches(examples, examples)?.remove(0))?;
        merged_metrics::<Project>(Split::Train)
    })
}

#[test]
fn every_metric_counts_each_example_once() {
    contract("metric.set", || {
        // Odd, so that the shares of two replicas differ.
        let examples = amounts().few.min(7);
        for (replicas, examples) in [(1, examples), (2, examples), (3, 2)] {
            let metrics = metrics(replicas, examples)?;
            ensure!(!metrics.is_empty(), "there is no metric, not even the loss");
            for metric in metrics {
                ensure!(
                    metric.examples == examples,
                    "`{}` counted {} of {examples} examples on {replicas} replicas",
                    metric.name,
                    metric.examples
                );
                let result = metric.value;
                ensure!(result.is_finite(), "`{}` is {result}", metric.name);
            }
        }
        Ok(())
    });
}

#[test]
fn metrics_do_not_depend_on_the_replicas() {
    contract("metric.set", || {
        // The fewer the examples, the more a mean of means differs from the mean.
        for examples in [amounts().examples, amounts().few - 1] {
            let one = metrics(1, examples)?;
            for replicas in [2, 3] {
                for (one, several) in one.iter().zip(metrics(replicas, examples)?) {
                    let (expected, result) = (one.value, several.value);
                    ensure!(
                        (expected - result).abs() < 1e-4 * expected.abs().max(1.0),
                        "`{}` is {expected} on one replica and {result} on {replicas}: give \
                         `Mean::update` one value per example, not their mean",
                        one.name
                    );
                }
            }
        }
        Ok(())
    });
}

#[test]
fn the_best_checkpoint_is_chosen_by_a_metric_that_is_measured() {
    contract("metric.best", || {
        let names: Vec<String> = metrics(1, amounts().examples)?
            .into_iter()
            .map(|metric| metric.name)
            .collect();
        ensure!(
            names.iter().any(|name| name == BEST.metric),
            "{:?} is none of the metrics {names:?}, or it is undefined for {} examples",
            BEST.metric,
            amounts().examples
        );
        Ok(())
    });
}

/// Global batches of the validation split to compare models on.
const BATCHES: usize = 5;

/// The metric that selects the best checkpoint, for a model with `parameters`; `None` if it is missing or
/// not finite.
fn best_metric(job: &Job, parameters: &[f32]) -> Result<Option<f64>> {
    let values = parameters.to_owned();
    job.strategy
        .run_on_all(move |_| update_model::<Project>(|model| load_parameters(model, &values)))?;
    job.prepare_inference()?;
    reset_metrics::<Project>(Split::Validation)?;
    for batch in job.datasets.validation.epoch(1).take(BATCHES) {
        distributed_validation_step(batch)?;
    }
    let mut metrics = merged_metrics::<Project>(Split::Validation)?.into_iter();
    let best = metrics.find(|metric| metric.name == BEST.metric);
    Ok(best
        .map(|metric| metric.value)
        .filter(|value| value.is_finite()))
}

/// Whether the model of `best_metric` predicts NaN, as its losses show.
fn predicts_nan(job: &Job) -> Result<bool> {
    job.with_batch(2, |batch| {
        Ok(losses(&batch.valid())?.iter().all(|loss| loss.is_nan()))
    })
}

#[test]
fn predictions_that_are_nan_are_never_better_than_numbers() {
    contract("metric.set", || {
        let job = set_up_replicas(1)?;
        let mut parameters = job
            .strategy
            .run_on_first(|_| Ok(parameters(&globals::model()?)))?;
        let Some(of_nan) = best_metric(&job, &vec![f32::NAN; parameters.len()])? else {
            return Ok(());
        };
        if !predicts_nan(&job)? {
            return Ok(());
        }
        // Untrained models: each has the parameters of the previous one in another order.
        for _ in 0..8 {
            let len = parameters.len();
            parameters.rotate_left(len / 8);
            let Some(of_numbers) = best_metric(&job, &parameters)? else {
                continue;
            };
            let is_better = match BEST.goal {
                Goal::Highest => of_nan > of_numbers,
                Goal::Lowest => of_nan < of_numbers,
            };
            ensure!(
                !is_better,
                "`{}` is {of_nan} where all predictions are NaN, and {of_numbers} of a model that \
                 is untrained: count an example as wrong whose prediction is not finite, as the \
                 metrics of `kiln_engine` do",
                BEST.metric
            );
        }
        Ok(())
    });
}
