//! Step 4: the datasets.

use std::{path::Path, sync::Arc};

use anyhow::{Context, Result};
use burn::{
    module::Module,
    tensor::{Device, Int, Tensor, TensorData},
};
use kiln_engine::{
    data::{Collate, Dataset, Datasets, LabelledImages, Subset},
    picture::{Channels, Picture, Sample},
};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::{
    cli::Args,
    fashion_mnist::{SIZE, fetch, fit, needed_in},
};

/// A dataset of examples, shared by the replicas.
pub type Examples = Arc<dyn Dataset<Example = Example>>;

/// Creates the datasets and distributes them over the replicas of the strategy.
///
/// # Errors
/// Those of [`read_examples`], and a split that has no batch.
pub fn create_datasets(args: &Args) -> Result<Datasets<Example>> {
    let (train_and_validation, test) = read_examples(args)?;
    let (train, validation) = split(train_and_validation)?;
    Datasets::distribute(&args.options, [train, validation, test], augment)
}

/// An image with its label.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// Grey values row by row, 0 to 255.
    pub pixels: Vec<u8>,
    pub height: usize,
    pub width: usize,
    /// Class, below [`CLASSES`].
    pub label: u8,
}

impl Example {
    pub fn new(pixels: &[u8], [height, width]: [usize; 2], label: u8) -> Self {
        Example {
            pixels: pixels.to_vec(),
            height,
            width,
            label,
        }
    }
}

/// Number of classes, labelled from 0.
pub const CLASSES: usize = 10;

/// The tensors of a replica's shard of a batch.
#[derive(Module, Debug)]
pub struct Batch {
    /// `[batch, 1, SIZE, SIZE]`, 0 to 1.
    pub features: Tensor<4>,
    /// `[batch]`
    pub labels: Tensor<1, Int>,
}

impl Collate for Batch {
    type Example = Example;

    fn collate(examples: Vec<Example>, device: &Device) -> Result<Self> {
        let (batch, height, width) = (examples.len(), SIZE, SIZE);
        let fitted = examples.iter().map(fit).collect::<Result<Vec<_>>>()?;
        let pixels = fitted.iter().flat_map(|pixels| pixels.iter());
        let pixels: Vec<f32> = pixels.map(|pixel| f32::from(*pixel) / 255.0).collect();
        let labels: Vec<i32> = examples
            .iter()
            .map(|example| i32::from(example.label))
            .collect();
        Ok(Batch {
            features: Tensor::from_data(TensorData::new(pixels, [batch, 1, height, width]), device),
            labels: Tensor::from_data(TensorData::new(labels, [batch]), device),
        })
    }

    fn images(&self) -> Option<Tensor<4>> {
        Some(self.features.clone())
    }
}

/// Examples stay as they are, as in the tutorial.
pub fn augment(example: Example, _random: &mut StdRng) -> Result<Example> {
    Ok(example)
}

/// An example as a captioned picture, for the sheet of samples; `None` if it cannot be shown.
///
/// # Errors
/// The number of pixels does not match the size.
pub fn picture(example: &Example) -> Result<Option<Sample>> {
    let (width, height) = (example.width, example.height);
    let picture = Picture::new(width, height, Channels::Gray, example.pixels.clone())?;
    Ok(Some(Sample::new(picture, example.label.to_string())))
}

/// Splits examples into training and validation.
///
/// # Errors
/// An index is out of range.
pub fn split(examples: Examples) -> Result<(Examples, Examples)> {
    let mut indices: Vec<usize> = (0..examples.len()).collect();
    indices.shuffle(&mut StdRng::seed_from_u64(0));
    let training = indices.split_off(indices.len() / 10);
    let subset = |indices| -> Result<Examples> {
        Ok(Arc::new(Subset::new(Arc::clone(&examples), indices)?))
    };
    Ok((subset(training)?, subset(indices)?))
}

/// Reads the examples for training and validation, and those for the test.
///
/// # Errors
/// A file is missing or damaged and cannot be fetched, or files do not fit together.
pub fn read_examples(args: &Args) -> Result<(Examples, Examples)> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = match (&args.options.data_dir, args.download) {
        (Some(folder), _) => folder.clone(),
        (None, true) => project.join("data/fashion-mnist"),
        // Digits stand in for Fashion-MNIST.
        (None, false) => project.join("data"),
    };
    let needed = || needed_in(&folder);
    if args.download {
        fetch(&folder).with_context(needed)?;
    }
    let read =
        |prefix| LabelledImages::read(&folder, prefix, CLASSES, Example::new).with_context(needed);
    Ok((Arc::new(read("train")?), Arc::new(read("t10k")?)))
}
