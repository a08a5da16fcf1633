//! An image, and what training changes of it.

use std::sync::Arc;

use anyhow::{Result, ensure};
use kiln_engine::picture::{Channels, Picture};
use rand::{RngExt, rngs::StdRng};

/// The sides of what the networks see are multiples of this: generators halve them twice.
pub const MULTIPLE: usize = 4;

/// The smallest side: three layers of a discriminator halve an image, and must leave more than one
/// pixel to normalise.
pub const SMALLEST: usize = 16;

/// A colour image, and the window through which it is seen.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Red, green and blue, 0 to 255, row by row: `[height, width, 3]`. Shared with the cache.
    pixels: Arc<[u8]>,
    /// Height and width.
    size: [usize; 2],
    /// Height and width of the window.
    window: [usize; 2],
    /// The upper left corner of the window.
    corner: [usize; 2],
    /// Whether left and right are exchanged.
    flipped: bool,
}

impl Image {
    /// An image of the height and width `size`, with a window in its middle.
    ///
    /// # Errors
    /// The window is empty or larger than the image, or the pixels are not height x width x 3.
    pub fn new(pixels: Vec<u8>, size: [usize; 2], window: [usize; 2]) -> Result<Self> {
        let ([height, width], [window_height, window_width]) = (size, window);
        ensure!(
            pixels.len() == height * width * 3,
            "an image of {height} x {width} has {} bytes",
            pixels.len()
        );
        ensure!(
            (1..=height).contains(&window_height) && (1..=width).contains(&window_width),
            "an image of {height} x {width} has no window of {window_height} x {window_width}"
        );
        Ok(Image {
            pixels: pixels.into(),
            size,
            window,
            corner: [(height - window_height) / 2, (width - window_width) / 2],
            flipped: false,
        })
    }

    /// Height and width of the window.
    pub fn window(&self) -> [usize; 2] {
        self.window
    }

    /// The same pixels seen through a window elsewhere, flipped or not.
    pub fn flipped_and_cropped(mut self, random: &mut StdRng) -> Self {
        let room = [0, 1].map(|side| self.size[side] - self.window[side]);
        self.flipped = random.random();
        self.corner = room.map(|room| random.random_range(0..=room));
        self
    }

    /// Values of the window, one channel after the other: `[3, height, width]`, -1 to 1.
    pub fn values(&self) -> impl Iterator<Item = f32> {
        let value = |pixel: u8| f32::from(pixel) / 127.5 - 1.0;
        let pixels = move |channel| self.places().map(move |place| self.pixels[place + channel]);
        (0..3).flat_map(pixels).map(value)
    }

    /// The window as a picture.
    ///
    /// # Errors
    /// None that a window allows.
    pub fn picture(&self) -> Result<Picture> {
        let [height, width] = self.window;
        let pixels = self
            .places()
            .flat_map(|place| &self.pixels[place..place + 3]);
        Picture::new(width, height, Channels::Rgb, pixels.copied().collect())
    }

    /// Positions of the pixels of the window, row by row.
    fn places(&self) -> impl Iterator<Item = usize> {
        let ([height, width], [top, left]) = (self.window, self.corner);
        (0..height * width).map(move |place| {
            let (row, column) = (place / width, place % width);
            let column = match self.flipped {
                true => width - 1 - column,
                false => column,
            };
            ((top + row) * self.size[1] + left + column) * 3
        })
    }
}

#[cfg(test)]
mod tests {
    use kiln_engine::data::stream;

    use super::*;

    /// An image whose red is the row, green the column, and blue 255.
    fn image(size: [usize; 2], window: [usize; 2]) -> Image {
        let pixels = (0..size[0] * size[1]).flat_map(|at| [at / size[1], at % size[1], 255]);
        Image::new(pixels.map(|value| value as u8).collect(), size, window).unwrap()
    }

    #[test]
    fn values_are_those_of_the_window_in_the_middle_by_channel() {
        let values: Vec<f32> = image([4, 6], [2, 2]).values().collect();
        let expected = [1, 1, 2, 2, 2, 3, 2, 3, 255, 255, 255, 255];
        let expected = expected.map(|value| f32::from(value as u8) / 127.5 - 1.0);
        assert_eq!(values, expected);
    }

    #[test]
    fn windows_go_everywhere_and_stay_inside() {
        let mut random = stream("test", &[]);
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..200 {
            let image = image([5, 5], [4, 4]).flipped_and_cropped(&mut random);
            let picture = image.picture().unwrap();
            let first = (picture.pixels()[0], picture.pixels()[1]);
            let (row, column) = (first.0, first.1);
            let expected = match image.flipped {
                true => [row, column, 255, row, column - 1, 255],
                false => [row, column, 255, row, column + 1, 255],
            };
            assert_eq!(picture.pixels()[..6], expected);
            seen.insert((image.flipped, first));
        }
        assert_eq!(seen.len(), 2 * 4, "flips and corners: {seen:?}");
    }

    #[test]
    fn a_window_that_does_not_fit_is_refused() {
        let error = |window| {
            Image::new(vec![0; 12], [2, 2], window)
                .unwrap_err()
                .to_string()
        };
        assert!(error([3, 2]).contains("no window of 3 x 2"));
        assert!(error([2, 0]).contains("no window of 2 x 0"));
        assert!(Image::new(vec![0; 11], [2, 2], [2, 2]).is_err());
    }
}
