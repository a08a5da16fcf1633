//! One replica and three, with the same global batch, have the losses of each other.

mod job;

use anyhow::{Context, Result};
use kiln_engine::globals::{merged_metrics, prepare_inference, reset_metrics};
use training::{
    globals::{Project, Split},
    loss::LOSSES,
    train::distributed_train_step,
    validation::distributed_validation_step,
};

use job::{on_own_thread, set_up};

/// Updates that are compared. Later ones drift apart: where an activation is at a kink, the last bit
/// of a sum decides over its gradient, and Adam takes equal steps down small and large gradients.
const STEPS: usize = 3;

/// The losses of the first steps, and those of the validation after them.
fn losses(replicas: &'static str, batch_size: &'static str) -> Vec<Vec<f64>> {
    on_own_thread(move || {
        let job = set_up(&["--replicas", replicas, "--batch-size", batch_size])?;
        let mut losses = Vec::new();
        for batch in job.datasets.train.epoch(1).take(STEPS) {
            let step = distributed_train_step(batch)?;
            let named = LOSSES.map(|name| step.get(name).context(name));
            losses.push(named.into_iter().collect::<Result<_>>()?);
        }
        reset_metrics::<Project>(Split::Validation)?;
        job.strategy.run_on_all(prepare_inference::<Project>)?;
        for batch in job.datasets.validation.epoch(1) {
            distributed_validation_step(batch)?;
        }
        let metrics = merged_metrics::<Project>(Split::Validation)?;
        losses.push(metrics.iter().map(|metric| metric.value).collect());
        Ok(losses)
    })
}

#[test]
fn three_replicas_have_the_losses_of_one() {
    let (one, three) = (losses("1", "12"), losses("3", "4"));
    assert_eq!(one.len(), STEPS + 1);
    for (place, (one, three)) in one.iter().zip(&three).enumerate() {
        let tolerance = if place < STEPS { 1e-4 } else { 1e-3 };
        for (one, three) in one.iter().zip(three) {
            assert!(
                (one - three).abs() < tolerance * one.abs().max(1.0),
                "step {place}: {one} on one replica and {three} on three"
            );
        }
    }
}
