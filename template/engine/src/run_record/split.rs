//! Fingerprints of the data of a run: number of examples and labels.

use anyhow::Result;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    bytes::hex,
    data::{Dataset, Datasets, DistributedDataset, hash_all},
    globals::Split,
};

/// The data of a split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SplitRecord {
    /// Number of examples.
    pub examples: usize,
    /// SHA-256 of the number of examples and the data of [`Dataset::hash_labels`].
    pub sha256: String,
    /// Whether the hash includes labels; otherwise it is of sizes alone.
    pub labels: bool,
}

impl SplitRecord {
    /// Hashes sizes and labels, without reading features.
    ///
    /// # Errors
    /// A label cannot be read.
    pub fn of<E>(dataset: &dyn Dataset<Example = E>) -> Result<Self> {
        let mut hash = Sha256::new();
        let labels = hash_all(dataset, &mut hash)?;
        Ok(SplitRecord {
            examples: dataset.len(),
            sha256: hex(hash),
            labels,
        })
    }

    /// True unless the records show that the data differ.
    pub(crate) fn fits(&self, other: &SplitRecord) -> bool {
        let comparable = self.labels == other.labels;
        self.examples == other.examples && (!comparable || self.sha256 == other.sha256)
    }

    pub(super) fn describe(&self) -> String {
        let of = if self.labels {
            "sizes and labels"
        } else {
            "sizes"
        };
        format!(
            "{} examples with SHA-256 {} of {of}",
            self.examples, self.sha256
        )
    }
}

/// The data of each split, by its name.
///
/// # Errors
/// A label cannot be read.
pub(super) fn records<E: Send + 'static>(
    datasets: &Datasets<E>,
) -> Result<IndexMap<String, SplitRecord>> {
    let splits = [
        (Split::Train, &datasets.train),
        (Split::Validation, &datasets.validation),
        (Split::Test, &datasets.test),
    ];
    let record = |(split, data): (Split, &DistributedDataset<_>)| {
        Ok((split.name().to_owned(), SplitRecord::of(&**data.dataset())?))
    };
    splits.into_iter().map(record).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::data::{Map, Subset, Zip};

    /// The record of a dataset with `labels`.
    pub fn labelled(labels: &[u8]) -> SplitRecord {
        SplitRecord::of(&Labelled(labels.to_vec())).unwrap()
    }

    struct Labelled(Vec<u8>);

    impl Dataset for Labelled {
        type Example = u8;

        fn len(&self) -> usize {
            self.0.len()
        }

        fn get(&self, _index: usize) -> Result<u8> {
            anyhow::bail!("no example may be read for its label")
        }

        fn hash_labels(&self, indices: &[usize], hash: &mut Sha256) -> Result<bool> {
            indices
                .iter()
                .for_each(|index| hash.update([self.0[*index]]));
            Ok(true)
        }
    }

    #[test]
    fn a_dataset_is_known_by_the_labels_of_its_examples_in_their_order() {
        let of = |labels: &[u8], indices: &[usize]| {
            let dataset = Arc::new(Labelled(labels.to_vec()));
            let subset = Subset::new(dataset, indices.to_vec()).unwrap();
            let mapped = Map::new(Arc::new(subset), |label: u8| Ok(label + 1));
            SplitRecord::of(&mapped).unwrap()
        };
        let record = of(&[1, 2, 3], &[0, 2]);
        assert!(record.labels && record.examples == 2 && record.sha256.len() == 64);
        assert_eq!(record, of(&[1, 9, 3], &[0, 2]));
        assert_ne!(record, of(&[1, 2, 3], &[2, 0]));
        assert_ne!(record, of(&[1, 2, 4], &[0, 2]));
    }

    #[test]
    fn pairs_are_known_by_all_of_both() {
        let of = |first: &[u8], second: &[u8]| {
            let [first, second] = [first, second].map(|labels| Arc::new(Labelled(labels.to_vec())));
            SplitRecord::of(&Zip::new(first, second, 7)).unwrap()
        };
        let record = of(&[1, 2], &[3, 4, 5]);
        assert_eq!((record.examples, record.labels), (2, true));
        for other in [
            of(&[1, 9], &[3, 4, 5]),
            of(&[1, 2], &[3, 4, 9]),
            of(&[1, 2, 3], &[4, 5]),
        ] {
            assert_ne!(record, other);
        }
    }

    #[test]
    fn data_without_labels_are_known_by_their_number() {
        let [three, four] = [3, 4].map(|len| SplitRecord::of(&vec![0u8; len]).unwrap());
        assert!(!three.labels && three.describe().ends_with(" of sizes"));
        assert!(three.fits(&three) && !three.fits(&four));
        assert!(
            three.fits(&labelled(&[1, 2, 3])),
            "nothing tells them apart"
        );
    }
}
