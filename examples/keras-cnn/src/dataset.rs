//! Step 4: the datasets.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use burn::{
    module::Module,
    tensor::{Device, Tensor, TensorData},
};
use kiln_engine::{
    data::{Collate, Dataset, Datasets, Idx, Map, Subset, read_idx},
    report::picture::{Channels, Picture, Sample},
};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use sha2::{Digest, Sha256};

use crate::cli::Args;

/// Examples in any order, shared by the replicas.
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

/// Kinds of images, labelled from 0.
pub const CLASSES: usize = 10;

/// The tensors of a replica's share of a batch.
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

/// Changes a training example at random, anew in every epoch.
pub fn augment(example: Example, _random: &mut StdRng) -> Result<Example> {
    Ok(example)
}

/// An example as a picture with a caption, for the sheet of samples; `None` where there is nothing
/// to see.
///
/// # Errors
/// The picture has another size than its pixels.
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

/// Sets examples aside for validation.
///
/// # Errors
/// An index is outside of the examples.
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
/// A file is missing or damaged, or files do not fit together.
pub fn read_examples(args: &Args) -> Result<(Examples, Examples)> {
    let own = || PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/data"));
    let folder = args.options.data_dir.clone().unwrap_or_else(own);
    // No cache: the files are in memory as bytes, a quarter of what the scaled pixels take.
    let examples = |prefix| -> Result<Examples> {
        let images = Arc::new(Images::read(&folder, prefix)?);
        Ok(Arc::new(Map::new(images, prepare)))
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

/// Labelled images of one size.
struct Images {
    images: Idx<3>,
    labels: Idx<1>,
}

impl Images {
    fn read(folder: &Path, prefix: &str) -> Result<Self> {
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
        if let Some(at) = labels
            .values()
            .iter()
            .position(|label| usize::from(*label) >= CLASSES)
        {
            let (path, label) = (labels.path.display(), labels.values()[at]);
            anyhow::bail!("label {at} of {path} is {label}, but there are {CLASSES} classes");
        }
        Ok(Images { images, labels })
    }
}

impl Dataset for Images {
    type Example = Image;

    fn len(&self) -> usize {
        self.labels.dims[0]
    }

    fn get(&self, index: usize) -> Result<Image> {
        let [_, height, width] = self.images.dims;
        let size = height * width;
        Ok(Image {
            pixels: self.images.values()[index * size..(index + 1) * size].to_vec(),
            height,
            width,
            class: Some(self.labels.values()[index]),
        })
    }

    fn hash_labels(&self, indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        let [_, height, width] = self.images.dims;
        for size in [height, width] {
            hash.update((size as u64).to_le_bytes());
        }
        let labels = self.labels.values();
        indices
            .iter()
            .for_each(|index| hash.update([labels[*index]]));
        Ok(true)
    }
}
