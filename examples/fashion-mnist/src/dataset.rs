//! Step 5: the datasets.

#[cfg(feature = "download")]
use std::time::Duration;
use std::{borrow::Cow, path::Path, sync::Arc};

use anyhow::{Context, Result, ensure};
use burn::tensor::{Device, Int, Tensor, TensorData};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use sha2::{Digest, Sha256};

#[cfg(feature = "download")]
use crate::data::download::{Download, download};
use crate::{
    cli::Args,
    data::{BatchOptions, Collate, Dataset, DistributedDataset, Idx, Remainder, Subset, read_idx},
    globals,
    report::picture::{Channels, Picture},
};

/// Kinds of images, labelled from 0.
pub const CLASSES: usize = 10;

/// Rows and columns of an image as the model takes it, as many as in Fashion-MNIST.
pub const SIZE: usize = 28;

/// The files of Fashion-MNIST with their SHA-256 and lengths.
///
/// Source: H. Xiao, K. Rasul, R. Vollgraf, "Fashion-MNIST: a Novel Image Dataset for Benchmarking
/// Machine Learning Algorithms", 2017.
pub const FILES: [(&str, &str, u64); 4] = [
    (
        "train-images-idx3-ubyte.gz",
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        26_421_880,
    ),
    (
        "train-labels-idx1-ubyte.gz",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        29_515,
    ),
    (
        "t10k-images-idx3-ubyte.gz",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        4_422_102,
    ),
    (
        "t10k-labels-idx1-ubyte.gz",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
        5_148,
    ),
];

/// Where the files are, tried in turn.
#[cfg(feature = "download")]
const MIRRORS: [&str; 3] = [
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
];

/// How long a mirror may be silent.
#[cfg(feature = "download")]
const SILENCE: Duration = Duration::from_secs(20);

/// One example in `VALIDATION_PART` of the training files is for validation.
const VALIDATION_PART: usize = 10;

/// The datasets, distributed over the replicas.
pub struct Datasets {
    pub train: DistributedDataset<Example>,
    pub validation: DistributedDataset<Example>,
    pub test: DistributedDataset<Example>,
}

/// Examples in any order, shared by the replicas.
pub type Examples = Arc<dyn Dataset<Example = Example>>;

/// What one example holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    /// Grey values row by row, 0 to 255.
    pub pixels: Vec<u8>,
    pub height: usize,
    pub width: usize,
    /// Class, below [`CLASSES`].
    pub label: u8,
}

/// The tensors of a replica's share of a batch.
#[derive(Clone, Debug)]
pub struct Batch {
    /// `[batch, 1, SIZE, SIZE]`, 0 to 1.
    pub features: Tensor<4>,
    /// `[batch]`
    pub labels: Tensor<1, Int>,
}

impl Collate for Batch {
    type Example = Example;

    fn collate(examples: Vec<Example>, device: &Device) -> Result<Self> {
        let batch = examples.len();
        let mut pixels = Vec::with_capacity(batch * SIZE * SIZE);
        for example in &examples {
            let fitted = fit(example)?; // [SIZE, SIZE]
            pixels.extend(fitted.iter().map(|pixel| f32::from(*pixel) / 255.0));
        }
        let labels: Vec<i32> = examples
            .iter()
            .map(|example| i32::from(example.label))
            .collect();
        Ok(Batch {
            features: Tensor::from_data(TensorData::new(pixels, [batch, 1, SIZE, SIZE]), device),
            labels: Tensor::from_data(TensorData::new(labels, [batch]), device),
        })
    }
}

/// The pixels `[SIZE, SIZE]` of an image. A smaller one, as of the digits, is enlarged as often as
/// it fits and framed in black.
fn fit(example: &Example) -> Result<Cow<'_, [u8]>> {
    let (height, width) = (example.height, example.width);
    ensure!(
        0 < height.min(width) && height.max(width) <= SIZE,
        "an image has {height}x{width} pixels, and the model takes up to {SIZE}x{SIZE}"
    );
    if (height, width) == (SIZE, SIZE) {
        return Ok(Cow::Borrowed(&example.pixels));
    }
    let scale = SIZE / height.max(width);
    let (top, left) = ((SIZE - scale * height) / 2, (SIZE - scale * width) / 2);
    let mut fitted = vec![0; SIZE * SIZE];
    for y in 0..scale * height {
        for x in 0..scale * width {
            let pixel = example.pixels[y / scale * width + x / scale];
            fitted[(top + y) * SIZE + left + x] = pixel;
        }
    }
    Ok(Cow::Owned(fitted))
}

/// Creates the datasets and distributes them over the replicas of the strategy.
///
/// # Errors
/// Those of [`read_examples`], and a split that has no batch.
pub fn create_datasets(args: &Args) -> Result<Datasets> {
    let (train_and_validation, test) = read_examples(args)?;
    let (train, validation) = split(train_and_validation)?;
    let strategy = globals::strategy()?;
    let global_batch_size = globals::global_batch_size()?;
    let remainder = match args.steps_per_epoch {
        Some(steps_per_epoch) => Remainder::Avoid { steps_per_epoch },
        None if args.drop_remainder => Remainder::Drop,
        None => Remainder::Keep,
    };
    // Each example of validation and test counts once, so nothing is dropped or changed there.
    let evaluation = BatchOptions {
        global_batch_size,
        seed: args.seed,
        shuffle: false,
        remainder: Remainder::Keep,
        accumulate: 1,
        prefetch: args.prefetch,
        training: false,
        augment: None,
    };
    let training = BatchOptions {
        shuffle: true,
        remainder,
        accumulate: args.accumulate,
        training: true,
        augment: Some(Arc::new(augment)),
        ..evaluation.clone()
    };
    let distribute = |name, examples, options| {
        let dataset = strategy.distribute_dataset(examples, options);
        dataset.with_context(|| format!("cannot batch the {name} split"))
    };
    Ok(Datasets {
        train: distribute("train", train, training)?,
        validation: distribute("validation", validation, evaluation.clone())?,
        test: distribute("test", test, evaluation)?,
    })
}

/// Examples stay as they are, as in the tutorial.
pub fn augment(example: Example, _random: &mut StdRng) -> Result<Example> {
    Ok(example)
}

/// An example as a picture with a caption, for the sheet of samples; `None` where there is nothing
/// to see.
///
/// # Errors
/// The picture has another size than its pixels.
pub fn picture(example: &Example) -> Result<Option<(Picture, String)>> {
    let (width, height) = (example.width, example.height);
    let picture = Picture::new(width, height, Channels::Gray, example.pixels.clone())?;
    Ok(Some((picture, example.label.to_string())))
}

/// Reads the examples for training and validation, and those for the test.
///
/// # Errors
/// A file is missing or damaged and cannot be fetched, or files do not fit together.
pub fn read_examples(args: &Args) -> Result<(Examples, Examples)> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = match (&args.data_dir, args.download) {
        (Some(folder), _) => folder.clone(),
        (None, true) => project.join("data/fashion-mnist"),
        // Digits stand in for Fashion-MNIST.
        (None, false) => project.join("data"),
    };
    let needed = || {
        let names = FILES.map(|(name, ..)| name).join(", ");
        format!(
            "Fashion-MNIST is four files, gzipped or not, that have to be in {}: {names}",
            folder.display()
        )
    };
    if args.download {
        fetch(&folder).with_context(needed)?;
    }
    let train = Images::read(&folder, "train").with_context(needed)?;
    let test = Images::read(&folder, "t10k").with_context(needed)?;
    Ok((Arc::new(train), Arc::new(test)))
}

/// Fetches the files of Fashion-MNIST that are not in `folder`.
#[cfg(feature = "download")]
fn fetch(folder: &Path) -> Result<()> {
    for (name, sha256, bytes) in FILES {
        let file = Download {
            name,
            mirrors: &MIRRORS,
            sha256,
            bytes,
        };
        download(&file, folder, SILENCE)?;
    }
    Ok(())
}

#[cfg(not(feature = "download"))]
fn fetch(_folder: &Path) -> Result<()> {
    anyhow::bail!("this program was built without the feature `download`")
}

/// Sets examples aside for validation.
///
/// # Errors
/// An index is outside of the examples.
pub fn split(examples: Examples) -> Result<(Examples, Examples)> {
    let mut indices: Vec<usize> = (0..examples.len()).collect();
    indices.shuffle(&mut StdRng::seed_from_u64(0));
    let training = indices.split_off(indices.len() / VALIDATION_PART);
    let subset = |indices| -> Result<Examples> {
        Ok(Arc::new(Subset::new(Arc::clone(&examples), indices)?))
    };
    Ok((subset(training)?, subset(indices)?))
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
    type Example = Example;

    fn len(&self) -> usize {
        self.labels.dims[0]
    }

    fn get(&self, index: usize) -> Result<Example> {
        let [_, height, width] = self.images.dims;
        let size = height * width;
        Ok(Example {
            pixels: self.images.values()[index * size..(index + 1) * size].to_vec(),
            height,
            width,
            label: self.labels.values()[index],
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
