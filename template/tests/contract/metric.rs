use anyhow::{Result, ensure};
use training::{
    distribute::MergedMetric,
    globals::Split,
    metric::{BEST, merged_metrics, reset_metrics},
    train::distributed_train_step,
};

use crate::support::{EXAMPLES, contract, on_own_thread, set_up_replicas};

/// The training metrics of the first step, with `examples` in its batch.
fn metrics(replicas: usize, examples: usize) -> Result<Vec<MergedMetric>> {
    on_own_thread(move || {
        let job = set_up_replicas(replicas)?;
        reset_metrics(Split::Train)?;
        distributed_train_step(job.batches(examples, examples)?.remove(0))?;
        merged_metrics(Split::Train)
    })
}

#[test]
fn every_metric_counts_each_example_once() {
    contract("metric.set", || {
        for (replicas, examples) in [(1, 7), (2, 7), (3, 2)] {
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
        let one = metrics(1, EXAMPLES)?;
        for replicas in [2, 3] {
            for (one, several) in one.iter().zip(metrics(replicas, EXAMPLES)?) {
                let (expected, result) = (one.value, several.value);
                ensure!(
                    (expected - result).abs() < 1e-4 * expected.abs().max(1.0),
                    "`{}` is {expected} on one replica and {result} on {replicas}: give \
                     `Mean::update` one value an example, and no mean",
                    one.name
                );
            }
        }
        Ok(())
    });
}

#[test]
fn the_best_checkpoint_is_chosen_by_a_metric_that_is_measured() {
    contract("metric.best", || {
        let names: Vec<String> = metrics(1, 2)?
            .into_iter()
            .map(|metric| metric.name)
            .collect();
        ensure!(
            names.iter().any(|name| name == BEST.metric),
            "{:?} is none of the metrics {names:?}",
            BEST.metric
        );
        Ok(())
    });
}
