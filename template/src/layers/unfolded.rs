//! Convolutions as matrix products: `convolved [outputs, places] = weight [outputs, taps] * unfolded [taps,
//! places]`, where a place is one of the output, and a tap one of the values that it depends on.
//!
//! Source: Chellapilla et al., "High Performance Convolutional Neural Networks for Document Processing"
//! (2006). What is unfolded at a time, some small images or some rows of a large one, fits into a core's
//! cache.

use std::ops::Range;

use pulp::Arch;

use super::matrix::{Matrix, Threads, multiply};

/// Values that are copied at a time: rows are read and written up to this many values further.
const LANES: usize = 16;
/// Values that are unfolded at a time, about: half a MiB.
const VALUES: usize = 1 << 17;
/// Places that are enough for a fast product.
const PLACES: usize = 256;
/// Instead of one of a window's values: the ReLU gave 0.
const OFF: u8 = u8::MAX;

/// Sizes of a convolution without groups, and of what follows it.
#[derive(Clone, Copy, Debug)]
pub struct Convolution {
    pub channels: usize,
    /// Rows and columns, like all pairs here.
    pub image: [usize; 2],
    pub outputs: usize,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    /// Zeros before and after.
    pub padding: [(usize, usize); 2],
    /// Whether a ReLU and the largest of each 2x2 values follow.
    pub pooled: bool,
}

/// For one group of images at a time.
pub struct Buffers {
    /// `[images, channels, height, width]` with the padding, which stays zero.
    padded: Vec<f32>,
    /// Its gradient.
    folded: Vec<f32>,
    /// `[taps, images, places]` of a piece, or its gradient.
    unfolded: Vec<f32>,
    /// `[outputs, images, places]` of a piece, or its gradient.
    convolved: Vec<f32>,
}

/// What is unfolded at a time.
struct Piece {
    images: usize,
    /// Of each image when it is convolved.
    rows: Range<usize>,
}

/// Gradients of the parameters, to which each group of images adds.
pub struct Gradients {
    /// `[outputs, taps]`, or empty where it is not wanted.
    pub weight: Vec<f32>,
    /// `[outputs]`.
    pub bias: Vec<f32>,
}

impl Convolution {
    fn padded(&self) -> [usize; 2] {
        [0, 1].map(|axis| self.image[axis] + self.padding[axis].0 + self.padding[axis].1)
    }

    /// Whether the kernel fits into the padded image.
    pub fn fits(&self) -> bool {
        let padded = self.padded();
        [0, 1].map(|axis| self.dilation[axis] * (self.kernel[axis] - 1) < padded[axis]) == [true; 2]
    }

    fn convolved(&self) -> [usize; 2] {
        let padded = self.padded();
        [0, 1].map(|axis| {
            let reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1;
            (padded[axis] - reach) / self.stride[axis] + 1
        })
    }

    /// Rows and columns after all.
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

    fn places(&self) -> usize {
        self.convolved().iter().product()
    }

    /// Values of an image, and of what comes of it.
    pub fn image_values(&self) -> usize {
        self.channels * self.image[0] * self.image[1]
    }

    pub fn output_values(&self) -> usize {
        self.outputs * self.output().iter().product::<usize>()
    }

    fn padded_values(&self) -> usize {
        self.channels * self.padded().iter().product::<usize>()
    }

    /// Images that are computed together.
    pub fn group(&self) -> usize {
        let places = self.places();
        (VALUES / (self.taps() * places)).clamp(1, PLACES.div_ceil(places))
    }

    /// Rows of a piece, an even number: windows have two.
    fn rows(&self) -> usize {
        let [rows, columns] = self.convolved();
        let fitting = VALUES / (self.taps() * columns);
        fitting.min(rows + 1).max(2) / 2 * 2
    }

    fn pieces(&self, images: usize) -> impl Iterator<Item = Piece> + use<> {
        let ([rows, _], step) = (self.convolved(), self.rows());
        (0..rows).step_by(step).map(move |start| Piece {
            images,
            rows: start..rows.min(start + step),
        })
    }

    fn places_of(&self, piece: &Piece) -> usize {
        piece.images * piece.rows.len() * self.convolved()[1]
    }

    pub fn buffers(&self) -> Buffers {
        let padded = self.group() * self.padded_values() + LANES;
        let places = self.group() * self.rows() * self.convolved()[1];
        Buffers {
            padded: vec![0.0; padded],
            folded: vec![0.0; padded],
            unfolded: vec![0.0; self.taps() * places + LANES],
            convolved: vec![0.0; self.outputs * places],
        }
    }

    /// From a group of images to `output`. With pooling, `chosen` says which value of a window is the
    /// largest; without, it is empty.
    pub fn forward_group(
        &self,
        images: &[f32],
        [weight, bias]: [&[f32]; 2],
        buffers: &mut Buffers,
        output: &mut [f32],
        chosen: &mut [u8],
    ) {
        let Buffers {
            padded,
            unfolded,
            convolved,
            ..
        } = buffers;
        let (outputs, taps) = (self.outputs, self.taps());
        self.pad(images, padded);
        for piece in self.pieces(images.len() / self.image_values()) {
            let places = self.places_of(&piece);
            Arch::new().dispatch(|| self.unfold(&piece, padded, unfolded));
            let weight = Matrix::new(weight, [outputs, taps]);
            let images = Matrix::new(unfolded, [taps, places]);
            multiply(convolved, false, weight, images, Threads::This);
            Arch::new().dispatch(|| self.finish(&piece, convolved, bias, output, chosen));
        }
    }

    /// From the gradient of a group's output to those of the parameters, and of the images where
    /// `image_gradient` is not empty.
    pub fn backward_group(
        &self,
        images: &[f32],
        weight: &[f32],
        (gradient, chosen): (&[f32], &[u8]),
        buffers: &mut Buffers,
        gradients: &mut Gradients,
        image_gradient: &mut [f32],
    ) {
        let Buffers {
            padded,
            folded,
            unfolded,
            convolved,
        } = buffers;
        let (outputs, taps) = (self.outputs, self.taps());
        if !gradients.weight.is_empty() {
            self.pad(images, padded);
        }
        if !image_gradient.is_empty() {
            folded.fill(0.0);
        }
        for piece in self.pieces(images.len() / self.image_values()) {
            let places = self.places_of(&piece);
            Arch::new().dispatch(|| self.spread(&piece, gradient, chosen, convolved));
            let sums = gradients.bias.iter_mut();
            sums.zip(convolved.chunks_exact(places))
                .for_each(|(sum, row)| *sum += total(row));
            let convolved = Matrix::new(convolved, [outputs, places]);
            if !gradients.weight.is_empty() {
                Arch::new().dispatch(|| self.unfold(&piece, padded, unfolded));
                let unfolded = Matrix::new(unfolded, [taps, places]).transposed();
                multiply(
                    &mut gradients.weight,
                    true,
                    convolved,
                    unfolded,
                    Threads::This,
                );
            }
            if !image_gradient.is_empty() {
                let weight = Matrix::new(weight, [outputs, taps]).transposed();
                multiply(unfolded, false, weight, convolved, Threads::This);
                Arch::new().dispatch(|| self.fold(&piece, unfolded, folded));
            }
        }
        if !image_gradient.is_empty() {
            self.crop(folded, image_gradient);
        }
    }

    /// Calls with where each row of an image begins, and where it begins in a padded one.
    fn for_each_row(&self, mut call: impl FnMut(usize, usize)) {
        let ([height, width], [rows, columns]) = (self.padded(), self.image);
        let [(top, _), (left, _)] = self.padding;
        for row in 0..self.channels * rows {
            let line = row / rows * height + row % rows + top;
            call(row * columns, line * width + left);
        }
    }

    fn pad(&self, images: &[f32], padded: &mut [f32]) {
        let width = self.image[1];
        let images = images.chunks_exact(self.image_values());
        for (image, padded) in images.zip(padded.chunks_mut(self.padded_values())) {
            self.for_each_row(|at, inside| {
                padded[inside..inside + width].copy_from_slice(&image[at..at + width]);
            });
        }
    }

    fn crop(&self, padded: &[f32], images: &mut [f32]) {
        let width = self.image[1];
        let images = images.chunks_exact_mut(self.image_values());
        for (image, padded) in images.zip(padded.chunks(self.padded_values())) {
            self.for_each_row(|at, inside| {
                image[at..at + width].copy_from_slice(&padded[inside..inside + width]);
            });
        }
    }

    /// Calls with where each row of the unfolded images begins, and where its values begin in padded
    /// ones.
    #[inline(always)]
    fn for_each_unfolded_row(&self, piece: &Piece, mut call: impl FnMut(usize, usize)) {
        let ([height, width], [_, columns]) = (self.padded(), self.convolved());
        let mut at = 0;
        for tap in 0..self.taps() {
            let (rest, column) = (tap / self.kernel[1], tap % self.kernel[1]);
            let (channel, row) = (rest / self.kernel[0], rest % self.kernel[0]);
            let start = (channel * height + row * self.dilation[0]) * width;
            let start = start + column * self.dilation[1];
            for image in 0..piece.images {
                let start = image * self.padded_values() + start;
                for row in piece.rows.clone() {
                    call(at, start + row * self.stride[0] * width);
                    at += columns;
                }
            }
        }
    }

    #[inline(always)]
    fn unfold(&self, piece: &Piece, padded: &[f32], unfolded: &mut [f32]) {
        let ([_, columns], [_, stride]) = (self.convolved(), self.stride);
        self.for_each_unfolded_row(piece, |at, from| {
            if stride == 1 {
                copy_row(&padded[from..], &mut unfolded[at..], columns);
            } else {
                let values = padded[from..].iter().step_by(stride);
                let row = unfolded[at..at + columns].iter_mut();
                row.zip(values).for_each(|(to, value)| *to = *value);
            }
        });
    }

    /// Adds all that was unfolded to where it came from.
    #[inline(always)]
    fn fold(&self, piece: &Piece, unfolded: &[f32], padded: &mut [f32]) {
        let ([_, columns], [_, stride]) = (self.convolved(), self.stride);
        self.for_each_unfolded_row(piece, |at, from| {
            let row = &unfolded[at..at + columns];
            if stride == 1 {
                let sums = padded[from..from + columns].iter_mut();
                sums.zip(row).for_each(|(sum, value)| *sum += value);
            } else {
                let sums = padded[from..].iter_mut().step_by(stride);
                sums.zip(row).for_each(|(sum, value)| *sum += value);
            }
        });
    }

    /// Calls with each plane of a piece, `[outputs, images]`: its number, the channel, and where it is in
    /// the output, whose order is `[images, outputs, ..]`.
    #[inline(always)]
    fn for_each_plane(&self, piece: &Piece, mut call: impl FnMut(usize, usize, Range<usize>)) {
        let [rows, columns] = self.output();
        let pooled = if self.pooled { 2 } else { 1 };
        let (start, count) = (piece.rows.start / pooled, piece.rows.len() / pooled);
        for plane in 0..self.outputs * piece.images {
            let (channel, image) = (plane / piece.images, plane % piece.images);
            let at = ((image * self.outputs + channel) * rows + start) * columns;
            call(plane, channel, at..at + count * columns);
        }
    }

    /// Adds the bias, and pools where that follows.
    #[inline(always)]
    fn finish(
        &self,
        piece: &Piece,
        convolved: &[f32],
        bias: &[f32],
        output: &mut [f32],
        chosen: &mut [u8],
    ) {
        let ([_, width], [_, columns]) = (self.convolved(), self.output());
        let places = piece.rows.len() * width;
        self.for_each_plane(piece, |plane, channel, at| {
            let (from, bias) = (&convolved[plane * places..][..places], bias[channel]);
            let output = &mut output[at.clone()];
            if !self.pooled {
                output
                    .iter_mut()
                    .zip(from)
                    .for_each(|(to, value)| *to = value + bias);
                return;
            }
            let chosen = chosen[at].chunks_exact_mut(columns);
            let lines = output.chunks_exact_mut(columns).zip(chosen);
            for ((output, chosen), pair) in lines.zip(from.chunks_exact(2 * width)) {
                let (upper, lower) = pair.split_at(width);
                pool_line([upper, lower], bias, output, chosen);
            }
        });
    }

    /// The gradient of `convolved` from that of the output.
    #[inline(always)]
    fn spread(&self, piece: &Piece, gradient: &[f32], chosen: &[u8], convolved: &mut [f32]) {
        let ([_, width], [_, columns]) = (self.convolved(), self.output());
        let places = piece.rows.len() * width;
        self.for_each_plane(piece, |plane, _, at| {
            let to = &mut convolved[plane * places..][..places];
            let gradient = &gradient[at.clone()];
            if !self.pooled {
                to.copy_from_slice(gradient);
                return;
            }
            // A last row or column alone is not pooled.
            to.fill(0.0);
            let lines = gradient
                .chunks_exact(columns)
                .zip(chosen[at].chunks_exact(columns));
            for ((gradient, chosen), pair) in lines.zip(to.chunks_exact_mut(2 * width)) {
                let (upper, lower) = pair.split_at_mut(width);
                spread_line(gradient, chosen, [upper, lower]);
            }
        });
    }
}

/// Copies `length` values, and some that follow.
#[inline(always)]
fn copy_row(from: &[f32], to: &mut [f32], length: usize) {
    for at in (0..length).step_by(LANES) {
        to[at..at + LANES].copy_from_slice(&from[at..at + LANES]);
    }
}

/// The largest of each 2x2 values plus `bias`, and which one it was; 0 and [`OFF`] where that is not
/// above 0. NaN stays.
#[inline(always)]
fn pool_line([upper, lower]: [&[f32]; 2], bias: f32, output: &mut [f32], chosen: &mut [u8]) {
    let larger = |one: (f32, u8), two: (f32, u8)| {
        if two.0 > one.0 || two.0.is_nan() {
            two
        } else {
            one
        }
    };
    let windows = upper.chunks_exact(2).zip(lower.chunks_exact(2));
    for ((upper, lower), (output, chosen)) in windows.zip(output.iter_mut().zip(chosen)) {
        let above = larger((upper[0], 0), (upper[1], 1));
        let below = larger((lower[0], 2), (lower[1], 3));
        let (value, which) = larger(above, below);
        let value = value + bias;
        (*output, *chosen) = if value <= 0.0 {
            (0.0, OFF)
        } else {
            (value, which)
        };
    }
}

/// Each gradient where the chosen value was, and 0 elsewhere.
#[inline(always)]
fn spread_line(gradient: &[f32], chosen: &[u8], [upper, lower]: [&mut [f32]; 2]) {
    let windows = upper.chunks_exact_mut(2).zip(lower.chunks_exact_mut(2));
    for ((upper, lower), (gradient, chosen)) in windows.zip(gradient.iter().zip(chosen)) {
        let keep = |which| if *chosen == which { *gradient } else { 0.0 };
        upper.copy_from_slice(&[keep(0), keep(1)]);
        lower.copy_from_slice(&[keep(2), keep(3)]);
    }
}

/// A sum in `LANES` parts, which a processor adds at a time.
fn total(values: &[f32]) -> f32 {
    let (chunks, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for chunk in chunks {
        sums.iter_mut()
            .zip(chunk)
            .for_each(|(sum, value)| *sum += value);
    }
    sums.iter().chain(rest).sum()
}
