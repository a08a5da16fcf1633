use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use burn::{
    module::{ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::Tensor,
};
use training::{
    data::{BatchOptions, Remainder, Subset},
    dataset::Examples,
    distribute::Gradients,
    globals,
    train::{apply_gradients, distributed_train_step},
};

use crate::support::{EXAMPLES, Job, contract, difference, on_own_thread, set_up_replicas};

/// The losses of each step and the weights after three passes over the examples.
fn trained(
    replicas: usize,
    examples: usize,
    global_batch_size: usize,
) -> Result<(Vec<f32>, Vec<f32>)> {
    on_own_thread(move || {
        let job = set_up_replicas(replicas)?;
        let mut losses = Vec::new();
        for _ in 0..3 {
            for batch in job.batches(examples, global_batch_size)? {
                let step = distributed_train_step(batch)?;
                losses.push(step.iter().map(|(_, loss)| loss as f32).sum());
            }
        }
        Ok((losses, job.parameters()?))
    })
}

/// Makes sure that two trainings give the same losses and weights, but for rounding. Near the kink of
/// a ReLU or a maximum, rounding chooses between two gradients, so one weight in a hundred may differ
/// by more than that.
fn ensure_same(
    what: &str,
    (losses, weights): &(Vec<f32>, Vec<f32>),
    (other_losses, other_weights): &(Vec<f32>, Vec<f32>),
) -> Result<()> {
    let losses = difference(losses, other_losses);
    let largest = difference(weights, other_weights);
    let pairs = weights.iter().zip(other_weights);
    let differing = pairs.filter(|(one, other)| (*one - *other).abs() >= 1e-5);
    let differing = differing.count() as f64 / weights.len() as f64;
    ensure!(
        losses < 1e-5 && differing <= 0.01 && largest < 1e-3,
        "{what} to other losses (by {losses}) and weights ({:.1}% of them, by up to {largest})",
        100.0 * differing
    );
    Ok(())
}

fn ensure_same_training(replicas: usize, examples: usize, global_batch_size: usize) -> Result<()> {
    let one = trained(1, examples, global_batch_size)?;
    let several = trained(replicas, examples, global_batch_size)?;
    let what = format!(
        "with {examples} examples in global batches of {global_batch_size}, {replicas} replicas \
         train, against one,"
    );
    ensure_same(&what, &one, &several)
}

#[test]
fn replicas_train_to_the_weights_of_one() {
    contract("train.step", || {
        // A global batch that does not divide by the replicas, and a last one of every size.
        for last in 1..=11 {
            ensure_same_training(2, 22 + last, 11)?;
            ensure_same_training(3, 22 + last, 11)?;
            ensure_same_training(4, 22 + last, 11)?;
        }
        Ok(())
    });
}

#[test]
fn more_replicas_than_examples_train_to_the_weights_of_one() {
    contract("train.step", || ensure_same_training(4, 3, 8));
}

/// The losses of all updates and the weights after one pass over 50 examples.
fn trained_in_updates(batch: usize, accumulate: usize) -> Result<(Vec<f32>, Vec<f32>)> {
    on_own_thread(move || {
        let job = set_up_replicas(2)?;
        let dataset = Arc::clone(job.datasets.train.dataset());
        let first: Examples = Arc::new(Subset::new(dataset, (0..EXAMPLES).collect())?);
        let options = BatchOptions {
            global_batch_size: batch,
            seed: 42,
            shuffle: false,
            remainder: Remainder::Keep,
            accumulate,
            prefetch: 0,
            training: true,
            augment: None,
        };
        let data = job.strategy.distribute_dataset(first, options)?;
        let (mut losses, mut of_update) = (Vec::new(), 0.0);
        for inputs in data.epoch(1) {
            let (info, before) = (inputs.info(), job.parameters()?);
            let step = distributed_train_step(inputs)?;
            of_update += step.iter().map(|(_, loss)| loss as f32).sum::<f32>();
            if !info.completes_update {
                ensure!(
                    before == job.parameters()?,
                    "a batch that does not complete its update changes the parameters"
                );
                ensure!(
                    kept_gradients(&job)?
                        .windows(2)
                        .all(|pair| pair[0] != pair[1]),
                    "replicas exchange gradients before the update is complete"
                );
            }
            if info.completes_update {
                losses.push(std::mem::take(&mut of_update));
            }
        }
        Ok((losses, job.parameters()?))
    })
}

/// What each replica has summed up for an update that is not complete.
fn kept_gradients(job: &Job) -> Result<Vec<Vec<f32>>> {
    let kept = job.strategy.run_on_all(|_| {
        let kept = globals::take_gradients().context("no gradients are kept")?;
        let values = kept
            .iter()
            .flat_map(|(_, values)| values.to_vec())
            .collect();
        globals::keep_gradients(kept);
        Ok(values)
    })?;
    Ok(kept.into_iter().collect())
}

#[test]
fn accumulated_batches_train_as_one_large_batch() {
    contract("train.step", || {
        let large = trained_in_updates(18, 1)?;
        let accumulated = trained_in_updates(6, 3)?;
        let what = "three batches of 6 that are accumulated train, against one of 18,";
        ensure_same(what, &large, &accumulated)
    });
}

#[test]
fn a_gradient_that_is_not_finite_never_reaches_the_parameters() {
    contract("train.gradients", || {
        let job = set_up_replicas(2)?;
        let applied = job.strategy.run_on_all(|replica| {
            let mut filled = Filled {
                value: f32::NAN,
                gradients: GradientsParams::new(),
            };
            // Only one replica has it; all must see it in the sum.
            if replica.rank() == 1 {
                burn::module::Module::visit(&globals::model()?, &mut filled);
            }
            apply_gradients(Gradients::new().with(filled.gradients))
        });
        // An error is one right answer, and going on with finite parameters the other.
        if applied.is_ok() {
            let finite = job.parameters()?.iter().all(|value| value.is_finite());
            ensure!(
                finite,
                "a gradient of NaN went into the parameters without an error"
            );
        }
        Ok(())
    });
}

/// Gradients that hold `value` everywhere.
struct Filled {
    value: f32,
    gradients: GradientsParams,
}

impl ModuleVisitor for Filled {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().inner().zeros_like().add_scalar(self.value);
        self.gradients.register(param.id, gradient);
    }
}
