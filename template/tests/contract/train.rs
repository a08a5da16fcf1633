use anyhow::{Context, Result, ensure};
use burn::{
    module::{ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::Tensor,
};
use kiln_engine::{
    data::Shard,
    globals::{self, TrainingState},
    optim::Gradients,
    replica::PerReplica,
    training::apply_gradients,
};
use training::{dataset::Example, globals::Project, train::distributed_train_step};

use crate::support::{Job, amounts, contract, on_own_thread, set_up_replicas};

/// The losses and the gradients, summed over replicas, of an update.
#[derive(Default)]
struct Update {
    losses: Vec<f32>,
    /// By parameter name; of the last update of an epoch only.
    gradients: Vec<(String, Vec<f32>)>,
}

/// Independent updates from the same weights: over consecutive updates, layers with kinks would amplify
/// rounding differences.
struct Updates {
    job: Job,
    initial: TrainingState<Project>,
}

impl Updates {
    fn new(job: Job) -> Result<Self> {
        let initial = job
            .strategy
            .run_on_first(|_| globals::training_state::<Project>())?;
        Ok(Updates { job, initial })
    }

    /// Adds the results of a step on `batch` to `update`, and after a complete one restores the weights.
    fn step(&self, batch: PerReplica<Shard<Example>>, update: &mut Update) -> Result<()> {
        let completes_update = batch.info().completes_update;
        let losses = distributed_train_step(batch)?;
        update.losses.resize(losses.iter().count(), 0.0);
        let sums = update.losses.iter_mut().zip(losses.iter());
        sums.for_each(|(sum, (_, loss))| *sum += loss as f32);
        if completes_update {
            let strategy = &self.job.strategy;
            let values = strategy.run_on_first(|_| globals::weights_and_gradients::<Project>())?;
            let gradients = values.into_iter().filter_map(|(path, values)| {
                let parameter = path.strip_prefix("gradients/")?;
                Some((parameter.to_owned(), values))
            });
            update.gradients = gradients.collect();
            let start = self.initial.clone();
            strategy.scope(move |_| Ok(start))?;
        }
        Ok(())
    }
}

fn norm(values: impl IntoIterator<Item = f32>) -> f32 {
    let squares = values.into_iter().map(|value| value * value);
    // `abs` avoids -0, the empty sum, and a negative NaN.
    squares.sum::<f32>().sqrt().abs()
}

/// The distance of `right` from `left`.
fn distance(left: &[f32], right: &[f32]) -> f32 {
    norm(left.iter().zip(right).map(|(left, right)| left - right))
}

/// A distance relative to `norm`.
fn share(distance: f32, norm: f32) -> f32 {
    distance / norm.max(f32::MIN_POSITIVE)
}

fn ensure_same(left: &[Update], right: &[Update], what: &str) -> Result<()> {
    let updates = [left.len(), right.len()];
    ensure!(
        updates[0] == updates[1],
        "{what}: they make {updates:?} updates"
    );
    for (number, (left, right)) in (1..).zip(left.iter().zip(right)) {
        ensure_same_losses(&left.losses, &right.losses)
            .and_then(|()| ensure_same_gradients(&left.gradients, &right.gradients))
            .with_context(|| format!("{what}: update {number}"))?;
    }
    Ok(())
}

fn ensure_same_losses(left: &[f32], right: &[f32]) -> Result<()> {
    ensure!(
        left.len() == right.len(),
        "the losses are {left:?} and {right:?}"
    );
    // As for `difference`: terms of both signs may cancel.
    let share = share(distance(left, right), norm(left.iter().copied()).max(0.1));
    ensure!(share < 1e-5, "the losses differ by a share of {share}");
    Ok(())
}

fn ensure_same_gradients(left: &[(String, Vec<f32>)], right: &[(String, Vec<f32>)]) -> Result<()> {
    let lengths = |gradients: &[(String, Vec<f32>)]| -> Vec<(String, usize)> {
        let lengths = gradients
            .iter()
            .map(|(name, values)| (name.clone(), values.len()));
        lengths.collect()
    };
    let (lengths, others) = (lengths(left), lengths(right));
    ensure!(
        lengths == others,
        "the gradients are of other parameters: {lengths:?} and {others:?}"
    );
    let pairs = left.iter().zip(right);
    let distances = pairs.map(|((name, left), (_, right))| (name, distance(left, right)));
    let Some((name, _)) = distances
        .clone()
        .max_by(|(_, one), (_, other)| one.total_cmp(other))
    else {
        return Ok(());
    };
    let all = norm(left.iter().flat_map(|(_, values)| values.iter().copied()));
    let share = share(norm(distances.map(|(_, distance)| distance)), all);
    ensure!(
        share < 1e-5,
        "the gradients differ by a share of {share}, that of `{name}` the most"
    );
    Ok(())
}

#[test]
fn what_differs_between_updates_is_named() {
    let update = |loss: f32, bias: f32| Update {
        losses: vec![loss, 2.0],
        gradients: vec![
            ("weight".to_owned(), vec![3.0, 4.0]),
            ("bias".to_owned(), vec![bias]),
        ],
    };
    let without_gradients = |loss| Update {
        gradients: Vec::new(),
        ..update(loss, 0.0)
    };
    let problem =
        |left, right| ensure_same(&[left], &[right], "test").map_err(|e| format!("{e:#}"));
    assert_eq!(problem(update(1.0, 5.0), update(1.0, 5.0)), Ok(()));
    for (left, right, expected) in [
        (
            without_gradients(0.0),
            without_gradients(1.0),
            "test: update 1: the losses differ by a share of 0.5",
        ),
        (
            update(1.0, 5.0),
            update(1.0, f32::NAN),
            "test: update 1: the gradients differ by a share of NaN, that of `bias` the most",
        ),
        (
            update(1.0, 0.0),
            update(1.0, 1.0),
            "test: update 1: the gradients differ by a share of 0.2, that of `bias` the most",
        ),
        (
            without_gradients(1.0),
            update(1.0, 5.0),
            "test: update 1: the gradients are of other parameters: [] and \
             [(\"weight\", 2), (\"bias\", 1)]",
        ),
    ] {
        assert_eq!(problem(left, right), Err(expected.to_owned()));
    }
}

/// One update per batch.
fn updates(replicas: usize, examples: usize, global_batch_size: usize) -> Result<Vec<Update>> {
    on_own_thread(move || {
        let updates = Updates::new(set_up_replicas(replicas)?)?;
        let batches = updates.job.batches(examples, global_batch_size)?;
        let update = |batch| {
            let mut update = Update::default();
            updates.step(batch, &mut update)?;
            Ok(update)
        };
        batches.into_iter().map(update).collect()
    })
}

/// Compares the updates of one replica with those of each number in `replicas`.
fn ensure_same_training(
    replicas: &[usize],
    examples: usize,
    global_batch_size: usize,
) -> Result<()> {
    let one = updates(1, examples, global_batch_size)?;
    for replicas in replicas {
        let several = updates(*replicas, examples, global_batch_size)?;
        let what = format!(
            "{replicas} replicas train otherwise than one, with {examples} examples in global \
             batches of {global_batch_size}"
        );
        ensure_same(&one, &several, &what)?;
    }
    Ok(())
}

#[test]
fn replicas_train_to_the_weights_of_one() {
    contract("train.step", || {
        // A global batch not divisible by the replicas, and a last batch of every size.
        let batch = amounts().batch;
        for last in 1..=batch {
            ensure_same_training(&[2, 3, 4], batch + last, batch)?;
        }
        Ok(())
    });
}

#[test]
fn more_replicas_than_examples_train_to_the_weights_of_one() {
    contract("train.step", || ensure_same_training(&[4], 3, 8));
}

/// The updates of one pass over the first examples, on two replicas.
fn accumulated(batch: usize, accumulate: usize) -> Result<Vec<Update>> {
    on_own_thread(move || {
        let updates = Updates::new(set_up_replicas(2)?)?;
        let job = &updates.job;
        let data = job.accumulated_batches(amounts().examples, batch, accumulate)?;
        let (mut all, mut update) = (Vec::new(), Update::default());
        for inputs in data.epoch(1) {
            let (info, before) = (inputs.info(), job.parameters()?);
            updates.step(inputs, &mut update)?;
            if info.completes_update {
                all.push(std::mem::take(&mut update));
                continue;
            }
            ensure!(
                before == job.parameters()?,
                "a batch that does not complete its update changes the parameters"
            );
            ensure!(
                kept_gradients(job)?
                    .windows(2)
                    .all(|pair| pair[0] != pair[1]),
                "replicas exchange gradients before the update is complete"
            );
        }
        Ok(all)
    })
}

/// The gradients accumulated on each replica for an incomplete update.
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
        let batch = amounts().batch / 2 + 1;
        let what =
            "three batches that are accumulated train otherwise than one three times as large";
        ensure_same(&accumulated(3 * batch, 1)?, &accumulated(batch, 3)?, what)
    });
}

#[test]
fn a_gradient_that_is_not_finite_never_goes_unnoticed() {
    contract("train.gradients", || {
        let job = set_up_replicas(2)?;
        let applied = job.strategy.run_on_all(|replica| {
            let mut filled = Filled {
                value: f32::NAN,
                gradients: GradientsParams::new(),
            };
            // On one replica only: all must see NaN in the sum.
            if replica.rank() == 1 {
                burn::module::Module::visit(&globals::model::<Project>()?, &mut filled);
            }
            apply_gradients::<Project>(Gradients::new().with(filled.gradients))?;
            // Between GPUs, gradients are checked some updates later, at the latest before a checkpoint.
            globals::read_gradient_norms()
        });
        // Correct outcomes are an error, or finite parameters.
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

/// Gradients filled with `value`.
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
