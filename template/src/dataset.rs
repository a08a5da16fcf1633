//! Step 4: the datasets.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Result, ensure};
use burn::{
    module::Module,
    tensor::{Device, Int, Tensor, TensorData},
};
use kiln_engine::{
    data::{Collate, Dataset, Datasets, LabelledImages, Subset},
    picture::{Channels, Picture, Sample},
};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::cli::Args;

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

// TODO(dataset.example): Define the fields of an example.
//   Now: a grey image and its class, 0 to 9.
//   Shapes: an image [height, width] and a label.
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

// TODO(dataset.batch): Convert examples to the tensors of a batch.
//   Now: grey values scaled to 0..1, and integer labels.
//   Note: contract tests compare `images`, the inputs of the model, with `picture`.
//   Shapes: features [batch, 1, height, width], labels [batch].
/// The tensors of a replica's shard of a batch.
#[derive(Module, Debug)]
pub struct Batch {
    /// `[batch, 1, height, width]`, 0 to 1.
    pub features: Tensor<4>,
    /// `[batch]`
    pub labels: Tensor<1, Int>,
}

impl Collate for Batch {
    type Example = Example;

    fn collate(examples: Vec<Example>, device: &Device) -> Result<Self> {
        let (batch, height, width) = (examples.len(), examples[0].height, examples[0].width);
        let has_size = |example: &Example| (example.height, example.width) == (height, width);
        ensure!(
            examples.iter().all(has_size),
            "images of one batch differ in size"
        );
        let pixels: Vec<&[u8]> = examples.iter().map(|example| &*example.pixels).collect();
        let pixels = TensorData::new(pixels.concat(), [batch, 1, height, width]);
        let labels: Vec<i32> = examples
            .iter()
            .map(|example| i32::from(example.label))
            .collect();
        Ok(Batch {
            features: Tensor::from_data(pixels, device) / 255.0,
            labels: Tensor::from_data(TensorData::new(labels, [batch]), device),
        })
    }

    fn images(&self) -> Option<Tensor<4>> {
        Some(self.features.clone())
    }
}

/// Augments a training example at random, anew in every epoch.
pub fn augment(example: Example, _random: &mut StdRng) -> Result<Example> {
    // TODO(dataset.augment): Augment training examples at random, such as by a shift or a flip.
    //   Now: examples stay as they are.
    //   Shapes: an image [height, width] in, one of the same size out.
    Ok(example)
}

/// An example as a captioned picture, for the sheet of samples; `None` if it cannot be shown.
///
/// # Errors
/// The number of pixels does not match the size.
pub fn picture(example: &Example) -> Result<Option<Sample>> {
    // TODO(dataset.picture): Draw an example, or return `None`.
    //   Now: the grey image, with its label below.
    //   Note: `.beside(mask)` adds a related picture, such as a mask.
    //   Shapes: an image [height, width].
    let (width, height) = (example.width, example.height);
    let picture = Picture::new(width, height, Channels::Gray, example.pixels.clone())?;
    Ok(Some(Sample::new(picture, example.label.to_string())))
}

/// Splits examples into training and validation.
///
/// # Errors
/// An index is out of range.
pub fn split(examples: Examples) -> Result<(Examples, Examples)> {
    // TODO(dataset.split): Choose the validation examples.
    //   Now: a tenth, drawn at random with a fixed seed.
    //   Shapes: disjoint indices below the number of examples.
    let mut indices: Vec<usize> = (0..examples.len()).collect();
    indices.shuffle(&mut StdRng::seed_from_u64(0));
    let training = indices.split_off(indices.len() / 10);
    let subset = |indices| -> Result<Examples> {
        Ok(Arc::new(Subset::new(Arc::clone(&examples), indices)?))
    };
    Ok((subset(training)?, subset(indices)?))
}

// TODO(dataset.source): Read the examples of your task.
//   Now: IDX files: the handwritten digits in data/, or MNIST or Fashion-MNIST in --data-dir.
//   Shapes: an image [height, width] and a label per example.
/// Reads the examples for training and validation, and those for the test.
///
/// # Errors
/// A file is missing or damaged, or files do not match.
pub fn read_examples(args: &Args) -> Result<(Examples, Examples)> {
    let own = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data"));
    let folder = args.options.data_dir.clone().unwrap_or_else(own);
    let read = |prefix| LabelledImages::read(&folder, prefix, CLASSES, Example::new);
    Ok((Arc::new(read("train")?), Arc::new(read("t10k")?)))
}
