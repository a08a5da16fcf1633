use anyhow::{Result, ensure};
use kiln_engine::{
    data::{DistributedDataset, Shard},
    globals::{merged_metrics, reset_metrics},
    loss::Losses,
    metric::MergedMetric,
    replica::PerReplica,
};
use training::{
    dataset::Example,
    globals::{Project, Split},
    test::distributed_test_step,
    validation::distributed_validation_step,
};

use crate::support::{Job, contract, on_own_thread, set_up_replicas};

type Step = fn(PerReplica<Shard<Example>>) -> Result<Losses>;

/// The metrics of a whole split; fails if parameters or the metrics of other splits change.
fn evaluate(
    replicas: usize,
    split: Split,
    step: Step,
    data: fn(&Job) -> &DistributedDataset<Example>,
) -> Result<Vec<MergedMetric>> {
    on_own_thread(move || {
        let job = set_up_replicas(replicas)?;
        let before = job.parameters()?;
        reset_metrics::<Project>(split)?;
        job.prepare_inference()?;
        for batch in data(&job).epoch(1) {
            step(batch)?;
        }
        ensure!(before == job.parameters()?, "the parameters changed");
        for other in [Split::Train, Split::Validation, Split::Test] {
            let counted = merged_metrics::<Project>(other)?
                .iter()
                .any(|metric| metric.examples > 0);
            ensure!(
                other == split || !counted,
                "the {} metrics counted examples of the {} split",
                other.name(),
                split.name()
            );
        }
        let (metrics, examples) = (
            merged_metrics::<Project>(split)?,
            data(&job).dataset().len(),
        );
        for metric in &metrics {
            let (name, count) = (&metric.name, metric.examples);
            ensure!(
                count == examples,
                "`{name}` counted {count} of {examples} examples"
            );
        }
        Ok(metrics)
    })
}

fn ensure_evaluation(
    split: Split,
    step: Step,
    data: fn(&Job) -> &DistributedDataset<Example>,
) -> Result<()> {
    let (one, several) = (
        evaluate(1, split, step, data)?,
        evaluate(3, split, step, data)?,
    );
    for (one, several) in one.iter().zip(several) {
        let (expected, result) = (one.value, several.value);
        ensure!(
            (expected - result).abs() < 1e-4 * expected.abs().max(1.0),
            "`{}` is {expected} on one replica and {result} on 3",
            one.name
        );
    }
    Ok(())
}

#[test]
fn validation_counts_each_example_once_and_learns_nothing() {
    contract("validation.step", || {
        ensure_evaluation(Split::Validation, distributed_validation_step, |job| {
            &job.datasets.validation
        })
    });
}

#[test]
fn the_test_counts_each_example_once_and_learns_nothing() {
    contract("test.step", || {
        ensure_evaluation(Split::Test, distributed_test_step, |job| &job.datasets.test)
    });
}
