use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use kiln_engine::{
    contract::{ensure_image_shows_picture, ensure_panels_move_together},
    data::{Collate, stream},
    picture::sample_sheet,
    replica::replica_context,
};
use training::{
    cli::Args,
    dataset::{Batch, Example, Examples, augment, create_datasets, picture, read_examples, split},
    globals,
    strategy::create_strategy,
};

use crate::support::{amounts, contract, difference, losses, sample, set_up_replicas};

/// Number of examples to check one by one.
const FEW: usize = 20;

fn args() -> Result<Args> {
    Ok(Args::try_parse_from(["contract"])?)
}

fn first(examples: &Examples, count: usize) -> Result<Vec<Example>> {
    (0..count.min(examples.len()))
        .map(|index| examples.get(index))
        .collect()
}

fn all(examples: &Examples) -> Result<Vec<Example>> {
    first(examples, examples.len())
}

#[test]
fn examples_are_the_same_every_time() {
    contract("dataset.source", || {
        let (before, again) = (sample(&args()?)?, sample(&args()?)?);
        for (before, again) in [(before.0, again.0), (before.1, again.1)] {
            ensure!(!before.is_empty(), "there are no examples");
            ensure!(
                first(&before, FEW)? == first(&again, FEW)?,
                "a second reading gives other examples"
            );
        }
        Ok(())
    });
}

#[test]
fn examples_are_read_and_differ() {
    contract("dataset.example", || {
        let (examples, test) = sample(&args()?)?;
        for examples in [first(&examples, FEW)?, first(&test, FEW)?] {
            ensure!(
                examples.len() < 2 || examples.iter().any(|example| *example != examples[0]),
                "all examples are equal: does `Example` hold what tells them apart?"
            );
        }
        Ok(())
    });
}

#[test]
fn all_examples_are_in_a_split() {
    contract("dataset.split", || {
        let (examples, test) = read_examples(&args()?)?;
        globals::register_strategy(&create_strategy(&args()?)?, 1)?;
        let datasets = create_datasets(&args()?)?;
        let splits = [&datasets.train, &datasets.validation, &datasets.test];
        let [training, validation, tested] = splits.map(|split| split.dataset().len());
        // More where training examples are repeated, as those of a rare class.
        ensure!(
            training + validation >= examples.len() && tested == test.len(),
            "{} and {} examples make splits of {training}, {validation} and {tested}",
            examples.len(),
            test.len()
        );
        Ok(())
    });
}

#[test]
fn splits_are_disjoint_and_leave_nothing_out() {
    contract("dataset.split", || {
        let examples = sample(&args()?)?.0;
        let (training, validation) = split(examples.clone())?;
        ensure!(!training.is_empty(), "no example is left for training");
        ensure!(!validation.is_empty(), "no example is left for validation");
        let keys = |examples: &Examples| -> Result<HashSet<String>> {
            let examples = all(examples)?;
            Ok(examples.iter().map(|one| format!("{one:?}")).collect())
        };
        let [of_all, of_training, of_validation] =
            [keys(&examples)?, keys(&training)?, keys(&validation)?];
        let left_out = of_all
            .iter()
            .filter(|key| !of_training.contains(*key) && !of_validation.contains(*key));
        let left_out = left_out.count();
        ensure!(
            left_out == 0,
            "{left_out} examples are neither for training nor for validation"
        );
        // Data may contain duplicates; overlapping splits share far more.
        let both = of_training.intersection(&of_validation).count();
        ensure!(
            both * 20 <= of_validation.len(),
            "{both} of the {} validation examples are for training too",
            of_validation.len()
        );
        ensure!(
            validation.len() - of_validation.len() <= examples.len() - of_all.len(),
            "{} validation examples are {} different ones: repeat training examples only",
            validation.len(),
            of_validation.len()
        );
        let (training_again, validation_again) = split(examples)?;
        ensure!(
            all(&training)? == all(&training_again)?
                && all(&validation)? == all(&validation_again)?,
            "a second split puts examples elsewhere"
        );
        Ok(())
    });
}

#[test]
fn a_batch_holds_its_examples_in_order() {
    contract("dataset.batch", || {
        let job = set_up_replicas(1)?;
        let (alone, together) = job.losses_alone_and_together(amounts().few)?;
        ensure!(
            alone.len() == together.len(),
            "a batch of {} examples has {} losses",
            alone.len(),
            together.len()
        );
        ensure!(
            together.iter().all(|value| value.is_finite()),
            "the losses of a batch are not finite: {together:?}"
        );
        ensure!(
            difference(&alone, &together) < 1e-4,
            "the loss of an example depends on its place or on the others in its batch: {alone:?} \
             alone and {together:?} together"
        );
        Ok(())
    });
}

#[test]
fn a_batch_holds_the_images_that_pictures_show() {
    contract("dataset.batch", || {
        let job = set_up_replicas(1)?;
        let examples = first(job.datasets.train.dataset(), FEW)?;
        job.strategy.run_on_first(move |_| {
            let device = replica_context()?.device().clone().without_autodiff();
            for example in examples {
                let batch = Batch::collate(vec![example.clone()], &device)?;
                if let (Some(images), Some(sample)) = (batch.images(), picture(&example)?) {
                    let shown = sample.panels().first().context("no panel")?;
                    ensure_image_shows_picture(images.squeeze_dim(0), shown)?;
                }
            }
            Ok(())
        })
    });
}

#[test]
fn augmentation_repeats_and_makes_a_batch() {
    contract("dataset.augment", || {
        let job = set_up_replicas(1)?;
        let examples = first(job.datasets.train.dataset(), 3)?;
        let augmented = |seed| {
            let augmented = examples
                .iter()
                .map(|example| augment(example.clone(), &mut stream("test", &[seed])));
            augmented.collect::<Result<Vec<_>>>()
        };
        ensure!(
            augmented(1)? == augmented(1)?,
            "the same random numbers give another example: draw all of them from `random`"
        );
        for seed in 1..=5 {
            let augmented = augmented(seed)?;
            job.prepare_inference()?;
            let losses = job.strategy.run_on_first(move |replica| {
                let device = replica.device().clone().without_autodiff();
                losses(&Batch::collate(augmented.clone(), &device)?)
            })?;
            ensure!(
                losses.len() == 3 && losses.iter().all(|loss| loss.is_finite()),
                "3 augmented examples have the losses {losses:?}"
            );
        }
        Ok(())
    });
}

#[test]
fn augmentation_moves_all_parts_of_an_example_alike() {
    contract("dataset.augment", || {
        let examples = first(&sample(&args()?)?.0, FEW)?;
        let mut errors = Vec::new();
        for (example, seed) in examples.iter().cycle().zip(0..200) {
            let augmented = augment(example.clone(), &mut stream("test", &[seed]))?;
            if let (Some(before), Some(after)) = (picture(example)?, picture(&augmented)?) {
                errors.extend(ensure_panels_move_together(&before, &after).err());
            }
        }
        // Up to 2 of 200, as a strong augmentation may look like another by chance.
        match errors.len() {
            0..3 => Ok(()),
            _ => Err(errors.remove(0)),
        }
    });
}

#[test]
fn pictures_can_be_laid_out_on_a_sheet() {
    contract("dataset.picture", || {
        let some = first(&sample(&args()?)?.0, 4)?;
        let samples = some.iter().map(picture).collect::<Result<Vec<_>>>()?;
        let samples: Vec<_> = samples.into_iter().flatten().collect();
        if !samples.is_empty() {
            sample_sheet(&samples, 2)?;
        }
        Ok(())
    });
}
