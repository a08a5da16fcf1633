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
    let side = (SIDE as u32).to_be_bytes();
    let header = [&side[..], &side, &[8, colour_type, 0, 0, 0]].concat();
    let mut rows = ZlibEncoder::new(Vec::new(), Compression::fast());
    for row in pixels.chunks(row) {
        // The first byte of a row selects no filter.
        rows.write_all(&[&[0], row].concat())
            .expect("memory takes all");
    }
    let rows = rows.finish().expect("memory takes all");
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    for (kind, data) in [(b"IHDR", header), (b"IDAT", rows), (b"IEND", Vec::new())] {
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
