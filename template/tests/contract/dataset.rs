use std::collections::HashSet;

use anyhow::{Result, ensure};
use clap::Parser;
use kiln_engine::{
    data::{Collate, stream},
    distribute::replica_context,
    report::picture::sheet,
};
use training::{
    cli::Args,
    dataset::{Batch, Example, Examples, augment, picture, read_examples, split},
};

use crate::support::{contract, difference, set_up_replicas, values};

fn read() -> Result<(Examples, Examples)> {
    read_examples(&Args::try_parse_from(["contract"])?)
}

fn all(examples: &Examples) -> Result<Vec<Example>> {
    (0..examples.len())
        .map(|index| examples.get(index))
        .collect()
}

#[test]
fn examples_are_the_same_every_time() {
    contract("dataset.source", || {
        let (first, again) = (read()?, read()?);
        for (first, again) in [(first.0, again.0), (first.1, again.1)] {
            ensure!(!first.is_empty(), "there are no examples");
            ensure!(
                all(&first)? == all(&again)?,
                "a second reading gives other examples"
            );
        }
        Ok(())
    });
}

#[test]
fn splits_are_disjoint_and_leave_nothing_out() {
    contract("dataset.split", || {
        let examples = read()?.0;
        let (training, validation) = split(examples.clone())?;
        ensure!(!training.is_empty(), "no example is left for training");
        ensure!(!validation.is_empty(), "no example is left for validation");
        ensure!(
            training.len() + validation.len() == examples.len(),
            "{} examples are split into {} and {}",
            examples.len(),
            training.len(),
            validation.len()
        );
        let keys = |examples: &Examples| -> Result<HashSet<String>> {
            Ok(all(examples)?
                .iter()
                .map(|example| format!("{example:?}"))
                .collect())
        };
        let (training_keys, validation_keys) = (keys(&training)?, keys(&validation)?);
        // Data may hold an example twice; a split that overlaps shows in far more of them.
        let both = training_keys.intersection(&validation_keys).count();
        ensure!(
            both * 20 <= validation_keys.len(),
            "{both} of the {} validation examples are for training too",
            validation_keys.len()
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
        let examples = (0..3).map(|index| job.datasets.train.dataset().get(index));
        let examples = examples.collect::<Result<Vec<_>>>()?;
        job.strategy.run_on_first(move |_| {
            let device = replica_context()?.device().clone();
            let features = |examples: &[Example]| -> Result<(usize, Vec<f32>)> {
                let batch = Batch::collate(examples.to_vec(), &device)?;
                Ok((batch.features.dims()[0], values(&batch.features)))
            };
            let (rows, together) = features(&examples)?;
            ensure!(rows == 3, "the features of 3 examples have {rows} rows");
            ensure!(
                together.iter().all(|value| value.is_finite()),
                "features are not finite"
            );
            let mut alone = Vec::new();
            for example in &examples {
                alone.extend(features(std::slice::from_ref(example))?.1);
            }
            ensure!(
                difference(&together, &alone) < 1e-6,
                "the features of an example depend on its place or on the others in its batch"
            );
            Ok(())
        })
    });
}

#[test]
fn augmentation_repeats_and_keeps_examples_in_batches() {
    contract("dataset.augment", || {
        let job = set_up_replicas(1)?;
        let examples = (0..3).map(|index| job.datasets.train.dataset().get(index));
        let examples = examples.collect::<Result<Vec<_>>>()?;
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
        let augmented = augmented(2)?;
        job.strategy.run_on_first(move |_| {
            let device = replica_context()?.device().clone();
            let shape = |examples: Vec<Example>| -> Result<_> {
                Ok(Batch::collate(examples, &device)?.features.dims())
            };
            let (before, after) = (shape(examples)?, shape(augmented)?);
            ensure!(
                before == after,
                "examples make features {before:?}, and augmented ones {after:?}"
            );
            Ok(())
        })
    });
}

#[test]
fn pictures_can_be_laid_out_on_a_sheet() {
    contract("dataset.picture", || {
        let examples = read()?.0;
        let some = (0..4.min(examples.len())).map(|index| picture(&examples.get(index)?));
        let (pictures, captions): (Vec<_>, Vec<_>) = some
            .collect::<Result<Vec<_>>>()?
            .into_iter()
            .flatten()
            .unzip();
        if !pictures.is_empty() {
            sheet(&pictures, 2, &captions)?;
        }
        Ok(())
    });
}
