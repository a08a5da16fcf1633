//! Convolutions as matrix products: `convolved [outputs, places] = weight [outputs, taps] * unfolded [taps,
//! places]`, where a place is one of the output, and a tap one of the values that it depends on.
//!
//! Source: Chellapilla et al., "High Performance Convolutional Neural Networks for Document Processing"
//! (2006). Images are unfolded in groups that fit into a core's cache.

use pulp::Arch;

/// Values that are copied at a time: rows are read and written up to this many values further.
const LANES: usize = 16;
/// Places in a group of images, about.
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

/// Of one group of images, reused for the next.
pub struct Buffers {
    /// `[images, channels, height, width]` with the padding.
    padded: Vec<f32>,
    /// `[taps, images, places]`.
    unfolded: Vec<f32>,
    /// `[outputs, images, places]`.
    convolved: Vec<f32>,
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

    /// Images that are unfolded together.
    pub fn group(&self) -> usize {
        (PLACES / self.places()).max(1)
    }

    pub fn buffers(&self) -> Buffers {
        let places = self.group() * self.places();
        Buffers {
            padded: vec![0.0; self.group() * self.padded_values() + LANES],
            unfolded: vec![0.0; self.taps() * places + LANES],
            convolved: vec![0.0; self.outputs * places],
        }
    }

    /// From a group of images to `output`. With pooling, `chosen` says which value of a window is the
    /// largest; without, it is empty.
    pub fn forward(
        &self,
        images: &[f32],
        [weight, bias]: [&[f32]; 2],
        buffers: &mut Buffers,
        output: &mut [f32],
        chosen: &mut [u8],
    ) {
        let count = images.len() / self.image_values();
        let sizes = [self.outputs, self.taps(), count * self.places()];
        self.pad(images, &mut buffers.padded);
        Arch::new().dispatch(|| self.unfold(count, &buffers.padded, &mut buffers.unfolded));
        let [weight, unfolded] = [
            Matrix::new(weight, [sizes[0], sizes[1]]),
            Matrix::new(&buffers.unfolded, [sizes[1], sizes[2]]),
        ];
        multiply(&mut buffers.convolved, false, weight, unfolded);
        Arch::new().dispatch(|| self.finish(count, &buffers.convolved, bias, output, chosen));
    }

    /// From the gradient of a group's output to those of the parameters, and of the images where
    /// `image_gradient` is not empty.
    pub fn backward(
        &self,
        images: &[f32],
        weight: &[f32],
        (gradient, chosen): (&[f32], &[u8]),
        buffers: &mut Buffers,
        gradients: &mut Gradients,
        image_gradient: &mut [f32],
    ) {
        let count = images.len() / self.image_values();
        let (taps, places) = (self.taps(), count * self.places());
        let Buffers {
            padded,
            unfolded,
            convolved,
        } = buffers;
        Arch::new().dispatch(|| self.spread(count, gradient, chosen, convolved));
        for (sum, row) in gradients
            .bias
            .iter_mut()
            .zip(convolved.chunks_exact(places))
        {
            *sum += total(row);
        }
        let convolved = Matrix::new(convolved, [self.outputs, places]);
        if !gradients.weight.is_empty() {
            self.pad(images, padded);
            Arch::new().dispatch(|| self.unfold(count, padded, unfolded));
            let unfolded = Matrix::new(unfolded, [taps, places]);
            multiply(
                &mut gradients.weight,
                true,
                convolved,
                unfolded.transposed(),
            );
        }
        if !image_gradient.is_empty() {
            let weight = Matrix::new(weight, [self.outputs, taps]);
            multiply(unfolded, false, weight.transposed(), convolved);
            padded.fill(0.0);
            Arch::new().dispatch(|| self.fold(count, unfolded, padded));
            self.crop(padded, image_gradient);
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
        padded.fill(0.0);
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
    fn for_each_unfolded_row(&self, count: usize, mut call: impl FnMut(usize, usize)) {
        let ([height, width], [rows, columns]) = (self.padded(), self.convolved());
        let mut at = 0;
        for tap in 0..self.taps() {
            let (rest, column) = (tap / self.kernel[1], tap % self.kernel[1]);
            let (channel, row) = (rest / self.kernel[0], rest % self.kernel[0]);
            let start = (channel * height + row * self.dilation[0]) * width;
            let start = start + column * self.dilation[1];
            for image in 0..count {
                let mut from = image * self.padded_values() + start;
                for _ in 0..rows {
                    call(at, from);
                    at += columns;
                    from += self.stride[0] * width;
                }
            }
        }
    }

    #[inline(always)]
    fn unfold(&self, count: usize, padded: &[f32], unfolded: &mut [f32]) {
        let ([_, columns], [_, stride]) = (self.convolved(), self.stride);
        self.for_each_unfolded_row(count, |at, from| {
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
    fn fold(&self, count: usize, unfolded: &[f32], padded: &mut [f32]) {
        let ([_, columns], [_, stride]) = (self.convolved(), self.stride);
        self.for_each_unfolded_row(count, |at, from| {
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

    /// Adds the bias, pools where that follows, and puts `[outputs, images, ..]` into the order
    /// `[images, outputs, ..]`.
    #[inline(always)]
    fn finish(
        &self,
        count: usize,
        convolved: &[f32],
        bias: &[f32],
        output: &mut [f32],
        chosen: &mut [u8],
    ) {
        let [_, width] = self.convolved();
        let [rows, columns] = self.output();
        for (plane, from) in convolved
            .chunks_exact(self.places())
            .enumerate()
            .take(count * self.outputs)
        {
            let (channel, image) = (plane / count, plane % count);
            let bias = bias[channel];
            let at = (image * self.outputs + channel) * rows * columns;
            let output = &mut output[at..at + rows * columns];
            if !self.pooled {
                output
                    .iter_mut()
                    .zip(from)
                    .for_each(|(to, value)| *to = value + bias);
                continue;
            }
            let chosen = chosen[at..at + rows * columns].chunks_exact_mut(columns);
            let lines = output.chunks_exact_mut(columns).zip(chosen);
            for ((output, chosen), pair) in lines.zip(from.chunks_exact(2 * width)) {
                let (upper, lower) = pair.split_at(width);
                pool_line([upper, lower], bias, output, chosen);
            }
        }
    }

    /// The gradient of `convolved` from that of the output.
    #[inline(always)]
    fn spread(&self, count: usize, gradient: &[f32], chosen: &[u8], convolved: &mut [f32]) {
        let [_, width] = self.convolved();
        let [rows, columns] = self.output();
        for (plane, to) in convolved
            .chunks_exact_mut(self.places())
            .enumerate()
            .take(count * self.outputs)
        {
            let (channel, image) = (plane / count, plane % count);
            let at = (image * self.outputs + channel) * rows * columns;
            let gradient = &gradient[at..at + rows * columns];
            if !self.pooled {
                to.copy_from_slice(gradient);
                continue;
            }
            // A last row or column alone is not pooled.
            to.fill(0.0);
            let chosen = chosen[at..at + rows * columns].chunks_exact(columns);
            let lines = gradient.chunks_exact(columns).zip(chosen);
            for ((gradient, chosen), pair) in lines.zip(to.chunks_exact_mut(2 * width)) {
                let (upper, lower) = pair.split_at_mut(width);
                spread_line(gradient, chosen, [upper, lower]);
            }
        }
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

/// A matrix in the first values of a slice, row after row, or transposed.
#[derive(Clone, Copy)]
struct Matrix<'a> {
    values: &'a [f32],
    size: [usize; 2],
    /// From one row to the next, and from one column to the next.
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    fn new(values: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        let values = &values[..rows * columns];
        Matrix {
            values,
            size: [rows, columns],
            strides: [columns, 1],
        }
    }

    fn transposed(self) -> Self {
        let ([rows, columns], [row, column]) = (self.size, self.strides);
        Matrix {
            values: self.values,
            size: [columns, rows],
            strides: [column, row],
        }
    }
}

/// `product = left * right`, or `product += left * right`, row after row.
fn multiply(product: &mut [f32], add: bool, left: Matrix, right: Matrix) {
    let ([rows, inner], [inner_too, columns]) = (left.size, right.size);
    assert_eq!(inner, inner_too);
    let product = &mut product[..rows * columns];
    let [left_strides, right_strides] = [&left, &right].map(|it| it.strides.map(|n| n as isize));
    // SAFETY: sizes and strides stay within the slices, as `Matrix::new` and the line above cut them so;
    // `product` is borrowed by nothing else.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            product.as_mut_ptr(),
            1,
            columns as isize,
            add,
            left.values.as_ptr(),
            left_strides[1],
            left_strides[0],
            right.values.as_ptr(),
            right_strides[1],
            right_strides[0],
            1.0,
            1.0,
            false,
            false,
            false,
            gemm::Parallelism::None,
        );
    }
}
