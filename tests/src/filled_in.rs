//! Deterministic data, and code, for tasks that tests fill the template in for.

use std::{fs, io::Write, path::Path};

use flate2::{Compression, Crc, write::ZlibEncoder};

use crate::{random::Random, rendered::Project};

/// Width and height of an image in pixels.
const SIDE: usize = 32;

/// Writes images with rectangles and discs: 300 for training and validation to `train/images`, and
/// 60 to `test/images`. `masks` has grey images with the class of each pixel: 0 for background, 1
/// for a rectangle, 2 for a disc.
///
/// # Panics
/// A file cannot be written.
pub fn masks(folder: &Path) {
    let mut random = Random::new(1);
    for (split, count) in [("train", 300), ("test", 60)] {
        let folders = ["images", "masks"].map(|name| folder.join(split).join(name));
        for folder in &folders {
            fs::create_dir_all(folder).expect("a folder");
        }
        for number in 0..count {
            for (folder, pixels) in folders.iter().zip(scene(&mut random)) {
                let path = folder.join(format!("{number:03}.png"));
                fs::write(path, png(&pixels)).expect("an image");
            }
        }
    }
}

/// RGB pixels of one to three bright shapes on a dark, noisy background, and the mask.
fn scene(random: &mut Random) -> [Vec<u8>; 2] {
    let mut colour = |least: u32| [(); 3].map(|()| least + random.below(100));
    let (background, colours) = (colour(20), [(); 3].map(|()| colour(135)));
    let mut colour_of = vec![background; SIDE * SIDE];
    let mut mask = vec![0; SIDE * SIDE];
    let mut draw = |least: u32, end: u32| (least + random.below(end - least)) as i32;
    for colour in &colours[..draw(1, 4) as usize] {
        let (class, x, y) = (draw(1, 3), draw(4, 28), draw(4, 28));
        let (width, height) = (draw(3, 9), draw(3, 9));
        for (place, (painted, of)) in colour_of.iter_mut().zip(&mut mask).enumerate() {
            let (right, down) = ((place % SIDE) as i32 - x, (place / SIDE) as i32 - y);
            let is_inside = match class {
                1 => right.abs() <= width && down.abs() <= height,
                _ => right * right + down * down <= width * width,
            };
            if is_inside {
                (*painted, *of) = (*colour, class as u8);
            }
        }
    }
    let values = colour_of.into_iter().flatten();
    let image = values.map(|value| (value + random.below(41) - 20) as u8);
    [image.collect(), mask]
}

/// A PNG file of [`SIDE`] x [`SIDE`] pixels, RGB or grey.
fn png(pixels: &[u8]) -> Vec<u8> {
    let row = pixels.len() / SIDE;
    let colour_type = if row == SIDE { 0 } else { 2 };
    png_file(SIDE, [8, colour_type], &[], pixels)
}

/// A square PNG file with this depth and colour type, palette and rows of pixels.
fn png_file(side: usize, [depth, colour_type]: [u8; 2], palette: &[u8], pixels: &[u8]) -> Vec<u8> {
    let of_side = (side as u32).to_be_bytes();
    let header = [&of_side[..], &of_side, &[depth, colour_type, 0, 0, 0]].concat();
    let mut rows = ZlibEncoder::new(Vec::new(), Compression::fast());
    for row in pixels.chunks(pixels.len() / side) {
        // The first byte of a row selects no filter.
        rows.write_all(&[&[0], row].concat())
            .expect("memory takes all");
    }
    let rows = rows.finish().expect("memory takes all");
    let mut chunks = vec![(b"IHDR", header)];
    if !palette.is_empty() {
        chunks.push((b"PLTE", palette.to_vec()));
    }
    chunks.extend([(b"IDAT", rows), (b"IEND", Vec::new())]);
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in chunks {
        let mut crc = Crc::new();
        crc.update(kind);
        crc.update(&data);
        file.extend((data.len() as u32).to_be_bytes());
        file.extend(kind);
        file.extend(data);
        file.extend(crc.sum().to_be_bytes());
    }
    file
}

/// Width and height of a [large image](large_images) in pixels.
const LARGE_SIDE: usize = 256;

/// Different images per class in [`large_images`]; a prime, so that a sample at equal intervals has different
/// ones.
const DIFFERENT: usize = 23;

/// Writes 18,000 images of 256x256 pixels in 10 classes to `train/CLASS`, and 2,000 to `test/CLASS`. They are
/// names of [`DIFFERENT`] files per class: hard links take little time and space.
///
/// # Panics
/// A file cannot be written.
pub fn large_images(folder: &Path) {
    let mut random = Random::new(3);
    for (split, per_class) in [("train", 1_800), ("test", 200)] {
        for class in 0..10 {
            let folder = folder.join(split).join(class.to_string());
            fs::create_dir_all(&folder).expect("a folder");
            let path = |number: usize| folder.join(format!("{number:04}.png"));
            for number in 0..per_class {
                let written = match number {
                    0..DIFFERENT => fs::write(path(number), large_image(class, &mut random)),
                    _ => fs::hard_link(path(number % DIFFERENT), path(number)),
                };
                written.expect("an image");
            }
        }
    }
}

/// A rectangle at a random place on a dark background. Its colour depends on the class.
fn large_image(class: u8, random: &mut Random) -> Vec<u8> {
    let mut draw = || 8 * random.below(20) as usize;
    let (left, top) = (draw(), draw());
    let (columns, rows) = (left + 48 + draw() / 4, top + 48 + draw() / 4);
    // One bit per pixel: an index into the palette.
    let bits = (0..LARGE_SIDE * LARGE_SIDE / 8).map(|at| {
        let (column, row) = (8 * at % LARGE_SIDE, 8 * at / LARGE_SIDE);
        match (left..columns).contains(&column) && (top..rows).contains(&row) {
            true => 0xff,
            false => 0,
        }
    });
    let dark = [(); 3].map(|()| random.below(60) as u8);
    let bright = [255 - 20 * class, 55 + 20 * class, 128];
    let palette = [dark, bright].concat();
    png_file(LARGE_SIDE, [1, 3], &palette, &bits.collect::<Vec<u8>>())
}

/// Writes 1,500 lines for training and validation to `train.tsv`, and 300 to `test.tsv`. A line has
/// a label, a tab and a string of 4 to 32 letters from `a` to `h`. The label is the most frequent
/// of the letters `a` to `d`.
///
/// # Panics
/// A file cannot be written.
pub fn sequences(folder: &Path) {
    let mut random = Random::new(2);
    fs::create_dir_all(folder).expect("a folder");
    for (split, count) in [("train", 1_500), ("test", 300)] {
        let lines: String = (0..count).map(|_| labelled_string(&mut random)).collect();
        fs::write(folder.join(split).with_extension("tsv"), lines).expect("a text");
    }
}

fn labelled_string(random: &mut Random) -> String {
    let label = random.one_of(&['a', 'b', 'c', 'd']);
    let len = 4 + random.below(29);
    loop {
        let letters = [label, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h'];
        let string: String = (0..len).map(|_| random.one_of(&letters)).collect();
        let count = |letter| string.matches(letter).count();
        if ('a'..='d').all(|other| other == label || count(other) < count(label)) {
            return format!("{label}\t{string}\n");
        }
    }
}

/// The list of optimizers for checkpoints with one optimizer, in a [state of the task's
/// own](own_training_state).
pub const FIRST_OPTIMIZER: &str = "vec![(\"optimizer\", &mut self.optimizer)]";

/// Replaces the training state of the template by a struct of the task's own, as several networks need it:
/// with a `model`, an `optimizer` and the fields `more`, the body `update`, and the optimizers `listed` for
/// checkpoints.
///
/// # Panics
/// The project cannot be edited so.
pub fn own_training_state(project: &Project, more: &str, update: &str, listed: &str) {
    let state = format!(
        "#[derive(Clone)]
pub struct Trainable {{
    pub model: Model,
    pub optimizer: ScheduledOptimizer,
    {more}
}}

impl TrainState for Trainable {{
    type Model = Model;

    fn model(&self) -> &Model {{
        &self.model
    }}

    fn with_model(self, model: Model) -> Self {{
        Trainable {{ model, ..self }}
    }}

    fn update(mut self, mut gradients: FlatGradients) -> Self {{
        {update}
        self
    }}

    fn optimizers_mut(&mut self) -> Vec<(&'static str, &mut ScheduledOptimizer)> {{
        {listed}
    }}
}}"
    );
    for (from, to) in [
        ("    ModelAndOptimizer,\n", "    TrainState,\n"),
        ("optim::{AdamConfig,", "optim::{AdamConfig, FlatGradients,"),
        ("pub type Trainable = ModelAndOptimizer<Model>;", &state),
    ] {
        project.edit("model.rs", from, to);
    }
}
