//! Map-style datasets, and adapters: subsets, maps, caches and pairs.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, OnceLock, PoisonError},
};

use anyhow::{Result, ensure};
use sha2::{Digest, Sha256};

use crate::random::{shuffled, stream};

/// A map-style dataset, as PyTorch's `Dataset`: examples by index, the same ones every time.
pub trait Dataset: Send + Sync {
    /// An element of the dataset.
    type Example;

    /// The number of examples.
    fn len(&self) -> usize;

    /// Whether there are no examples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The example at `index`, below [`len`](Self::len).
    ///
    /// # Errors
    /// The example cannot be read.
    fn get(&self, index: usize) -> Result<Self::Example>;

    /// The example at `index` in one pass over the dataset, for datasets that differ from pass to pass. The
    /// same pass returns the same example every time.
    ///
    /// # Errors
    /// The example cannot be read.
    fn get_in_pass(&self, index: usize, _pass: usize) -> Result<Self::Example> {
        self.get(index)
    }

    /// Whether passes differ, so that a cache would freeze the first one.
    fn differs_by_pass(&self) -> bool {
        false
    }

    /// Whether a pass has an order of its own, such as one of stratified batches: training then does not
    /// shuffle.
    fn is_ordered(&self) -> bool {
        false
    }

    /// Adds the labels of the examples at `indices` to a hash, in that order, and other properties that are
    /// cheap to read, such as the sizes of images or files, but no features. A run records the hash, and a
    /// resumed run compares it. False if labels cannot be read without the features, as by default.
    ///
    /// # Errors
    /// A label cannot be read.
    fn hash_labels(&self, _indices: &[usize], _hash: &mut Sha256) -> Result<bool> {
        Ok(false)
    }
}

/// A dataset of any kind, shared by the replicas.
pub type Shared<E> = Arc<dyn Dataset<Example = E>>;

/// Examples in memory.
impl<E: Clone + Send + Sync> Dataset for Vec<E> {
    type Example = E;

    fn len(&self) -> usize {
        self.as_slice().len()
    }

    fn get(&self, index: usize) -> Result<E> {
        Ok(self[index].clone())
    }
}

/// A subset of a dataset, such as a validation split, as PyTorch's `Subset`.
pub struct Subset<E> {
    dataset: Shared<E>,
    indices: Vec<usize>,
}

impl<E> Subset<E> {
    /// The examples of `dataset` at `indices`.
    ///
    /// # Errors
    /// An index is out of range.
    pub fn new(dataset: Shared<E>, indices: Vec<usize>) -> Result<Self> {
        let outside = indices.iter().find(|index| **index >= dataset.len());
        ensure!(
            outside.is_none(),
            "a subset asks for example {} of {}",
            outside.copied().unwrap_or_default(),
            dataset.len()
        );
        Ok(Subset { dataset, indices })
    }
}

impl<E> Dataset for Subset<E> {
    type Example = E;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn get(&self, index: usize) -> Result<E> {
        self.dataset.get(self.indices[index])
    }

    fn get_in_pass(&self, index: usize, pass: usize) -> Result<E> {
        self.dataset.get_in_pass(self.indices[index], pass)
    }

    fn differs_by_pass(&self) -> bool {
        self.dataset.differs_by_pass()
    }

    fn hash_labels(&self, indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        let indices: Vec<usize> = indices.iter().map(|index| self.indices[*index]).collect();
        self.dataset.hash_labels(&indices, hash)
    }
}

/// A dataset with a deterministic function applied to each example. Random functions belong in
/// [`BatchOptions::augment`](super::BatchOptions::augment).
pub struct Map<E, F> {
    dataset: Shared<E>,
    function: F,
}

impl<E, F> Map<E, F> {
    /// Applies `function` to each example of `dataset`.
    pub fn new(dataset: Shared<E>, function: F) -> Self {
        Map { dataset, function }
    }
}

impl<E, T, F: Fn(E) -> Result<T> + Send + Sync> Dataset for Map<E, F> {
    type Example = T;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn get(&self, index: usize) -> Result<T> {
        (self.function)(self.dataset.get(index)?)
    }

    fn get_in_pass(&self, index: usize, pass: usize) -> Result<T> {
        (self.function)(self.dataset.get_in_pass(index, pass)?)
    }

    fn differs_by_pass(&self) -> bool {
        self.dataset.differs_by_pass()
    }

    /// Hashes labels before the function, which would need the features.
    fn hash_labels(&self, indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        self.dataset.hash_labels(indices, hash)
    }
}

/// Caches every example in memory on its first read, as `tf.data.Dataset.cache` does.
///
/// Augmentation cannot be cached by mistake, as it is applied after all datasets.
pub struct Cached<E> {
    dataset: Shared<E>,
    examples: Vec<OnceLock<E>>,
}

impl<E> Cached<E> {
    /// An empty cache of `dataset`.
    ///
    /// # Errors
    /// The dataset differs from pass to pass, as a [`Zip`] does.
    pub fn new(dataset: Shared<E>) -> Result<Self> {
        ensure!(
            !dataset.differs_by_pass(),
            "a cache would freeze a dataset that differs from pass to pass: cache its parts"
        );
        let examples = (0..dataset.len()).map(|_| OnceLock::new()).collect();
        Ok(Cached { dataset, examples })
    }
}

impl<E: Clone + Send + Sync> Dataset for Cached<E> {
    type Example = E;

    fn len(&self) -> usize {
        self.examples.len()
    }

    fn get(&self, index: usize) -> Result<E> {
        let cell = &self.examples[index];
        if let Some(example) = cell.get() {
            return Ok(example.clone());
        }
        // Two threads may both read an example at first, with the same result.
        let example = self.dataset.get(index)?;
        Ok(cell.get_or_init(|| example).clone())
    }

    fn hash_labels(&self, indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        self.dataset.hash_labels(indices, hash)
    }
}

/// Pairs of the examples of two datasets, as many as the shorter one has. Each pass has other pairs, so that
/// all examples of the longer one are used eventually.
///
/// Source: `tf.data.Dataset.zip`, which stops at the shorter, of two shuffled datasets.
pub struct Zip<A, B> {
    first: Shared<A>,
    second: Shared<B>,
    seed: u64,
    /// Orders of the datasets in the last two passes, as threads may read on both sides of the end of a
    /// pass.
    orders: Mutex<VecDeque<(usize, Arc<Orders>)>>,
}

/// Indices of the pairs of a pass in the two datasets.
type Orders = [Vec<usize>; 2];

impl<A, B> Zip<A, B> {
    /// Pairs of `first` and `second`, both shuffled by `seed` and pass.
    pub fn new(first: Shared<A>, second: Shared<B>, seed: u64) -> Self {
        Zip {
            first,
            second,
            seed,
            orders: Mutex::default(),
        }
    }

    fn orders(&self, pass: usize) -> Arc<Orders> {
        let mut last = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, orders)) = last.iter().find(|(of, _)| *of == pass) {
            return Arc::clone(orders);
        }
        let order = |purpose, len| shuffled(len, stream(purpose, &[self.seed, pass as u64]));
        let (first, second) = (self.first.len(), self.second.len());
        let orders = Arc::new([order("zip first", first), order("zip second", second)]);
        last.push_back((pass, Arc::clone(&orders)));
        if last.len() > 2 {
            last.pop_front();
        }
        orders
    }
}

impl<A, B> Dataset for Zip<A, B> {
    type Example = (A, B);

    fn len(&self) -> usize {
        self.first.len().min(self.second.len())
    }

    fn get(&self, index: usize) -> Result<(A, B)> {
        self.get_in_pass(index, 0)
    }

    fn get_in_pass(&self, index: usize, pass: usize) -> Result<(A, B)> {
        let orders = self.orders(pass);
        let [first, second] = [orders[0][index], orders[1][index]];
        Ok((
            self.first.get_in_pass(first, pass)?,
            self.second.get_in_pass(second, pass)?,
        ))
    }

    fn differs_by_pass(&self) -> bool {
        true
    }

    /// Hashes all labels of both datasets, since an index is another pair in each pass, and the indices.
    fn hash_labels(&self, indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        let first = hash_all(&*self.first, hash)?;
        let second = hash_all(&*self.second, hash)?;
        let indices = indices.iter().map(|index| (*index as u64).to_le_bytes());
        indices.for_each(|index| hash.update(index));
        Ok(first && second)
    }
}

/// Adds the number and the labels of all examples of a dataset to a hash. False as in
/// [`Dataset::hash_labels`].
///
/// # Errors
/// A label cannot be read.
pub fn hash_all<E>(dataset: &dyn Dataset<Example = E>, hash: &mut Sha256) -> Result<bool> {
    let indices: Vec<usize> = (0..dataset.len()).collect();
    hash.update((dataset.len() as u64).to_le_bytes());
    dataset.hash_labels(&indices, hash)
}

#[cfg(test)]
mod tests {
    use std::{
        collections::BTreeSet,
        sync::atomic::{AtomicUsize, Ordering},
    };

    use super::*;

    struct Numbers {
        len: usize,
        reads: Arc<AtomicUsize>,
    }

    fn numbers(len: usize) -> (Shared<usize>, Arc<AtomicUsize>) {
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        (Arc::new(Numbers { len, reads }), counted)
    }

    impl Dataset for Numbers {
        type Example = usize;

        fn len(&self) -> usize {
            self.len
        }

        fn get(&self, index: usize) -> Result<usize> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            Ok(index)
        }
    }

    #[test]
    fn a_cache_reads_once_and_gives_the_same() {
        let (dataset, reads) = numbers(3);
        let squares: Shared<usize> = Arc::new(Map::new(dataset, |number| Ok(number * number)));
        let cached = Cached::new(squares).unwrap();
        for _ in 0..2 {
            let all: Vec<usize> = (0..3).map(|index| cached.get(index).unwrap()).collect();
            assert_eq!(all, [0, 1, 4]);
        }
        assert_eq!(reads.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn a_vector_is_a_dataset() {
        let words: Shared<&str> = Arc::new(vec!["one", "two"]);
        assert_eq!((words.len(), words.get(1).unwrap()), (2, "two"));
        assert!(!words.is_empty() && !words.is_ordered());
    }

    #[test]
    fn a_subset_stays_within_its_dataset() {
        let subset = Subset::new(numbers(3).0, vec![2, 0]).unwrap();
        assert_eq!((subset.get(0).unwrap(), subset.get(1).unwrap()), (2, 0));
        let error = Subset::new(numbers(3).0, vec![3]).err().unwrap();
        assert_eq!(error.to_string(), "a subset asks for example 3 of 3");
    }

    #[test]
    fn pairs_are_as_many_as_the_shorter_and_change_by_pass() {
        let zip = Zip::new(numbers(3).0, numbers(5).0, 7);
        assert_eq!(zip.len(), 3);
        let pass = |pass| -> Vec<(usize, usize)> {
            (0..3)
                .map(|index| zip.get_in_pass(index, pass).unwrap())
                .collect()
        };
        assert_eq!(pass(0), pass(0));
        assert_ne!(pass(0), pass(1));
        let pairs: Vec<_> = (0..10).flat_map(pass).collect();
        let (first, second): (BTreeSet<_>, BTreeSet<_>) = pairs.into_iter().unzip();
        assert_eq!((first.len(), second.len()), (3, 5), "all of both are used");
        for pass_number in 0..10 {
            let first: BTreeSet<_> = pass(pass_number).iter().map(|pair| pair.0).collect();
            assert_eq!(first.len(), 3, "each of the shorter once a pass");
        }
    }

    #[test]
    fn what_differs_by_pass_cannot_be_cached() {
        let zip: Shared<(usize, usize)> = Arc::new(Zip::new(numbers(3).0, numbers(5).0, 7));
        let mapped: Shared<usize> = Arc::new(Map::new(zip, |pair: (usize, usize)| Ok(pair.0)));
        let error = Cached::new(mapped).err().unwrap().to_string();
        assert!(error.contains("a cache would freeze"), "{error}");
    }
}
