use std::{
    collections::{BTreeSet, HashMap, HashSet},
    mem,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use anyhow::{Context, Error, Result, ensure};
use clap::Parser;
use kiln_engine::{
    contract::{ensure_image_shows_picture, ensure_panels_move_together},
    data::{Collate, Dataset, stream},
    picture::sample_sheet,
    replica::replica_context,
};
use training::{
    cli::Args,
    dataset::{Batch, Example, Examples, augment, picture, read_examples, split},
    globals,
    strategy::create_strategy,
};

use crate::support::{
    all_same, amounts, contract, difference, has_large_examples, key, losses, same, sample,
    set_up_replicas, splits,
};

/// Number of examples to check one by one.
const FEW: usize = 20;

fn args() -> Result<Args> {
    Ok(Args::try_parse_from(["contract"])?)
}

fn all(examples: &Examples) -> Result<Vec<Example>> {
    let indices = 0..examples.len();
    indices.map(|index| examples.get(index)).collect()
}

/// Up to `count` examples, from all over the data.
fn some(examples: &Examples, count: usize) -> Result<Vec<Example>> {
    all(&sample(Arc::clone(examples), count)?)
}

/// The splits of a training.
fn splits_of_training() -> Result<[Examples; 3]> {
    globals::register_strategy(&create_strategy(&args()?)?, 1)?;
    splits(&args()?)
}

#[test]
fn examples_are_the_same_every_time() {
    contract("dataset.source", || {
        let (before, again) = (read_examples(&args()?)?, read_examples(&args()?)?);
        for (before, again) in [(before.0, again.0), (before.1, again.1)] {
            ensure!(
                !before.is_empty(),
                "there are no examples for training or none for the test: without a test set, set some of \
                 the others aside"
            );
            ensure!(
                all_same(&some(&before, FEW)?, &some(&again, FEW)?),
                "a second reading gives other examples"
            );
        }
        Ok(())
    });
}

#[test]
fn the_test_has_examples_of_its_own() {
    contract("dataset.source", || {
        let data = read_examples(&args()?)?.0;
        let [training, validation, test] = splits_of_training()?;
        let keys = |examples| -> Result<Vec<u64>> {
            let examples = some(examples, amounts().compared)?;
            Ok(examples.iter().map(key).collect())
        };
        let set = |examples| Ok::<HashSet<u64>, Error>(keys(examples)?.into_iter().collect());
        let (of_data, of_training) = (set(&data)?, set(&training)?);
        let (of_validation, of_test) = (keys(&validation)?, keys(&test)?);
        let share = |keys: &[u64], others: &HashSet<u64>| {
            let shared = keys.iter().filter(|key| others.contains(key)).count();
            shared as f64 / keys.len().max(1) as f64
        };
        // Short words, for one, come again by chance, in each split.
        let by_chance = share(&of_validation, &of_training);
        let shared = share(&of_test, &of_training).max(share(&of_test, &of_data));
        ensure!(
            shared <= 1.25 * by_chance + 0.05,
            "{:.0} % of the test examples are for training or validation, too: return others as the test split",
            100.0 * shared
        );
        Ok(())
    });
}

#[test]
fn examples_are_read_and_differ() {
    contract("dataset.example", || {
        let (examples, test) = read_examples(&args()?)?;
        for examples in [some(&examples, FEW)?, some(&test, FEW)?] {
            ensure!(
                examples.len() < 2 || examples.iter().any(|example| !same(example, &examples[0])),
                "all examples are equal: does `Example` hold what tells them apart?"
            );
        }
        Ok(())
    });
}

/// The data of `read_examples`, which notes what a split reads of it: a split may change its examples or mix
/// them, and equal ones may be in several splits.
struct Noted {
    data: Examples,
    reads: Mutex<Vec<usize>>,
    /// Stands for all large examples once they are split, so that they need not be read.
    stand_in: OnceLock<Example>,
}

/// For each example of a split, the indices in the data of those that it is made of; the [`key`] of one that `split`
/// has read and kept.
type Origins = Vec<Vec<u64>>;

impl Noted {
    fn reads(&self) -> MutexGuard<'_, Vec<usize>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn origins(&self, split: &Examples) -> Result<Origins> {
        let origin = |index| -> Result<Vec<u64>> {
            self.reads().clear();
            let example = split.get(index)?;
            let reads = mem::take(&mut *self.reads());
            Ok(match reads.is_empty() {
                true => vec![key(&example)],
                false => reads.into_iter().map(|index| index as u64).collect(),
            })
        };
        (0..split.len()).map(origin).collect()
    }
}

impl Dataset for Noted {
    type Example = Example;

    fn len(&self) -> usize {
        self.data.len()
    }

    fn get(&self, index: usize) -> Result<Example> {
        self.reads().push(index);
        match self.stand_in.get() {
            Some(example) => Ok(example.clone()),
            None => self.data.get(index),
        }
    }
}

/// The origins of the training and the validation examples, found once: there may be many.
fn origins(data: &Examples) -> Result<Arc<[Origins; 2]>> {
    static ORIGINS: Mutex<Option<Arc<[Origins; 2]>>> = Mutex::new(None);
    let mut shared = ORIGINS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(origins) = &*shared {
        return Ok(Arc::clone(origins));
    }
    let noted = Arc::new(Noted {
        data: Arc::clone(data),
        reads: Mutex::default(),
        stand_in: OnceLock::new(),
    });
    let (training, validation) = split(Arc::clone(&noted) as Examples)?;
    ensure!(!training.is_empty(), "no example is left for training");
    ensure!(!validation.is_empty(), "no example is left for validation");
    if has_large_examples() {
        let stand_in = data.get(0)?;
        noted.stand_in.get_or_init(|| stand_in);
    }
    let origins = Arc::new([noted.origins(&training)?, noted.origins(&validation)?]);
    Ok(Arc::clone(shared.insert(origins)))
}

#[test]
fn splits_are_disjoint() {
    contract("dataset.split", || {
        let data = read_examples(&args()?)?.0;
        let origins = origins(&data)?;
        let [training, validation] = &*origins;
        let of_training: BTreeSet<u64> = training.iter().flatten().copied().collect();
        let of_validation: BTreeSet<u64> = validation.iter().flatten().copied().collect();
        let both: Vec<&u64> = of_training.intersection(&of_validation).collect();
        // Equal ones that `split` has kept may be different examples of the data.
        let by_chance = match of_validation.last() {
            Some(key) if *key >= data.len() as u64 => validation.len() / 20,
            _ => 0,
        };
        let such = match both.first() {
            Some(number) if **number < data.len() as u64 => format!(", such as number {number},"),
            _ => String::new(),
        };
        ensure!(
            both.len() <= by_chance,
            "{} examples{such} are for training and for validation",
            both.len()
        );
        let repeated = repeated(validation, &split(Arc::clone(&data))?.1)?;
        ensure!(
            repeated <= by_chance,
            "{repeated} of {} validation examples repeat others: repeat training examples only",
            validation.len()
        );
        let contents = || -> Result<_> {
            let (training, validation) = split(Arc::clone(&data))?;
            let most = amounts().compared;
            Ok([some(&training, most)?, some(&validation, most)?])
        };
        ensure!(
            contents()?
                .iter()
                .zip(&contents()?)
                .all(|(one, two)| all_same(one, two)),
            "a second split puts examples elsewhere, or makes others of them"
        );
        Ok(())
    });
}

/// The number of examples that equal an earlier one of the same origins: several may be parts of one.
fn repeated(origins: &Origins, examples: &Examples) -> Result<usize> {
    let (mut firsts, mut count) = (HashMap::new(), 0);
    for (index, origin) in origins.iter().enumerate() {
        let first = *firsts.entry(origin).or_insert(index);
        count += usize::from(first != index && same(&examples.get(first)?, &examples.get(index)?));
    }
    Ok(count)
}

#[test]
fn all_examples_are_in_a_split() {
    contract("dataset.split", || {
        let (data, test) = read_examples(&args()?)?;
        let origins = origins(&data)?;
        let used: HashSet<&u64> = origins.iter().flatten().flatten().collect();
        let keeps_examples = used.iter().any(|origin| **origin >= data.len() as u64);
        let mut left_out = Vec::new();
        for index in (0..data.len()).filter(|index| !used.contains(&(*index as u64))) {
            if !keeps_examples || !used.contains(&key(&data.get(index)?)) {
                left_out.push(index);
            }
        }
        ensure!(
            left_out.is_empty(),
            "{} examples, such as number {}, are neither for training nor for validation: leave examples out in \
             `read_examples`",
            left_out.len(),
            left_out[0]
        );
        let [training, validation, tested] = splits_of_training()?.map(|split| split.len());
        // More where training examples are repeated, as those of a rare class.
        ensure!(
            training + validation >= data.len() && tested == test.len(),
            "{} and {} examples make splits of {training}, {validation} and {tested}",
            data.len(),
            test.len()
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
            difference(&alone, &together) < 3e-5,
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
        let [training, validation] =
            [&job.datasets.train, &job.datasets.validation].map(|split| some(split.dataset(), FEW));
        let examples = [augmented(&training?, 0)?, validation?].concat();
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

/// Examples as in training.
fn augmented(examples: &[Example], seed: u64) -> Result<Vec<Example>> {
    let examples = (0..).zip(examples);
    examples
        .map(|(number, example)| augment(example.clone(), &mut stream("test", &[seed, number])))
        .collect()
}

#[test]
fn augmentation_repeats_and_makes_a_batch() {
    contract("dataset.augment", || {
        let job = set_up_replicas(1)?;
        let examples = some(job.datasets.train.dataset(), 3)?;
        ensure!(
            all_same(&augmented(&examples, 1)?, &augmented(&examples, 1)?),
            "the same random numbers give another example: draw all of them from `random`"
        );
        for seed in 1..=5 {
            let augmented = augmented(&examples, seed)?;
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
        let examples = some(set_up_replicas(1)?.datasets.train.dataset(), FEW)?;
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
        let examples = some(set_up_replicas(1)?.datasets.train.dataset(), 4)?;
        let samples = examples.iter().map(picture).collect::<Result<Vec<_>>>()?;
        let samples: Vec<_> = samples.into_iter().flatten().collect();
        if !samples.is_empty() {
            sample_sheet(&samples, 2)?;
        }
        Ok(())
    });
}
