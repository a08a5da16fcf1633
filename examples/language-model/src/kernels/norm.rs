//! [`super::layer_norm`] on Burn's CPU backend.

use burn::{backend::flex::FlexTensor, nn::LayerNorm, tensor::Tensor};
use rayon::prelude::*;

use super::{
    EPSILON,
    vectors::{ROWS, sum, vectorized},
};
use crate::layers::operation::{self, Operation, bias_or_zeros, tensor};

/// The layer on `x`, or none where it is not for this module.
pub fn on_cpu(layer: &LayerNorm, x: &Tensor<3>) -> Option<Tensor<3>> {
    let [width] = layer.gamma.dims();
    let dims = x.dims();
    if dims[2] != width || dims.contains(&0) {
        return None;
    }
    let beta = bias_or_zeros(layer.beta.as_ref(), width, &x.device());
    operation::on_cpu(Norm { width }, [x, &layer.gamma.val(), &beta])
}

/// Rows of `width` values with mean 0 and variance 1, times gamma, plus beta.
#[derive(Clone, Copy, Debug)]
struct Norm {
    width: usize,
}

impl Operation<3> for Norm {
    /// Of each row, the mean, and 1 over the standard deviation.
    type Kept = Vec<[f32; 2]>;

    fn forward(&self, [x, gamma, beta]: [&FlexTensor; 3]) -> (FlexTensor, Self::Kept) {
        let values = x.storage::<f32>();
        let (gamma, beta) = (gamma.storage::<f32>(), beta.storage::<f32>());
        let mut output = vec![0.0; values.len()];
        let mut kept = vec![[0.0; 2]; values.len() / self.width];
        let part = ROWS * self.width;
        let parts = output.par_chunks_mut(part).zip(values.par_chunks(part));
        let parts = parts.zip(kept.par_chunks_mut(ROWS));
        parts.for_each(|((output, values), kept)| {
            vectorized(
                #[inline(always)]
                || self.forward_rows(values, [gamma, beta], output, kept),
            );
        });
        (tensor(output, x.layout().shape().clone()), kept)
    }

    fn backward(
        &self,
        [x, gamma, _]: [&FlexTensor; 3],
        kept: &Self::Kept,
        gradient: &FlexTensor,
        [of_x, of_gamma, of_beta]: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let (values, gradients) = (x.storage::<f32>(), gradient.storage::<f32>());
        let gamma = gamma.storage::<f32>();
        let mut x_gradient = vec![0.0; values.len()];
        let part = ROWS * self.width;
        let parts = x_gradient.par_chunks_mut(part).zip(kept.par_chunks(ROWS));
        let parts = parts.zip(values.par_chunks(part).zip(gradients.par_chunks(part)));
        let parts = parts.map(|((x_gradient, kept), (values, gradients))| {
            vectorized(
                #[inline(always)]
                || self.backward_rows([values, gradients, gamma], kept, x_gradient),
            )
        });
        let parts: Vec<[Vec<f32>; 2]> = parts.collect();
        let sums = parts.into_iter().reduce(|mut sums, part| {
            for (sums, part) in sums.iter_mut().zip(&part) {
                let places = sums.iter_mut().zip(part);
                places.for_each(|(sum, value)| *sum += value);
            }
            sums
        });
        let [gamma, beta] = sums.unwrap_or_default();
        [
            of_x.then(|| tensor(x_gradient, x.layout().shape().clone())),
            of_gamma.then(|| tensor(gamma, [self.width])),
            of_beta.then(|| tensor(beta, [self.width])),
        ]
    }
}

impl Norm {
    #[inline(always)]
    fn forward_rows(
        &self,
        values: &[f32],
        [gamma, beta]: [&[f32]; 2],
        output: &mut [f32],
        kept: &mut [[f32; 2]],
    ) {
        let rows = output.chunks_exact_mut(self.width);
        let rows = rows.zip(values.chunks_exact(self.width)).zip(kept);
        for ((output, row), kept) in rows {
            let mean = sum(row, |_, value| value) / self.width as f32;
            let squares = sum(row, |_, value| (value - mean) * (value - mean));
            let scale = 1.0 / (squares / self.width as f32 + EPSILON as f32).sqrt();
            *kept = [mean, scale];
            let places = output.iter_mut().zip(row).zip(gamma.iter().zip(beta));
            for ((output, value), (gamma, beta)) in places {
                *output = (value - mean) * scale * gamma + beta;
            }
        }
    }

    /// Gives the parts of the gradients of gamma and beta.
    #[inline(always)]
    fn backward_rows(
        &self,
        [values, gradients, gamma]: [&[f32]; 3],
        kept: &[[f32; 2]],
        x_gradient: &mut [f32],
    ) -> [Vec<f32>; 2] {
        let width = self.width;
        let mut of_gamma = vec![0.0; width];
        let mut of_beta = vec![0.0; width];
        let rows = values
            .chunks_exact(width)
            .zip(gradients.chunks_exact(width));
        let rows = rows.zip(x_gradient.chunks_exact_mut(width)).zip(kept);
        for (((row, gradients), x_gradient), [mean, scale]) in rows {
            // Of a row's normed values, `x_gradient` holds the gradient first.
            let normed = |value: f32| (value - mean) * scale;
            let places = x_gradient.iter_mut().zip(gradients.iter().zip(gamma));
            places.for_each(|(place, (gradient, gamma))| *place = gradient * gamma);
            let gradients_and_values = gradients.iter().zip(row);
            let sums = of_gamma.iter_mut().zip(&mut of_beta);
            for ((of_gamma, of_beta), (gradient, value)) in sums.zip(gradients_and_values) {
                *of_gamma += gradient * normed(*value);
                *of_beta += gradient;
            }
            let mean_gradient = sum(x_gradient, |_, gradient| gradient) / width as f32;
            let product = |place: usize, gradient: f32| gradient * normed(row[place]);
            let mean_product = sum(x_gradient, product) / width as f32;
            for (gradient, value) in x_gradient.iter_mut().zip(row) {
                *gradient = scale * (*gradient - mean_gradient - normed(*value) * mean_product);
            }
        }
        [of_gamma, of_beta]
    }
}
