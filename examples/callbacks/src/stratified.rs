//! Batches of the same mix of classes.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use kiln_engine::data::{Dataset, Sha256, hash_all, stream};
use rand::seq::SliceRandom;

use crate::dataset::{CLASSES, Example, Examples};

/// A dataset in an order in which each stretch, and so each batch, has about the mix of classes of
/// the whole. The order is another one in each pass, with each example once, and does not depend on
/// the number of replicas or the size of batches.
pub struct Stratified {
    dataset: Examples,
    labels: Vec<u8>,
    seed: u64,
    /// The order of the pass that was asked for last.
    order: Mutex<Option<(usize, Arc<Vec<usize>>)>>,
}

impl Stratified {
    /// # Errors
    /// An example cannot be read.
    pub fn new(dataset: Examples, seed: u64) -> Result<Self> {
        let labels = (0..dataset.len()).map(|index| Ok(dataset.get(index)?.label));
        Ok(Stratified {
            labels: labels.collect::<Result<_>>()?,
            dataset,
            seed,
            order: Mutex::default(),
        })
    }

    fn order(&self, pass: usize) -> Arc<Vec<usize>> {
        let mut last = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((of, order)) if *of == pass => Arc::clone(order),
            _ => {
                let order = Arc::new(self.shuffled(pass));
                *last = Some((pass, Arc::clone(&order)));
                order
            }
        }
    }

    /// Spreads the examples of each class, which come in a random order, evenly over the pass.
    fn shuffled(&self, pass: usize) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.labels.len()).collect();
        order.shuffle(&mut stream("stratified", &[self.seed, pass as u64]));
        let mut of_class = [0; CLASSES];
        for label in &self.labels {
            of_class[usize::from(*label)] += 1;
        }
        let mut seen = [0; CLASSES];
        let mut placed: Vec<(f64, usize)> = Vec::new();
        for index in order {
            let class = usize::from(self.labels[index]);
            placed.push((
                (f64::from(seen[class]) + 0.5) / f64::from(of_class[class]),
                index,
            ));
            seen[class] += 1;
        }
        placed.sort_by(|left, right| left.0.total_cmp(&right.0));
        placed.into_iter().map(|(_, index)| index).collect()
    }
}

impl Dataset for Stratified {
    type Example = Example;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize) -> Result<Example> {
        self.get_in_pass(index, 0)
    }

    fn get_in_pass(&self, index: usize, pass: usize) -> Result<Example> {
        let order = self.order(pass);
        self.dataset.get_in_pass(order[index], pass)
    }

    fn differs_by_pass(&self) -> bool {
        true
    }

    fn is_ordered(&self) -> bool {
        true
    }

    /// All of it: each index stands for another example in each pass.
    fn hash_labels(&self, _indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        hash_all(&*self.dataset, hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Twice as many of each class as of the one before.
    struct Unequal;

    impl Dataset for Unequal {
        type Example = Example;

        fn len(&self) -> usize {
            12 + 24 + 48
        }

        fn get(&self, index: usize) -> Result<Example> {
            Ok(Example {
                pixels: vec![index as u8],
                height: 1,
                width: 1,
                label: [12, 36].iter().filter(|first| index >= **first).count() as u8,
            })
        }
    }

    fn pass(pass: usize) -> Vec<Example> {
        let dataset = Stratified::new(Arc::new(Unequal), 7).unwrap();
        let examples = (0..dataset.len()).map(|index| dataset.get_in_pass(index, pass));
        examples.collect::<Result<_>>().unwrap()
    }

    #[test]
    fn each_example_comes_once_a_pass_in_another_order() {
        for number in 0..3 {
            let mut seen: Vec<u8> = pass(number).iter().map(|one| one.pixels[0]).collect();
            seen.sort_unstable();
            assert_eq!(seen, Vec::from_iter(0..84));
        }
        assert_ne!(pass(0), pass(1));
        assert_eq!(pass(1), pass(1));
    }

    #[test]
    fn each_stretch_has_the_mix_of_the_whole() {
        let examples = pass(0);
        for stretch in examples.windows(14) {
            for (label, expected) in [(0, 2), (1, 4), (2, 8)] {
                let count = stretch.iter().filter(|one| one.label == label).count();
                assert!(count.abs_diff(expected) <= 1, "{count} of class {label}");
            }
        }
    }
}
