//! Step 4: the datasets.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result, ensure};
use burn::{
    module::Module,
    tensor::{Device, Tensor, TensorData},
};
use kiln_engine::{
    data::{Collate, Dataset, Datasets, LabelledImages, Map, Subset},
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

/// An image as it is stored.
#[derive(Clone, Debug)]
pub struct Image {
    /// Grey values row by row, 0 to 255.
    pub pixels: Vec<u8>,
    pub height: usize,
    pub width: usize,
    /// Below [`CLASSES`]; `None` where it is to be predicted.
    pub class: Option<u8>,
}

impl Image {
    fn labelled(pixels: &[u8], [height, width]: [usize; 2], class: u8) -> Self {
        Image {
            pixels: pixels.to_vec(),
            height,
            width,
            class: Some(class),
        }
    }
}

/// An image as the model takes it, with its label.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// Grey values row by row, 0 to 1.
    pub pixels: Vec<f32>,
    pub height: usize,
    pub width: usize,
    /// 1 at the class, and 0 elsewhere.
    pub label: [f32; CLASSES],
}

/// Number of classes, labelled from 0.
pub const CLASSES: usize = 10;

/// The tensors of a replica's shard of a batch.
#[derive(Module, Debug)]
pub struct Batch {
    /// `[batch, 1, height, width]`, 0 to 1.
    pub features: Tensor<4>,
    /// `[batch, classes]`, one-hot.
    pub labels: Tensor<2>,
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
        let pixels = examples.iter().flat_map(|example| &example.pixels);
        let pixels: Vec<f32> = pixels.copied().collect();
        let labels: Vec<f32> = examples.iter().flat_map(|example| example.label).collect();
        Ok(Batch {
            features: Tensor::from_data(TensorData::new(pixels, [batch, 1, height, width]), device),
            labels: Tensor::from_data(TensorData::new(labels, [batch, CLASSES]), device),
        })
    }

    fn images(&self) -> Option<Tensor<4>> {
        Some(self.features.clone())
    }
}

/// Augments a training example at random, anew in every epoch.
pub fn augment(example: Example, _random: &mut StdRng) -> Result<Example> {
    Ok(example)
}

/// An example as a captioned picture, for the sheet of samples; `None` if it cannot be shown.
///
/// # Errors
/// The number of pixels does not match the size.
pub fn picture(example: &Example) -> Result<Option<Sample>> {
    let (width, height) = (example.width, example.height);
    let pixels = example
        .pixels
        .iter()
        .map(|pixel| (pixel * 255.0).round() as u8);
    let picture = Picture::new(width, height, Channels::Gray, pixels.collect())?;
    let class = example.label.iter().position(|share| *share == 1.0);
    let caption = class.map_or_else(String::new, |class| class.to_string());
    Ok(Some(Sample::new(picture, caption)))
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
/// A file is missing or damaged, or files do not match.
pub fn read_examples(args: &Args) -> Result<(Examples, Examples)> {
    let own = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data"));
    let folder = args.options.data_dir.clone().unwrap_or_else(own);
    // No cache: the files are in memory as bytes, a quarter of what the scaled pixels take.
    let examples = |prefix| -> Result<Examples> {
        let images = LabelledImages::read(&folder, prefix, CLASSES, Image::labelled)?;
        Ok(Arc::new(Map::new(Arc::new(images), prepare)))
    };
    Ok((examples("train")?, examples("t10k")?))
}

/// Scales the pixels to 0..1 and makes the label one-hot.
///
/// # Errors
/// There is no such class, or nothing would be left of the image after two poolings.
pub fn prepare(image: Image) -> Result<Example> {
    let (height, width) = (image.height, image.width);
    ensure!(
        height >= 4 && width >= 4,
        "an image of {height}x{width} pixels is too small for the model: it takes 4x4 and more"
    );
    let mut label = [0.0; CLASSES];
    if let Some(class) = image.class {
        let place = label.get_mut(usize::from(class));
        *place.with_context(|| format!("class {class} is none of {CLASSES}"))? = 1.0;
    }
    let pixels = image.pixels.into_iter();
    Ok(Example {
        pixels: pixels.map(|pixel| f32::from(pixel) / 255.0).collect(),
        height,
        width,
        label,
    })
}
