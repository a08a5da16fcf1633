//! Convolutions as matrix products (im2col): `convolved [places, outputs] = unfolded [places, taps] * weight
//! [taps, outputs]`, where a place is an output pixel, and a tap one of its input values, in the kernel's
//! order `[rows, columns, channels]`.
//!
//! Source: Chellapilla et al., "High Performance Convolutional Neural Networks for Document Processing"
//! (2006). Images are unfolded in pieces that fit into a core's cache: several small images, or several rows
//! of a large one.

use std::{cell::Cell, mem};

use super::{
    passes::{LANES, Pass},
    sizes::Convolution,
};
use crate::products::{
    matrix::{Matrix, Threads},
    multiply_in,
};

/// Columns per product kernel with the longest vectors.
const COLUMNS: usize = 16;

thread_local! {
    /// The memory of the thread's last convolution: filling new memory with zeros takes longer than some passes.
    static KEPT: Cell<Memory> = Cell::default();
}

/// Buffers for one group of images, of any contents where not noted; they may be longer than needed.
#[derive(Default)]
struct Memory {
    /// `[images, height, width, channels]` with the padding, which is zero.
    padded: Vec<f32>,
    /// The gradient of `padded`.
    folded: Vec<f32>,
    /// `[images, places, taps]` of a piece, or its gradient.
    unfolded: Vec<f32>,
    /// `[images, places, outputs]` of a piece, or its gradient.
    convolved: Vec<f32>,
    /// `[rows, columns, outputs]` of one output image, or its gradient.
    pixels: Vec<f32>,
}

/// The thread's memory, until it is dropped. A thread that begins another convolution meanwhile, as it waits for
/// others, has new memory.
pub struct Buffers(Memory);

impl Drop for Buffers {
    fn drop(&mut self) {
        KEPT.set(mem::take(&mut self.0));
    }
}

/// Gradients of the parameters, accumulated over groups of images.
pub struct Gradients {
    /// The input of [`Convolution::weight_gradient`]; empty if not needed.
    pub weight: Vec<f32>,
    /// `[outputs]`, or empty.
    pub bias: Vec<f32>,
}

impl Convolution {
    /// Buffers for the groups of this convolution.
    pub fn buffers(&self) -> Buffers {
        let padded = self.group() * self.padded_values() + LANES;
        let pixels = self.rows() * self.convolved()[1];
        let places = self.group() * pixels;
        let mut memory = KEPT.take();
        let lengths = [
            (&mut memory.padded, padded),
            (&mut memory.folded, padded),
            (&mut memory.unfolded, self.taps() * places + LANES),
            (&mut memory.convolved, self.outputs * places),
            (&mut memory.pixels, self.outputs * pixels),
        ];
        for (buffer, length) in lengths {
            buffer.resize(length.max(buffer.len()), 0.0);
        }
        memory.padded[..padded].fill(0.0);
        Buffers(memory)
    }

    /// Calls with tap, output, and the index of their weight in Burn's order `[outputs, channels, rows,
    /// columns]`.
    fn for_each_weight(&self, mut call: impl FnMut(usize, usize, usize)) {
        let places = self.kernel[0] * self.kernel[1];
        for output in 0..self.outputs {
            for place in 0..places {
                for channel in 0..self.channels {
                    let tap = place * self.channels + channel;
                    call(
                        tap,
                        output,
                        (output * self.channels + channel) * places + place,
                    );
                }
            }
        }
    }

    /// `[taps, outputs]` of a weight in Burn's order.
    pub fn weight_by_tap(&self, weight: &[f32]) -> Vec<f32> {
        let mut by_tap = vec![0.0; weight.len()];
        self.for_each_weight(|tap, output, at| by_tap[tap * self.outputs + output] = weight[at]);
        by_tap
    }

    /// `[outputs, taps]` of a weight in Burn's order.
    pub fn weight_by_output(&self, weight: &[f32]) -> Vec<f32> {
        let mut by_output = vec![0.0; weight.len()];
        self.for_each_weight(|tap, output, at| by_output[output * self.taps() + tap] = weight[at]);
        by_output
    }

    /// Whether the gradient of the weight is summed as `[taps, outputs]` rather than `[outputs, taps]`, for
    /// columns in whole vectors.
    fn sums_by_tap(&self) -> bool {
        self.outputs.is_multiple_of(COLUMNS)
    }

    /// The gradient of the weight in Burn's order.
    pub fn weight_gradient(&self, sums: &[f32]) -> Vec<f32> {
        let mut gradient = vec![0.0; sums.len()];
        let [tap_step, output_step] = match self.sums_by_tap() {
            true => [self.outputs, 1],
            false => [1, self.taps()],
        };
        self.for_each_weight(|tap, output, at| {
            gradient[at] = sums[tap * tap_step + output * output_step];
        });
        gradient
    }

    /// From a group of images to `output`, with a weight by tap. With pooling, `chosen` is the argmax of each
    /// window; otherwise it is empty.
    pub fn forward_group(
        &self,
        images: &[f32],
        [weight, bias]: [&[f32]; 2],
        buffers: &mut Buffers,
        output: &mut [f32],
        chosen: &mut [u32],
    ) {
        let Memory {
            padded,
            unfolded,
            convolved,
            pixels,
            ..
        } = &mut buffers.0;
        let weight = Matrix::new(weight, [self.taps(), self.outputs]);
        self.pass(Pass::Pad(images, padded));
        for piece in self.pieces(images.len() / self.image_values()) {
            let size = [self.places_of(&piece), self.taps()];
            self.pass(Pass::Unfold(&piece, padded, unfolded));
            let images = Matrix::new(unfolded, size);
            let threads = Threads::This;
            multiply_in(self.half, convolved, false, images, weight, threads);
            self.pass(Pass::Finish(
                &piece, convolved, bias, pixels, output, chosen,
            ));
        }
    }

    /// From the gradient of a group's output to those of the parameters, and of the images unless
    /// `image_gradient` is empty, with a weight by output.
    pub fn backward_group(
        &self,
        images: &[f32],
        weight: &[f32],
        (gradient, chosen): (&[f32], &[u32]),
        buffers: &mut Buffers,
        gradients: &mut Gradients,
        image_gradient: &mut [f32],
    ) {
        let Memory {
            padded,
            folded,
            unfolded,
            convolved,
            pixels,
        } = &mut buffers.0;
        let Gradients { weight: sums, bias } = gradients;
        if !sums.is_empty() {
            self.pass(Pass::Pad(images, padded));
        }
        if !image_gradient.is_empty() {
            folded[..images.len() / self.image_values() * self.padded_values()].fill(0.0);
        }
        for piece in self.pieces(images.len() / self.image_values()) {
            let places = self.places_of(&piece);
            self.pass(Pass::Spread(
                &piece, gradient, chosen, bias, pixels, convolved,
            ));
            let convolved = Matrix::new(convolved, [places, self.outputs]);
            if !sums.is_empty() {
                self.pass(Pass::Unfold(&piece, padded, unfolded));
                let unfolded = Matrix::new(unfolded, [places, self.taps()]);
                let (left, right) = match self.sums_by_tap() {
                    true => (unfolded, convolved),
                    false => (convolved, unfolded),
                };
                let (left, threads) = (left.transposed(), Threads::This);
                multiply_in(self.half, sums, true, left, right, threads);
            }
            if !image_gradient.is_empty() {
                let weight = Matrix::new(weight, [self.outputs, self.taps()]);
                let threads = Threads::This;
                multiply_in(self.half, unfolded, false, convolved, weight, threads);
                self.pass(Pass::Fold(&piece, unfolded, folded));
            }
        }
        if !image_gradient.is_empty() {
            self.pass(Pass::Crop(folded, image_gradient));
        }
    }
}
