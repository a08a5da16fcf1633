//! Step 4: the datasets.

mod image;
mod textures;

use std::sync::Arc;

use anyhow::{Context, Result, bail};
use burn::{
    module::Module,
    tensor::{Device, Tensor, TensorData},
};
use kiln_engine::{
    data::{Cached, Collate, Dataset, Datasets, ImageFolder, Map, Sha256, Subset, Zip, hash_all},
    picture::{Sample, sheet},
};
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::cli::Args;
pub use image::{Image, MULTIPLE, SMALLEST};
use textures::{Texture, Textures};

/// A dataset of examples, shared by the replicas.
pub type Examples = Arc<dyn Dataset<Example = Example>>;

/// One image in `VALIDATION_PART` of the training folders is for validation.
const VALIDATION_PART: usize = 10;

/// An image of each kind, which have nothing to do with each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Example {
    pub x: Image,
    pub y: Image,
}

/// The tensors of a replica's shard of a batch.
#[derive(Module, Debug)]
pub struct Batch {
    /// Images of X `[batch, 3, height, width]`, -1 to 1.
    pub features: Tensor<4>,
    /// Images of Y, as those of X.
    pub targets: Tensor<4>,
}

impl Collate for Batch {
    type Example = Example;

    fn collate(examples: Vec<Example>, device: &Device) -> Result<Self> {
        Ok(Batch {
            features: stack(examples.iter().map(|example| &example.x), device)?,
            targets: stack(examples.iter().map(|example| &example.y), device)?,
        })
    }
}

/// Creates the datasets and distributes them over the replicas of the strategy.
///
/// # Errors
/// Those of [`read_examples`], and a split that has no batch.
pub fn create_datasets(args: &Args) -> Result<Datasets<Example>> {
    let (train_and_validation, test) = read_examples(args)?;
    let (train, validation) = split(train_and_validation)?;
    Datasets::distribute(&args.options, [train, validation, test], augment)
}

/// Flips both images at random, and moves the window through which each is seen; anew in every
/// epoch, because examples are cached before.
pub fn augment(example: Example, random: &mut StdRng) -> Result<Example> {
    Ok(Example {
        x: example.x.flipped_and_cropped(random),
        y: example.y.flipped_and_cropped(random),
    })
}

/// Both images of an example beside each other, for the sheet of samples: in one picture, as training
/// flips and moves each on its own.
///
/// # Errors
/// A window is empty.
pub fn picture(example: &Example) -> Result<Option<Sample>> {
    let pair = [example.x.picture()?, example.y.picture()?];
    Ok(Some(Sample::new(sheet(&pair, 2, &[])?, "X and Y")))
}

/// Sets examples aside for validation: the last ones, whose images [`read_examples`] chose.
///
/// # Errors
/// An index is out of range.
pub fn split(examples: Examples) -> Result<(Examples, Examples)> {
    let trains = examples.len() - examples.len() / VALIDATION_PART;
    let training = Subset::new(Arc::clone(&examples), (0..trains).collect())?;
    let validation = Subset::new(Arc::clone(&examples), (trains..examples.len()).collect())?;
    Ok((Arc::new(training), Arc::new(validation)))
}

/// Reads the examples for training and validation, and those for the test: images of the folders
/// trainA and trainB, and of testA and testB, of which each pass makes other pairs.
///
/// # Errors
/// A folder is missing or has no images.
pub fn read_examples(args: &Args) -> Result<(Examples, Examples)> {
    let (large, small) = (enlarged(args.image_size), args.image_size);
    let parts = |name| -> Result<_> {
        let (training, validation) = (images(args, name, large)?, images(args, name, small)?);
        let (trains, validates) = deal(training.len());
        Ok((subset(training, trains)?, subset(validation, validates)?))
    };
    let (x, y) = (parts("trainA")?, parts("trainB")?);
    // Images are dealt before they are paired, so none is in both parts, whatever the pairs.
    let train_and_validation = Joined {
        first: pairs(args, x.0, y.0),
        second: pairs(args, x.1, y.1),
    };
    let test = pairs(
        args,
        images(args, "testA", small)?,
        images(args, "testB", small)?,
    );
    Ok((Arc::new(train_and_validation), test))
}

/// Images of one kind.
pub type Images = Arc<dyn Dataset<Example = Image>>;

/// Makes one tensor `[batch, 3, height, width]` of images of one size.
fn stack<'a>(
    images: impl Iterator<Item = &'a Image> + Clone,
    device: &Device,
) -> Result<Tensor<4>> {
    let sizes: Vec<[usize; 2]> = images.clone().map(Image::window).collect();
    let [height, width] = sizes[0];
    if let Some([other_height, other_width]) = sizes.iter().find(|size| **size != sizes[0]) {
        bail!(
            "images of one batch differ in size: {height} x {width} and {other_height} x {other_width}"
        );
    }
    let values: Vec<f32> = images.flat_map(Image::values).collect();
    let data = TensorData::new(values, [sizes.len(), 3, height, width]);
    Ok(Tensor::from_data(data, device))
}

/// The side to which training images are scaled before a window is cut out: 286 for 256.
fn enlarged(side: usize) -> usize {
    (side * 286).div_ceil(256)
}

/// Indices of `len` images for training and for validation, in a fixed random order.
fn deal(len: usize) -> (Vec<usize>, Vec<usize>) {
    let mut indices: Vec<usize> = (0..len).collect();
    indices.shuffle(&mut StdRng::seed_from_u64(0));
    let trains = indices.split_off(len / VALIDATION_PART);
    (trains, indices)
}

fn subset(images: Images, indices: Vec<usize>) -> Result<Images> {
    Ok(Arc::new(Subset::new(images, indices)?))
}

/// As many pairs as the shorter of the two has images.
fn pairs(args: &Args, x: Images, y: Images) -> Examples {
    let pairs = Arc::new(Zip::new(x, y, args.options.seed));
    Arc::new(Map::new(pairs, |(x, y)| Ok(Example { x, y })))
}

/// The images of the folder `name`, scaled to squares of `side` and read once, with a window of
/// `--image-size` in their middle.
fn images(args: &Args, name: &str, side: usize) -> Result<Images> {
    let window = [args.image_size; 2];
    let Some(root) = &args.options.data_dir else {
        return Ok(Arc::new(match name {
            "trainA" => Textures::new(Texture::Stripes, 600, side, window, [args.options.seed, 0]),
            "trainB" => Textures::new(Texture::Squares, 640, side, window, [args.options.seed, 1]),
            "testA" => Textures::new(Texture::Stripes, 48, side, window, [args.options.seed, 2]),
            _ => Textures::new(Texture::Squares, 40, side, window, [args.options.seed, 3]),
        }));
    };
    let folder = ImageFolder::open(root, side, side)?;
    let class = folder.classes().iter().position(|class| class == name);
    let class = class.with_context(|| {
        let root = root.display();
        format!("{root} has no folder {name}: it needs trainA, trainB, testA and testB")
    })?;
    let of_class = first_of(&folder, class)?..first_of(&folder, class + 1)?;
    let image = move |picture: kiln_engine::data::Picture| {
        Image::new(picture.pixels, [picture.height, picture.width], window)
    };
    let images: Images = Arc::new(Map::new(Arc::new(folder), image));
    subset(Arc::new(Cached::new(images)?), of_class.collect())
}

/// The place of the first picture of `class`, which stand in the order of their classes.
fn first_of(folder: &ImageFolder, class: usize) -> Result<usize> {
    let (mut low, mut high) = (0, folder.len());
    while low < high {
        let middle = low.midpoint(high);
        match folder.get(middle)?.label < class {
            true => low = middle + 1,
            false => high = middle,
        }
    }
    Ok(low)
}

/// The examples of two datasets, one after the other.
struct Joined {
    first: Examples,
    second: Examples,
}

impl Joined {
    fn place(&self, index: usize) -> (&Examples, usize) {
        match index.checked_sub(self.first.len()) {
            None => (&self.first, index),
            Some(index) => (&self.second, index),
        }
    }
}

impl Dataset for Joined {
    type Example = Example;

    fn len(&self) -> usize {
        self.first.len() + self.second.len()
    }

    fn get(&self, index: usize) -> Result<Example> {
        self.get_in_pass(index, 0)
    }

    fn get_in_pass(&self, index: usize, pass: usize) -> Result<Example> {
        let (examples, index) = self.place(index);
        examples.get_in_pass(index, pass)
    }

    fn differs_by_pass(&self) -> bool {
        true
    }

    /// All of both: each index stands for another example in each pass.
    fn hash_labels(&self, _indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        let first = hash_all(&*self.first, hash)?;
        Ok(hash_all(&*self.second, hash)? && first)
    }
}
