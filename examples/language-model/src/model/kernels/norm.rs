//! [`super::layer_norm`] on Burn's CPU backend.

use burn::{
    backend::{Flex, flex::FlexTensor},
    nn::LayerNorm,
    tensor::Tensor,
};
use kiln_engine::{
    comm::add,
    layers::operation::{self, Operation, tensor},
};
use rayon::prelude::*;

use super::{
    EPSILON,
    rows::{ROWS, sum, sum_of_pairs, vectorized},
};

/// The layer on `x`, or none where it is not for this module.
pub fn on_cpu(layer: &LayerNorm, x: &Tensor<3>) -> Option<Tensor<3>> {
    let [width] = layer.gamma.dims();
    let dims = x.dims();
    let is_ours = dims[2] == width && !dims.contains(&0);
    let beta = layer.beta.as_ref().filter(|_| is_ours)?.val();
    operation::on_cpu(Norm { width }, [x, &layer.gamma.val(), &beta])
}

/// Rows of `width` values with mean 0 and variance 1, times gamma, plus beta.
#[derive(Clone, Copy, Debug)]
struct Norm {
    width: usize,
}

/// What is kept of each row.
#[derive(Clone, Copy, Debug, Default)]
struct Row {
    mean: f32,
    /// 1 over the standard deviation.
    scale: f32,
}

impl Row {
    #[inline(always)]
    fn normed(self, value: f32) -> f32 {
        (value - self.mean) * self.scale
    }
}

impl Operation<Flex, 3> for Norm {
    type Kept = Vec<Row>;

    fn forward(&self, [x, gamma, beta]: [&FlexTensor; 3]) -> (FlexTensor, Self::Kept) {
        let values = x.storage::<f32>();
        let mut output = vec![0.0; values.len()];
        let mut rows = vec![Row::default(); values.len() / self.width];
        let part = ROWS * self.width;
        let parts = output.par_chunks_mut(part).zip(values.par_chunks(part));
        let parts = parts.zip(rows.par_chunks_mut(ROWS));
        parts.for_each(|((output, values), rows)| {
            let parameters = [gamma.storage(), beta.storage()];
            vectorized!(self.forward_rows(values, parameters, output, rows));
        });
        (tensor(output, x.layout().shape().clone()), rows)
    }

    fn backward(
        &self,
        [x, gamma, _]: [&FlexTensor; 3],
        rows: Self::Kept,
        mut gradient: FlexTensor,
        [of_x, of_gamma, of_beta]: [bool; 3],
    ) -> [Option<FlexTensor>; 3] {
        let part = ROWS * self.width;
        let parts = gradient.storage_mut::<f32>().par_chunks_mut(part);
        let parts = parts.zip(
            x.storage::<f32>()
                .par_chunks(part)
                .zip(rows.par_chunks(ROWS)),
        );
        let sums = parts.map(|(gradients, (values, rows))| {
            let mut sums = [(); 2].map(|()| vec![0.0; self.width]);
            vectorized!({
                self.add_parameter_gradients(values, gradients, rows, &mut sums);
                self.backward_rows(values, gamma.storage(), gradients, rows);
            });
            sums
        });
        let sums = sums.collect::<Vec<_>>().into_iter();
        let sums = sums.reduce(|mut sums, part| {
            sums.iter_mut()
                .zip(&part)
                .for_each(|(sum, part)| add(sum, part));
            sums
        });
        let [gamma_gradient, beta_gradient] = sums.expect("a batch has rows");
        [
            of_x.then_some(gradient),
            of_gamma.then(|| tensor(gamma_gradient, [self.width])),
            of_beta.then(|| tensor(beta_gradient, [self.width])),
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
        rows: &mut [Row],
    ) {
        let outputs = output.chunks_exact_mut(self.width);
        let outputs = outputs.zip(values.chunks_exact(self.width));
        for ((output, values), row) in outputs.zip(rows) {
            let mean = sum(values, |value| value) / self.width as f32;
            let squares = sum(values, |value| (value - mean) * (value - mean));
            let scale = 1.0 / (squares / self.width as f32 + EPSILON as f32).sqrt();
            *row = Row { mean, scale };
            let places = output.iter_mut().zip(values).zip(gamma.iter().zip(beta));
            for ((output, value), (gamma, beta)) in places {
                *output = row.normed(*value) * gamma + beta;
            }
        }
    }

    /// Adds to the gradients of gamma and beta.
    #[inline(always)]
    fn add_parameter_gradients(
        &self,
        values: &[f32],
        gradients: &[f32],
        rows: &[Row],
        [of_gamma, of_beta]: &mut [Vec<f32>; 2],
    ) {
        let pairs = values
            .chunks_exact(self.width)
            .zip(gradients.chunks_exact(self.width));
        for ((values, gradients), row) in pairs.zip(rows) {
            let sums = of_gamma.iter_mut().zip(of_beta.iter_mut());
            for ((of_gamma, of_beta), (value, gradient)) in sums.zip(values.iter().zip(gradients)) {
                *of_gamma += gradient * row.normed(*value);
                *of_beta += gradient;
            }
        }
    }

    /// From the gradients of the output to those of `values`, in place.
    #[inline(always)]
    fn backward_rows(&self, values: &[f32], gamma: &[f32], gradients: &mut [f32], rows: &[Row]) {
        let width = self.width as f32;
        let pairs = gradients
            .chunks_exact_mut(self.width)
            .zip(values.chunks_exact(self.width));
        for ((gradients, values), row) in pairs.zip(rows) {
            // Those of the values that were normed.
            for (gradient, gamma) in gradients.iter_mut().zip(gamma) {
                *gradient *= gamma;
            }
            let mean = sum(gradients, |gradient| gradient) / width;
            let product = |gradient: f32, value: f32| gradient * row.normed(value);
            let mean_product = sum_of_pairs(gradients, values, product) / width;
            for (gradient, value) in gradients.iter_mut().zip(values) {
                *gradient = row.scale * (*gradient - mean - row.normed(*value) * mean_product);
            }
        }
    }
}
