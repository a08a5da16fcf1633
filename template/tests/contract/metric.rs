use anyhow::{Result, ensure};
use training::{
    distribute::{Mean, Metric},
    globals::Split,
    metric::{merged_metrics, reset_metrics},
    train::distributed_train_step,
};

use crate::support::{EXAMPLES, contract, on_own_thread, set_up_replicas};

/// The training metrics of the first step, with `examples` in its batch.
fn metrics(replicas: usize, examples: usize) -> Result<Vec<Mean>> {
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
                    metric.count() == examples,
                    "`{}` counted {} of {examples} examples on {replicas} replicas",
                    metric.name(),
                    metric.count()
                );
                let result = metric.result();
                ensure!(result.is_finite(), "`{}` is {result}", metric.name());
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
                let (expected, result) = (one.result(), several.result());
                ensure!(
                    (expected - result).abs() < 1e-4 * expected.abs().max(1.0),
                    "`{}` is {expected} on one replica and {result} on {replicas}: give \
                     `Mean::update` one value an example, and no mean",
                    one.name()
                );
            }
        }
        Ok(())
    });
}
