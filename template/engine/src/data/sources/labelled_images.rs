//! Images and their labels, from two IDX files.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use sha2::{Digest, Sha256};

use super::{Idx, read_idx};
use crate::data::Dataset;

/// Labelled images of one size, from the IDX files of MNIST: `PREFIX-images-idx3-ubyte` and
/// `PREFIX-labels-idx1-ubyte`, each plain or with `.gz`. `E` is the example of the task.
pub struct LabelledImages<E> {
    images: Idx<3>,
    labels: Idx<1>,
    example: fn(&[u8], [usize; 2], u8) -> E,
}

impl<E> LabelledImages<E> {
    /// Reads the files of `prefix`, such as `train` or `t10k`, in `folder`. `example` creates an example
    /// from the grey values of an image, row by row, its `[height, width]` and its label.
    ///
    /// # Errors
    /// A file is missing or damaged, images and labels differ in number, or a label is not below
    /// `classes`.
    pub fn read(
        folder: &Path,
        prefix: &str,
        classes: usize,
        example: fn(&[u8], [usize; 2], u8) -> E,
    ) -> Result<Self> {
        let images = read_idx::<3>(folder, &format!("{prefix}-images-idx3-ubyte"))?;
        let labels = read_idx::<1>(folder, &format!("{prefix}-labels-idx1-ubyte"))?;
        let [number, _, _] = images.dims;
        ensure!(
            number == labels.dims[0],
            "{} has {number} images, but {} has {} labels",
            images.path.display(),
            labels.path.display(),
            labels.dims[0]
        );
        ensure_classes(&labels, classes)?;
        Ok(LabelledImages {
            images,
            labels,
            example,
        })
    }
}

impl<E: Send + Sync + 'static> Dataset for LabelledImages<E> {
    type Example = E;

    fn len(&self) -> usize {
        self.labels.dims[0]
    }

    fn get(&self, index: usize) -> Result<E> {
        let [_, height, width] = self.images.dims;
        let size = height * width;
        let pixels = &self.images.values()[index * size..(index + 1) * size];
        let label = self.labels.values()[index];
        Ok((self.example)(pixels, [height, width], label))
    }

    fn hash_labels(&self, indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        let [_, height, width] = self.images.dims;
        add_labels([height, width], self.labels.values(), indices, hash);
        Ok(true)
    }
}

/// Checks that all labels are below `classes`.
fn ensure_classes(labels: &Idx<1>, classes: usize) -> Result<()> {
    let mut values = labels.values().iter();
    if let Some(at) = values.position(|label| usize::from(*label) >= classes) {
        let (path, label) = (labels.path.display(), labels.values()[at]);
        bail!("label {at} of {path} is {label}, but there are {classes} classes");
    }
    Ok(())
}

/// Adds the size of all images and the labels at `indices` to a hash.
fn add_labels(image: [usize; 2], labels: &[u8], indices: &[usize], hash: &mut Sha256) {
    for size in image {
        hash.update((size as u64).to_le_bytes());
    }
    for index in indices {
        hash.update([labels[*index]]);
    }
}
