//! Smaller splits for trials: `--limit-train`, `--limit-validation` and `--overfit-batches`.
//!
//! Source: `limit_train_batches`, `limit_val_batches` and `overfit_batches` of `lightning.pytorch.Trainer`.

use std::sync::Arc;

use anyhow::Result;
use rand::seq::index;
use sha2::Sha256;

use super::{Dataset, dataset::Shared};
use crate::{globals, options::Options, random::stream};

/// The splits of a training, limited by the options.
pub(super) struct Limited<E> {
    pub train: Shared<E>,
    pub validation: Shared<E>,
    /// A line for each limit.
    pub notes: Vec<String>,
}

/// Limits the splits for training and validation by the options.
///
/// # Errors
/// No strategy is registered.
pub(super) fn limited<E: Send + 'static>(
    options: &Options,
    train: Shared<E>,
    validation: Shared<E>,
) -> Result<Limited<E>> {
    let mut notes = Vec::new();
    if let Some(batches) = options.overfit_batches {
        let examples = batches.saturating_mul(globals::global_batch_size()?);
        let option = format!("--overfit-batches {batches}");
        let train = limit(train, examples, &option, options.seed, &mut notes);
        notes.push(format!(
            "{option}: the validation is of the same examples, and there is no augmentation"
        ));
        return Ok(Limited {
            validation: Arc::clone(&train),
            train,
            notes,
        });
    }
    let mut limit_to = |split: Shared<E>, most: Option<usize>, option: &str| match most {
        Some(most) => limit(
            split,
            most,
            &format!("{option} {most}"),
            options.seed,
            &mut notes,
        ),
        None => split,
    };
    Ok(Limited {
        train: limit_to(train, options.limit_train, "--limit-train"),
        validation: limit_to(validation, options.limit_validation, "--limit-validation"),
        notes,
    })
}

/// At most `most` examples of a split, with a line in `notes`.
fn limit<E: Send + 'static>(
    split: Shared<E>,
    most: usize,
    option: &str,
    seed: u64,
    notes: &mut Vec<String>,
) -> Shared<E> {
    let len = split.len();
    notes.push(match most < len {
        true => format!("{option}: {most} of {len} examples"),
        false => format!("{option}: all {len} examples, as there are no more"),
    });
    match most < len {
        true => Arc::new(Part::new(split, most, seed)),
        false => split,
    }
}

/// Part of a dataset: the same examples in every pass, also of a dataset that differs from pass to pass.
struct Part<E> {
    dataset: Shared<E>,
    indices: Vec<usize>,
}

impl<E> Part<E> {
    /// The first `most` examples of a dataset with an order of its own; of any other, `most` drawn by `seed`,
    /// since the first ones may all be of one class. They keep their order.
    fn new(dataset: Shared<E>, most: usize, seed: u64) -> Self {
        let indices = match dataset.is_ordered() {
            true => (0..most).collect(),
            false => drawn(most, dataset.len(), seed),
        };
        Part { dataset, indices }
    }
}

/// `most` of the numbers below `len`, in ascending order.
fn drawn(most: usize, len: usize, seed: u64) -> Vec<usize> {
    let mut drawn = index::sample(&mut stream("limit", &[seed]), len, most).into_vec();
    drawn.sort_unstable();
    drawn
}

impl<E> Dataset for Part<E> {
    type Example = E;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, index: usize) -> Result<E> {
        self.dataset.get(self.indices[index])
    }

    fn is_ordered(&self) -> bool {
        self.dataset.is_ordered()
    }

    fn hash_labels(&self, indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        let indices: Vec<usize> = indices.iter().map(|index| self.indices[*index]).collect();
        self.dataset.hash_labels(&indices, hash)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{collections::BTreeSet, thread};

    use super::*;
    use crate::{
        data::{Datasets, Zip},
        test_task::{options, set_up},
    };

    struct Numbers {
        len: usize,
        is_ordered: bool,
    }

    impl Dataset for Numbers {
        type Example = usize;

        fn len(&self) -> usize {
            self.len
        }

        fn get(&self, index: usize) -> Result<usize> {
            Ok(index)
        }

        fn is_ordered(&self) -> bool {
            self.is_ordered
        }
    }

    /// The numbers from 0 to below `len`.
    pub fn numbers(len: usize, is_ordered: bool) -> Shared<usize> {
        Arc::new(Numbers { len, is_ordered })
    }

    /// Examples of two epochs of training and of the validation, with 1,000 added by the augmentation; and the
    /// notes.
    #[derive(Debug, Default)]
    struct Seen {
        epochs: [Vec<usize>; 2],
        validation: Vec<usize>,
        test: usize,
        notes: Vec<String>,
    }

    /// With 40, 20 and 10 examples, on a separate thread, as each can register one strategy.
    fn seen(words: &'static str, is_ordered: bool) -> Seen {
        let read = move || -> Result<Seen> {
            let words: Vec<&str> = words.split_whitespace().collect();
            let options = options(&[&words[..], &["--batch-size", "4"]].concat());
            set_up(&options)?;
            let splits = [40, 20, 10].map(|len| numbers(len, is_ordered));
            let data = Datasets::distribute(&options, splits, |example, _| Ok(example + 1_000))?;
            let examples = |batches: super::super::Epoch<usize>| -> Result<Vec<usize>> {
                let shards = batches.flatten().map(|shard| shard.examples());
                Ok(shards.collect::<Result<Vec<_>>>()?.concat())
            };
            Ok(Seen {
                epochs: [
                    examples(data.train.epoch(1))?,
                    examples(data.train.epoch(2))?,
                ],
                validation: examples(data.validation.epoch(1))?,
                test: data.test.dataset().len(),
                notes: data.limits,
            })
        };
        thread::spawn(read).join().unwrap().unwrap()
    }

    fn sorted(examples: &[usize]) -> Vec<usize> {
        let mut examples = examples.to_vec();
        examples.sort_unstable();
        examples
    }

    #[test]
    fn the_same_examples_come_in_every_epoch_for_any_number_of_replicas() {
        let limits = "--limit-train 9 --limit-validation 5";
        let one = seen("--limit-train 9 --limit-validation 5 --replicas 1", false);
        let two = seen("--limit-train 9 --limit-validation 5 --replicas 2", false);
        for limited in [&one, &two] {
            let [first, second] = &limited.epochs;
            assert_eq!(first.len(), 9, "{limits}");
            assert_ne!(first, second, "shuffled anew");
            assert_eq!(sorted(first), sorted(second));
            assert_eq!((limited.validation.len(), limited.test), (5, 10));
        }
        assert_eq!(one.epochs[0], two.epochs[0]);
        assert_ne!(
            sorted(&one.epochs[0])[8],
            1_008,
            "drawn, and not the first nine"
        );
        assert_eq!(
            one.validation,
            sorted(&one.validation),
            "in the order of the split"
        );
        assert_eq!(
            one.notes,
            [
                "--limit-train 9: 9 of 40 examples",
                "--limit-validation 5: 5 of 20 examples"
            ]
        );
    }

    #[test]
    fn an_ordered_split_keeps_its_beginning_in_order() {
        let limited = seen("--limit-train 9 --replicas 2", true);
        let beginning: Vec<usize> = (1_000..1_009).collect();
        assert_eq!(limited.epochs, [beginning.clone(), beginning]);
        assert_eq!(limited.validation.len(), 20);
    }

    #[test]
    fn overfitting_trains_and_validates_on_the_same_batches_without_augmentation() {
        let limited = seen("--overfit-batches 2 --replicas 2", false);
        let [first, _] = &limited.epochs;
        assert_eq!(first.len(), 2 * 2 * 4, "two batches of two replicas");
        assert!(
            first.iter().all(|example| *example < 1_000),
            "not augmented"
        );
        assert_eq!(sorted(first), limited.validation);
        assert_eq!(limited.test, 10);
        assert_eq!(
            limited.notes,
            [
                "--overfit-batches 2: 16 of 40 examples",
                "--overfit-batches 2: the validation is of the same examples, and there is no \
                 augmentation"
            ]
        );
    }

    #[test]
    fn a_limit_above_the_number_of_examples_uses_all_and_says_so() {
        let limited = seen("--limit-train 40 --limit-validation 21", false);
        assert_eq!(
            (limited.epochs[0].len(), limited.validation.len()),
            (40, 20)
        );
        let told = "--limit-validation 21: all 20 examples, as there are no more";
        assert_eq!(
            limited.notes,
            [
                "--limit-train 40: all 40 examples, as there are no more",
                told
            ]
        );
        let whole = seen("", false);
        assert_eq!(
            whole.epochs, limited.epochs,
            "in the order of a run without limit"
        );
        assert!(whole.notes.is_empty());
    }

    #[test]
    fn pairs_that_change_by_pass_stay_the_same() {
        let pairs: Shared<(usize, usize)> =
            Arc::new(Zip::new(numbers(30, false), numbers(40, false), 7));
        let part = Part::new(Arc::clone(&pairs), 3, 1);
        let of_pass = |pass| -> BTreeSet<(usize, usize)> {
            let examples = (0..3).map(|index| part.get_in_pass(index, pass).unwrap());
            examples.collect()
        };
        assert_eq!(of_pass(0), of_pass(5));
        assert_ne!(
            pairs.get_in_pass(0, 0).unwrap(),
            pairs.get_in_pass(0, 5).unwrap()
        );
    }
}
