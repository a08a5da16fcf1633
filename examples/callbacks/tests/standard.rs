//! The standard callbacks and the entry points.

#[path = "contract/support.rs"]
#[allow(dead_code)]
mod support;

use anyhow::{Result, ensure};
use burn::{
    module::{Module, ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::Tensor,
};
use clap::Parser;
use kiln_engine::{
    globals::{set_step, weights_and_gradients},
    model::named_parameters,
    optim::Gradients,
    training::apply_gradients,
};
use support::{Job, on_own_thread, set_up, set_up_replicas};
use training::{
    cli::{Args, Command},
    dataset::{CLASSES, create_datasets},
    digits::{FREEZE_AFTER, FROZEN},
    globals::{self, Project},
    train::distributed_train_step,
};

fn parameters(job: &Job) -> Result<Vec<(String, Vec<f32>)>> {
    job.strategy
        .run_on_first(|_| Ok(named_parameters(&globals::model()?)))
}

/// The parameters that `update` changes.
fn changed(job: &Job, update: impl FnOnce() -> Result<()>) -> Result<Vec<String>> {
    let before = parameters(job)?;
    update()?;
    let pairs = before.into_iter().zip(parameters(job)?);
    let changed = pairs.filter(|(before, after)| before != after);
    Ok(changed.map(|(_, (name, _))| name).collect())
}

/// Gradients of 0.01, but for vectors, where each holds `value`.
struct Filled {
    value: f32,
    gradients: GradientsParams,
}

impl ModuleVisitor for Filled {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let value = if D == 1 { self.value } else { 0.01 };
        let gradient = param.val().inner().zeros_like().add_scalar(value);
        self.gradients.register(param.id, gradient);
    }
}

#[test]
fn what_is_not_finite_on_one_replica_becomes_zero_on_all() {
    for value in [f32::NAN, f32::INFINITY] {
        let changed = on_own_thread(move || {
            let job = set_up_replicas(3)?;
            let changed = changed(&job, || {
                let updated = job.strategy.run_on_all(move |replica| {
                    let mut filled = Filled {
                        value: if replica.rank() == 1 { value } else { 0.01 },
                        gradients: GradientsParams::new(),
                    };
                    globals::model()?.visit(&mut filled);
                    apply_gradients::<Project>(Gradients::new().with(filled.gradients))
                });
                updated.map(drop)
            })?;
            ensure!(job.parameters()?.iter().all(|value| value.is_finite()));
            Ok(changed)
        });
        let weights = ["conv1.weight", "conv2.weight", "output.weight"];
        assert_eq!(changed.unwrap(), weights);
    }
}

#[test]
fn a_layer_is_frozen_after_its_step_and_also_after_a_resume() {
    let all = [
        "conv1.weight",
        "conv1.bias",
        "conv2.weight",
        "conv2.bias",
        "output.weight",
        "output.bias",
    ];
    let job = set_up_replicas(3).unwrap();
    // As a checkpoint sets it.
    let resumed = job.strategy.run_on_all(|_| {
        set_step(FREEZE_AFTER - 1);
        Ok(())
    });
    resumed.unwrap();
    let update = || distributed_train_step(job.batches(12, 12)?.remove(0)).map(drop);
    assert_eq!(changed(&job, update).unwrap(), all);
    assert!(all[..2].iter().all(|name| name.starts_with(FROZEN)));
    assert_eq!(changed(&job, update).unwrap(), all[2..]);
}

#[test]
fn gradients_for_display_are_there_after_any_step() {
    let job = set_up_replicas(2).unwrap();
    // The first batch of two: at the end of an epoch gradients are kept for histograms.
    distributed_train_step(job.batches(24, 12).unwrap().remove(0)).unwrap();
    let values = job
        .strategy
        .run_on_first(|_| weights_and_gradients::<Project>());
    let values = values.unwrap();
    for (name, _) in parameters(&job).unwrap() {
        let tag = format!("gradients/{name}");
        let gradient = values.iter().find(|(name, _)| *name == tag);
        let (_, gradient) = gradient.unwrap_or_else(|| panic!("no {tag}"));
        assert!(gradient.iter().any(|value| *value != 0.0), "{tag}");
    }
}

/// The labels of each batch of an epoch, put together from the shares of the replicas.
fn labels_of_batches(replicas: &'static str, batch_size: &'static str) -> Vec<Vec<u8>> {
    let batches = on_own_thread(move || {
        let options = ["--replicas", replicas, "--batch-size", batch_size];
        let _job = set_up(&options)?;
        let args = Args::try_parse_from(["callbacks"].iter().chain(&options))?;
        let batches = create_datasets(&args)?.train.epoch(2).map(|batch| {
            let shares = batch.into_iter().map(|shard| shard.examples());
            let examples = shares.collect::<Result<Vec<_>>>()?.concat();
            Ok(examples.into_iter().map(|one| one.label).collect())
        });
        batches.collect()
    });
    batches.unwrap()
}

#[test]
fn batches_have_the_same_classes_on_any_number_of_replicas() {
    let batches = labels_of_batches("3", "10");
    assert_eq!(batches, labels_of_batches("1", "30"));
    assert_eq!(batches.concat().len(), 1_350);
    for batch in batches {
        for class in 0..CLASSES {
            let count = batch.iter().filter(|label| usize::from(**label) == class);
            assert!(count.count().abs_diff(3) <= 1, "{batch:?}");
        }
    }
}

#[test]
fn evaluate_and_inference_are_entry_points() {
    let parse = |options: &[&str]| Args::try_parse_from(options).unwrap().command;
    assert!(matches!(
        parse(&["callbacks", "train"]),
        Some(Command::Train)
    ));
    let evaluate = parse(&["callbacks", "evaluate", "--checkpoint", "best"]);
    assert!(matches!(evaluate, Some(Command::Test(_))));
    let inference = parse(&["callbacks", "inference", "digits.gz"]);
    assert!(matches!(inference, Some(Command::Infer(_))));
}
