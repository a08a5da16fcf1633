//! Vectorized memory passes before and after the matrix products of a convolution.
//!
//! Intermediate layouts are channels-last: the values of a pixel are contiguous, so that whole vectors are
//! copied, pooled and added, however narrow an image is.

use std::ops::Range;

use pulp::{Arch, Simd, WithSimd};

use super::sizes::{Convolution, Piece};
use crate::elementwise::add_inline as add;

/// Values per copy: runs are read and written rounded up to this many values.
pub const LANES: usize = 8;
/// Pixels of a transposed tile, which fits into cache.
const TILE: usize = 32;
/// The argmax of a window whose ReLU is 0.
const OFF: u32 = u32::MAX;

/// A pass with its inputs, then its outputs; `images` are `[images, channels, height, width]`, and other
/// buffers as in [`super::unfolded::Buffers`].
pub enum Pass<'a> {
    /// From images to padded ones.
    Pad(&'a [f32], &'a mut [f32]),
    /// From padded images to unfolded ones.
    Unfold(&'a Piece, &'a [f32], &'a mut [f32]),
    /// From convolved images, a bias and a pixel buffer to the output, and the argmax of each window,
    /// `[images, rows, columns, outputs]`.
    Finish(
        &'a Piece,
        &'a mut [f32],
        &'a [f32],
        &'a mut [f32],
        &'a mut [f32],
        &'a mut [u32],
    ),
    /// From the gradient of the output, the argmax of [`Pass::Finish`] and a pixel buffer to the gradient of
    /// convolved images; accumulates the gradient of the bias.
    Spread(
        &'a Piece,
        &'a [f32],
        &'a [u32],
        &'a mut [f32],
        &'a mut [f32],
        &'a mut [f32],
    ),
    /// Adds the gradient of unfolded images to that of padded ones.
    Fold(&'a Piece, &'a [f32], &'a mut [f32]),
    /// From padded images to images.
    Crop(&'a [f32], &'a mut [f32]),
}

/// A type instead of a closure, as two passes take the SIMD token.
struct Vectorized<'a>(&'a Convolution, Pass<'a>);

impl WithSimd for Vectorized<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Vectorized(it, pass) = self;
        match pass {
            Pass::Pad(images, padded) => it.pad(images, padded),
            Pass::Unfold(piece, padded, unfolded) => it.unfold(piece, padded, unfolded),
            Pass::Finish(piece, convolved, bias, pixels, output, chosen) => {
                it.finish(simd, piece, (convolved, bias), pixels, output, chosen);
            }
            Pass::Spread(piece, gradient, chosen, bias, pixels, convolved) => {
                it.spread(simd, piece, (gradient, chosen), bias, pixels, convolved);
            }
            Pass::Fold(piece, unfolded, padded) => it.fold(piece, unfolded, padded),
            Pass::Crop(padded, images) => it.crop(padded, images),
        }
    }
}

impl Convolution {
    pub fn pass(&self, pass: Pass) {
        Arch::new().dispatch(Vectorized(self, pass));
    }

    /// The offsets of each image row in its first plane, and of its pixels in padded images.
    #[inline(always)]
    fn rows_of(&self, images: usize) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        let ([_, width], [rows, columns]) = (self.padded(), self.image);
        let [(top, _), (left, _)] = self.padding;
        let (values, padded_values) = (self.image_values(), self.padded_values());
        let channels = self.channels;
        (0..images * rows).map(move |row| {
            let (image, row) = (row / rows, row % rows);
            let inside = image * padded_values + ((row + top) * width + left) * channels;
            let plane = image * values + row * columns;
            (plane, inside..inside + columns * channels)
        })
    }

    #[inline(always)]
    fn pad(&self, images: &[f32], padded: &mut [f32]) {
        let plane = self.image[0] * self.image[1];
        for (from, to) in self.rows_of(images.len() / self.image_values()) {
            to_pixels(&images[from..], plane, &mut padded[to], self.channels);
        }
    }

    #[inline(always)]
    fn crop(&self, padded: &[f32], images: &mut [f32]) {
        let plane = self.image[0] * self.image[1];
        for (to, from) in self.rows_of(images.len() / self.image_values()) {
            to_planes(&padded[from], self.channels, &mut images[to..], plane);
        }
    }

    /// Length of a run, contiguous in both padded and unfolded images.
    fn run(&self) -> usize {
        match self.dilation[1] {
            1 => self.kernel[1] * self.channels,
            _ => self.channels,
        }
    }

    /// Calls with the offset of each run in unfolded and in padded images.
    #[inline(always)]
    fn for_each_run(&self, piece: &Piece, mut call: impl FnMut(usize, usize)) {
        let ([_, width], [_, columns], run) = (self.padded(), self.convolved(), self.run());
        let [row_step, column_step] = [width * self.channels, self.channels];
        // Offsets of the runs of a place.
        let mut offsets = Vec::new();
        for row in 0..self.kernel[0] {
            let row = row * self.dilation[0] * row_step;
            let runs = self.kernel[1] * self.channels / run;
            offsets.extend((0..runs).map(|number| row + number * self.dilation[1] * column_step));
        }
        let mut at = 0;
        for image in 0..piece.images {
            for row in piece.rows.clone() {
                let row = image * self.padded_values() + row * self.stride[0] * row_step;
                for column in 0..columns {
                    let place = row + column * self.stride[1] * column_step;
                    for offset in &offsets {
                        call(at, place + offset);
                        at += run;
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn unfold(&self, piece: &Piece, padded: &[f32], unfolded: &mut [f32]) {
        // Values written beyond a run are overwritten by the next one.
        let length = self.run().next_multiple_of(LANES);
        self.for_each_run(
            piece,
            #[inline(always)]
            |at, from| {
                let to = unfolded[at..at + length].as_chunks_mut::<LANES>().0;
                let from = padded[from..from + length].as_chunks().0;
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
            },
        );
    }

    #[inline(always)]
    fn fold(&self, piece: &Piece, unfolded: &[f32], padded: &mut [f32]) {
        let run = self.run();
        self.for_each_run(
            piece,
            #[inline(always)]
            |at, to| add(&mut padded[to..to + run], &unfolded[at..at + run]),
        );
    }

    /// For each image of a piece: the ranges of its convolved places, the offset of its part of the first
    /// output plane, and the range of its pixels.
    #[inline(always)]
    fn parts(
        &self,
        piece: &Piece,
    ) -> impl Iterator<Item = (Range<usize>, usize, Range<usize>)> + use<> {
        let ([_, width], [rows, columns]) = (self.convolved(), self.output());
        let (outputs, pooled) = (self.outputs, if self.pooled { 2 } else { 1 });
        let places = piece.rows.len() * width * outputs;
        let start = piece.rows.start / pooled;
        let pixels = piece.rows.len() / pooled * columns * outputs;
        (0..piece.images).map(move |image| {
            let plane = (image * outputs * rows + start) * columns;
            let pixel = (image * rows + start) * columns * outputs;
            let places = image * places..(image + 1) * places;
            (places, plane, pixel..pixel + pixels)
        })
    }

    #[inline(always)]
    fn finish<S: Simd>(
        &self,
        simd: S,
        piece: &Piece,
        (convolved, bias): (&mut [f32], &[f32]),
        pixels: &mut [f32],
        output: &mut [f32],
        chosen: &mut [u32],
    ) {
        let ([_, width], [rows, columns]) = (self.convolved(), self.output());
        let outputs = self.outputs;
        for (places, plane, part) in self.parts(piece) {
            let (places, output) = (&mut convolved[places], &mut output[plane..]);
            if !self.pooled {
                for place in places.chunks_exact_mut(outputs) {
                    add(place, bias);
                }
                to_planes(places, outputs, output, rows * columns);
                continue;
            }
            let pixels = &mut pixels[..part.len()];
            let lines = pixels.chunks_exact_mut(columns * outputs);
            let lines = lines.zip(chosen[part].chunks_exact_mut(columns * outputs));
            for ((pixels, chosen), pair) in lines.zip(places.chunks_exact(2 * width * outputs)) {
                let chosen = chosen.chunks_exact_mut(outputs);
                let pixels = pixels.chunks_exact_mut(outputs).zip(chosen);
                let (upper, lower) = pair.split_at(width * outputs);
                let lower = lower.chunks_exact(2 * outputs);
                let windows = upper.chunks_exact(2 * outputs).zip(lower);
                for ((pixel, chosen), (upper, lower)) in pixels.zip(windows) {
                    pool(simd, [upper, lower], bias, pixel, chosen);
                }
            }
            to_planes(pixels, outputs, output, rows * columns);
        }
    }

    #[inline(always)]
    fn spread<S: Simd>(
        &self,
        simd: S,
        piece: &Piece,
        (gradient, chosen): (&[f32], &[u32]),
        bias: &mut [f32],
        pixels: &mut [f32],
        convolved: &mut [f32],
    ) {
        let ([_, width], [rows, columns]) = (self.convolved(), self.output());
        let outputs = self.outputs;
        for (places, plane, part) in self.parts(piece) {
            let (places, gradient) = (&mut convolved[places], &gradient[plane..]);
            if !self.pooled {
                to_pixels(gradient, rows * columns, places, outputs);
                if !bias.is_empty() {
                    for place in places.chunks_exact(outputs) {
                        add(bias, place);
                    }
                }
                continue;
            }
            let pixels = &mut pixels[..part.len()];
            to_pixels(gradient, rows * columns, pixels, outputs);
            let lines = pixels.chunks_exact(columns * outputs);
            let lines = lines.zip(chosen[part].chunks_exact(columns * outputs));
            let mut pairs = places.chunks_exact_mut(2 * width * outputs);
            for ((pixels, chosen), pair) in lines.zip(&mut pairs) {
                let pixels = pixels
                    .chunks_exact(outputs)
                    .zip(chosen.chunks_exact(outputs));
                let (upper, lower) = pair.split_at_mut(width * outputs);
                let [mut upper, mut lower] =
                    [upper, lower].map(|row| row.chunks_exact_mut(2 * outputs));
                for ((pixel, chosen), rows) in pixels.zip((&mut upper).zip(&mut lower)) {
                    unpool(simd, (pixel, chosen), bias, rows.into());
                }
                // An odd last column or row is not pooled.
                upper.into_remainder().fill(0.0);
                lower.into_remainder().fill(0.0);
            }
            pairs.into_remainder().fill(0.0);
        }
    }
}

/// From planes, `distance` values apart, to channels-last pixels.
#[inline(always)]
fn to_pixels(planes: &[f32], distance: usize, pixels: &mut [f32], channels: usize) {
    let count = pixels.len() / channels;
    for start in (0..count).step_by(TILE) {
        for channel in 0..channels {
            let plane = &planes[channel * distance..][start..count.min(start + TILE)];
            let mut at = start * channels + channel;
            for value in plane {
                pixels[at] = *value;
                at += channels;
            }
        }
    }
}

/// From channels-last pixels to planes, `distance` values apart.
#[inline(always)]
fn to_planes(pixels: &[f32], channels: usize, planes: &mut [f32], distance: usize) {
    let count = pixels.len() / channels;
    for start in (0..count).step_by(TILE) {
        for channel in 0..channels {
            let plane = &mut planes[channel * distance..][start..count.min(start + TILE)];
            let mut at = start * channels + channel;
            for value in plane {
                *value = pixels[at];
                at += channels;
            }
        }
    }
}

/// ReLU of the maximum of each 2x2 window plus `bias`, and the argmax; 0 and [`OFF`] if not above 0. NaN is
/// kept.
#[inline(always)]
fn pool<S: Simd>(
    simd: S,
    [upper, lower]: [&[f32]; 2],
    bias: &[f32],
    pixel: &mut [f32],
    chosen: &mut [u32],
) {
    let (one, two) = upper.split_at(bias.len());
    let (three, four) = lower.split_at(bias.len());
    let [(one, rest_1), (two, rest_2)] = [S::as_simd_f32s(one), S::as_simd_f32s(two)];
    let [(three, rest_3), (four, rest_4)] = [S::as_simd_f32s(three), S::as_simd_f32s(four)];
    let (bias, rest_of_bias) = S::as_simd_f32s(bias);
    let (pixel, rest_of_pixel) = S::as_mut_simd_f32s(pixel);
    let (chosen, rest_of_chosen) = S::as_mut_simd_u32s(chosen);
    let windows = one.iter().zip(two).zip(three.iter().zip(four)).zip(bias);
    for (window, (pixel, chosen)) in windows.zip(pixel.iter_mut().zip(chosen)) {
        let (((one, two), (three, four)), bias) = window;
        (*pixel, *chosen) = largest(simd, [*one, *two, *three, *four], *bias);
    }
    if !rest_of_pixel.is_empty() {
        let [one, two] = [
            simd.partial_load_f32s(rest_1),
            simd.partial_load_f32s(rest_2),
        ];
        let [three, four] = [
            simd.partial_load_f32s(rest_3),
            simd.partial_load_f32s(rest_4),
        ];
        let bias = simd.partial_load_f32s(rest_of_bias);
        let (pixel, chosen) = largest(simd, [one, two, three, four], bias);
        simd.partial_store_f32s(rest_of_pixel, pixel);
        simd.partial_store_u32s(rest_of_chosen, chosen);
    }
}

/// [`pool`] of one vector of windows.
#[inline(always)]
fn largest<S: Simd>(
    simd: S,
    [one, two, three, four]: [S::f32s; 4],
    bias: S::f32s,
) -> (S::f32s, S::u32s) {
    let (zero, off) = (simd.splat_f32s(0.0), simd.splat_u32s(OFF));
    let above = larger(simd, (one, simd.splat_u32s(0)), (two, simd.splat_u32s(1)));
    let below = larger(
        simd,
        (three, simd.splat_u32s(2)),
        (four, simd.splat_u32s(3)),
    );
    let (value, which) = larger(simd, above, below);
    let value = simd.add_f32s(value, bias);
    let is_off = simd.less_than_or_equal_f32s(value, zero);
    let value = simd.select_f32s(is_off, zero, value);
    (value, simd.select_u32s(is_off, off, which))
}

/// The larger of two values, or NaN; each with its index in the window.
#[inline(always)]
fn larger<S: Simd>(
    simd: S,
    one: (S::f32s, S::u32s),
    two: (S::f32s, S::u32s),
) -> (S::f32s, S::u32s) {
    let is_number = simd.equal_f32s(one.0, one.0);
    let is_as_large = simd.less_than_or_equal_f32s(two.0, one.0);
    let is_two = simd.and_m32s(is_number, simd.not_m32s(is_as_large));
    let value = simd.select_f32s(is_two, two.0, one.0);
    (value, simd.select_u32s(is_two, two.1, one.1))
}

/// The backward pass of [`pool`]: the gradient goes to the argmax of each 2x2 window, and 0 to the other
/// values. Accumulates the gradient of the bias.
#[inline(always)]
fn unpool<S: Simd>(
    simd: S,
    (pixel, chosen): (&[f32], &[u32]),
    bias: &mut [f32],
    [upper, lower]: [&mut [f32]; 2],
) {
    let (one, two) = upper.split_at_mut(pixel.len());
    let (three, four) = lower.split_at_mut(pixel.len());
    let (pixel, rest_of_pixel) = S::as_simd_f32s(pixel);
    let (chosen, rest_of_chosen) = S::as_simd_u32s(chosen);
    let (bias, rest_of_bias) = S::as_mut_simd_f32s(bias);
    for (sum, (gradient, chosen)) in bias.iter_mut().zip(pixel.iter().zip(chosen)) {
        *sum = simd.add_f32s(*sum, kept(simd, *gradient, *chosen));
    }
    if !rest_of_bias.is_empty() {
        let gradient = simd.partial_load_f32s(rest_of_pixel);
        let gradient = kept(simd, gradient, simd.partial_load_u32s(rest_of_chosen));
        let sum = simd.add_f32s(simd.partial_load_f32s(rest_of_bias), gradient);
        simd.partial_store_f32s(rest_of_bias, sum);
    }
    for (which, to) in [one, two, three, four].into_iter().enumerate() {
        let which = simd.splat_u32s(which as u32);
        let (to, rest) = S::as_mut_simd_f32s(to);
        for (to, (gradient, chosen)) in to.iter_mut().zip(pixel.iter().zip(chosen)) {
            *to = at_place(simd, *gradient, *chosen, which);
        }
        if !rest.is_empty() {
            let gradient = simd.partial_load_f32s(rest_of_pixel);
            let chosen = simd.partial_load_u32s(rest_of_chosen);
            simd.partial_store_f32s(rest, at_place(simd, gradient, chosen, which));
        }
    }
}

/// The gradient of one value of the window.
#[inline(always)]
fn at_place<S: Simd>(simd: S, gradient: S::f32s, chosen: S::u32s, which: S::u32s) -> S::f32s {
    let is_it = simd.equal_u32s(chosen, which);
    simd.select_f32s(is_it, gradient, simd.splat_f32s(0.0))
}

/// The gradient of the ReLU.
#[inline(always)]
fn kept<S: Simd>(simd: S, gradient: S::f32s, chosen: S::u32s) -> S::f32s {
    let is_off = simd.equal_u32s(chosen, simd.splat_u32s(OFF));
    simd.select_f32s(is_off, simd.splat_f32s(0.0), gradient)
}
