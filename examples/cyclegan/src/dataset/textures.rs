//! Two kinds of images that are generated: brown stripes, and grey squares as on a chessboard.

use anyhow::Result;
use kiln_engine::data::{Dataset, Digest, Sha256, stream};
use rand::RngExt;

use super::image::Image;

/// Stripes or squares across an image.
const CELLS: f32 = 4.0;

/// A kind of images.
#[derive(Clone, Copy, Debug)]
pub enum Texture {
    Stripes,
    Squares,
}

impl Texture {
    /// The dark and the bright colour, before both vary a little.
    fn colours(self) -> [[u8; 3]; 2] {
        match self {
            Texture::Stripes => [[80, 48, 16], [208, 160, 96]],
            Texture::Squares => [[16, 16, 32], [192, 208, 208]],
        }
    }
}

/// Textures that begin at a random row.
#[derive(Clone, Debug)]
pub struct Textures {
    texture: Texture,
    len: usize,
    side: usize,
    window: [usize; 2],
    seed: [u64; 2],
}

impl Textures {
    /// `len` squares of `side` pixels; the same `seed` gives the same images.
    pub fn new(
        texture: Texture,
        len: usize,
        side: usize,
        window: [usize; 2],
        seed: [u64; 2],
    ) -> Self {
        Textures {
            texture,
            len,
            side,
            window,
            seed,
        }
    }
}

impl Dataset for Textures {
    type Example = Image;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Image> {
        let mut random = stream("texture", &[self.seed[0], self.seed[1], index as u64]);
        let mut colour = |colour: [u8; 3]| colour.map(|value| value + random.random_range(0..32));
        let colours = self.texture.colours().map(&mut colour);
        let shift: f32 = random.random_range(0.0..2.0);
        let cell = |place: usize| place as f32 / self.side as f32 * CELLS;
        let pixel = |place: usize| {
            let row = (cell(place / self.side) + shift) as usize;
            match self.texture {
                Texture::Stripes => colours[row % 2],
                Texture::Squares => colours[(row + cell(place % self.side) as usize) % 2],
            }
        };
        let pixels = (0..self.side * self.side).flat_map(pixel).collect();
        Image::new(pixels, [self.side; 2], self.window)
    }

    /// By what they are drawn from.
    fn hash_labels(&self, indices: &[usize], hash: &mut Sha256) -> Result<bool> {
        hash.update(format!("{self:?}"));
        indices
            .iter()
            .for_each(|index| hash.update((*index as u64).to_le_bytes()));
        Ok(true)
    }
}
