//! Causal self-attention: nothing is transposed, sliced or padded.

use burn::{
    backend::{Flex, flex::FlexTensor},
    tensor::Tensor,
};
use rayon::prelude::*;

use crate::{
    autodiff::operation::{self, Operation, tensor},
    half::Half,
    layers::rows::{largest, sum, sum_of_pairs},
    products::{
        matrix::{Matrix, Threads},
        multiply_in,
    },
    vectors::{exp, vectorized},
};

/// The output; `None` if unsupported: another device or type, gradient checkpointing, or no values. `3 * heads`
/// divides the last dimension.
pub fn on_cpu(all: &Tensor<3>, heads: usize, half: Option<Half>) -> Option<Tensor<3>> {
    let [batch, time, width] = all.dims();
    if [batch, time, width].contains(&0) {
        return None;
    }
    let attention = Attention {
        batch,
        time,
        width: width / 3,
        heads,
        half,
    };
    let output = operation::on_cpu(attention, [all.clone().into_dispatch()]);
    output.map(Tensor::from_dispatch)
}

/// From `[batch, time, 3 * width]` to `[batch, time, width]`.
#[derive(Clone, Copy, Debug)]
struct Attention {
    batch: usize,
    time: usize,
    width: usize,
    heads: usize,
    /// The type of operands of products.
    half: Option<Half>,
}

/// The queries, keys and values of a head, each `[time, size]`.
type Head<'a> = [Matrix<'a>; 3];

impl Operation<Flex> for Attention {
    /// The attention weights, `[batch, heads, time, time]`.
    type Kept = Vec<f32>;

    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Self::Kept) {
        let examples = inputs[0].storage::<f32>().par_chunks(3 * self.values());
        let mut shares = vec![0.0; self.batch * self.heads * self.scores()];
        let mut output = vec![0.0; self.batch * self.values()];
        let outputs = output.par_chunks_mut(self.values());
        let outputs = outputs.zip(shares.par_chunks_mut(self.heads * self.scores()));
        outputs.zip(examples).for_each_init(
            || vec![0.0; self.time * self.size()],
            |mixed, ((output, shares), example)| {
                for (head, shares) in shares.chunks_exact_mut(self.scores()).enumerate() {
                    let [queries, keys, values] = self.head(example, head);
                    self.multiply(shares, queries, keys.transposed());
                    vectorized!(self.softmax(shares));
                    self.multiply(mixed, self.square(shares), values);
                    self.put(mixed, output, self.width, head * self.size());
                }
            },
        );
        let output = tensor(output, [self.batch, self.time, self.width]);
        (output, shares)
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        shares: Self::Kept,
        gradient: FlexTensor,
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let examples = inputs[0].storage::<f32>().par_chunks(3 * self.values());
        let examples = examples.zip(shares.par_chunks(self.heads * self.scores()));
        let gradients = gradient.storage::<f32>().par_chunks(self.values());
        let mut output = vec![0.0; self.batch * 3 * self.values()];
        let outputs = output.par_chunks_mut(3 * self.values());
        outputs.zip(gradients).zip(examples).for_each_init(
            || [self.scores(), self.time * self.size()].map(|len| vec![0.0; len]),
            |buffers, ((output, gradient), (example, shares))| {
                for (head, shares) in shares.chunks_exact(self.scores()).enumerate() {
                    let of_head = self.head(example, head);
                    self.backward_head(head, of_head, (shares, gradient), buffers, output);
                }
            },
        );
        vec![wanted[0].then(|| tensor(output, [self.batch, self.time, 3 * self.width]))]
    }
}

impl Attention {
    /// Values of a head at a position.
    fn size(&self) -> usize {
        self.width / self.heads
    }

    /// Values of an example's output.
    fn values(&self) -> usize {
        self.time * self.width
    }

    /// Scores of an example's head.
    fn scores(&self) -> usize {
        self.time * self.time
    }

    fn multiply(&self, product: &mut [f32], left: Matrix, right: Matrix) {
        multiply_in(self.half, product, false, left, right, Threads::This);
    }

    fn square<'a>(&self, shares: &'a [f32]) -> Matrix<'a> {
        Matrix::new(shares, [self.time; 2])
    }

    fn head<'a>(&self, example: &'a [f32], head: usize) -> Head<'a> {
        let example = Matrix::new(example, [self.time, 3 * self.width]);
        [0, 1, 2].map(|part| {
            let start = part * self.width + head * self.size();
            example.columns(start..start + self.size())
        })
    }

    /// Copies `[time, size]` into the columns from `column` on of rows of `width` values.
    fn put(&self, values: &[f32], rows: &mut [f32], width: usize, column: usize) {
        let rows = rows.chunks_exact_mut(width);
        for (row, values) in rows.zip(values.chunks_exact(self.size())) {
            row[column..column + self.size()].copy_from_slice(values);
        }
    }

    /// From products of queries and keys to attention weights, in place.
    #[inline(always)]
    fn softmax(&self, scores: &mut [f32]) {
        let scale = self.scale();
        for (position, row) in scores.chunks_exact_mut(self.time).enumerate() {
            let (row, later) = row.split_at_mut(position + 1);
            later.fill(0.0);
            let largest = largest(row);
            for score in row.iter_mut() {
                *score = exp((*score - largest) * scale);
            }
            let total = sum(row, |share| share);
            row.iter_mut().for_each(|share| *share /= total);
        }
    }

    /// The factor of the products of queries and keys.
    fn scale(&self) -> f32 {
        1.0 / (self.size() as f32).sqrt()
    }

    fn backward_head(
        &self,
        head: usize,
        [queries, keys, values]: Head,
        (shares, gradient): (&[f32], &[f32]),
        [scores, part]: &mut [Vec<f32>; 2],
        output: &mut [f32],
    ) {
        let column = head * self.size();
        let gradient = Matrix::new(gradient, [self.time, self.width]);
        let gradient = gradient.columns(column..column + self.size());
        let mut put = |number: usize, left: Matrix, right: Matrix| {
            self.multiply(part, left, right);
            self.put(part, output, 3 * self.width, number * self.width + column);
        };
        put(2, self.square(shares).transposed(), gradient);
        self.multiply(scores, gradient, values.transposed());
        vectorized!(self.softmax_backward(shares, scores));
        let scores = self.square(scores);
        put(0, scores, keys);
        put(1, scores.transposed(), queries);
    }

    /// From the gradient of attention weights to that of products of queries and keys, in place.
    #[inline(always)]
    fn softmax_backward(&self, shares: &[f32], gradients: &mut [f32]) {
        let scale = self.scale();
        let rows = gradients.chunks_exact_mut(self.time);
        let rows = rows.zip(shares.chunks_exact(self.time));
        for (position, (gradients, shares)) in rows.enumerate() {
            let (gradients, later) = gradients.split_at_mut(position + 1);
            later.fill(0.0);
            let shares = &shares[..=position];
            let total = sum_of_pairs(gradients, shares, |gradient, share| gradient * share);
            for (gradient, share) in gradients.iter_mut().zip(shares) {
                *gradient = (*gradient - total) * share * scale;
            }
        }
    }
}
