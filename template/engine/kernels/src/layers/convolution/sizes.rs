//! Sizes of a convolution, and the pieces of its images that are unfolded at a time.

use std::ops::Range;

use crate::half::Half;

/// Approximate number of unfolded values per piece, half a MiB.
const VALUES: usize = 1 << 17;
/// Number of places for a fast product.
const PLACES: usize = 256;

/// Sizes of a convolution without groups, and its fused pooling.
#[derive(Clone, Copy, Debug)]
pub struct Convolution {
    pub channels: usize,
    /// Rows and columns, as for all pairs.
    pub image: [usize; 2],
    pub outputs: usize,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    /// Zero padding before and after.
    pub padding: [(usize, usize); 2],
    /// Whether a ReLU and a 2x2 max pooling follow.
    pub pooled: bool,
    /// The type of operands of products.
    pub half: Option<Half>,
}

/// A range of images and rows that is unfolded at a time.
pub struct Piece {
    pub images: usize,
    /// Rows of each convolved image.
    pub rows: Range<usize>,
}

impl Convolution {
    /// Rows and columns including padding.
    pub fn padded(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.image[axis] + self.padding[axis].0 + self.padding[axis].1)
    }

    /// Whether the kernel fits into the padded image.
    pub fn fits(&self) -> bool {
        let padded = self.padded();
        [0, 1].map(|axis| self.dilation[axis] * (self.kernel[axis] - 1) < padded[axis]) == [true; 2]
    }

    /// Rows and columns before pooling.
    pub fn convolved(&self) -> [usize; 2] {
        let padded = self.padded();
        [0, 1].map(|axis| {
            let reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
            (padded[axis] - reach) / self.stride[axis] + 1
        })
    }

    /// Rows and columns of the output.
    pub fn output(&self) -> [usize; 2] {
        let convolved = self.convolved();
        if self.pooled {
            convolved.map(|size| size / 2)
        } else {
            convolved
        }
    }

    pub fn taps(&self) -> usize {
        self.channels * self.kernel[0] * self.kernel[1]
    }

    pub fn places(&self) -> usize {
        self.convolved().iter().product()
    }

    /// Number of values of an input image.
    pub fn image_values(&self) -> usize {
        self.channels * self.image[0] * self.image[1]
    }

    pub fn output_values(&self) -> usize {
        self.outputs * self.output().iter().product::<usize>()
    }

    pub fn padded_values(&self) -> usize {
        self.channels * self.padded().iter().product::<usize>()
    }

    /// Number of images per group.
    pub fn group(&self) -> usize {
        let places = self.places();
        (VALUES / (self.taps() * places)).clamp(1, PLACES.div_ceil(places))
    }

    /// Rows of a piece, even for 2x2 windows.
    pub fn rows(&self) -> usize {
        let [rows, columns] = self.convolved();
        let fitting = VALUES / (self.taps() * columns);
        fitting.min(rows + 1).max(2) / 2 * 2
    }

    pub fn pieces(&self, images: usize) -> impl Iterator<Item = Piece> + use<> {
        let ([rows, _], step) = (self.convolved(), self.rows());
        (0..rows).step_by(step).map(move |start| Piece {
            images,
            rows: start..rows.min(start + step),
        })
    }

    pub fn places_of(&self, piece: &Piece) -> usize {
        piece.images * piece.rows.len() * self.convolved()[1]
    }
}
