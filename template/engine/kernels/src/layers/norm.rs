//! Layer norm.

use burn::{
    backend::{DispatchTensor, Flex, flex::FlexTensor},
    module::{Content, DisplaySettings, ModuleDisplay},
    nn::LayerNorm,
    tensor::Tensor,
};
use rayon::prelude::*;

use super::rows::{ROWS, sum, sum_of_pairs};
use crate::{
    autodiff::operation::{self, Operation, tensor},
    elementwise::add_inline as add,
    vectors::vectorized,
};

/// The output of the layer; `None` if unsupported: another device or type, gradient checkpointing, or shapes
/// that do not match, which Burn's layer reports.
pub fn on_cpu<const D: usize>(layer: &LayerNorm, x: &Tensor<D>) -> Option<Tensor<D>> {
    output(layer, &x.dims(), x.clone().into_dispatch()).map(Tensor::from_dispatch)
}

/// As [`on_cpu`], for an input of dimensions `dims`.
fn output(layer: &LayerNorm, dims: &[usize], x: DispatchTensor) -> Option<DispatchTensor> {
    let [width] = layer.gamma.dims();
    if dims.last() != Some(&width) || dims.contains(&0) {
        return None;
    }
    let epsilon = epsilon(layer)? as f32;
    let (norm, gamma) = (Norm { width, epsilon }, layer.gamma.val().into_dispatch());
    match &layer.beta {
        Some(beta) => operation::on_cpu(norm, [x, gamma, beta.val().into_dispatch()]),
        None => operation::on_cpu(norm, [x, gamma]),
    }
}

/// The epsilon of a layer, a private field that Burn only displays, to all digits.
pub fn epsilon(layer: &LayerNorm) -> Option<f64> {
    let content = layer.custom_content(Content::new(DisplaySettings::new()))?;
    let mut attributes = content.attributes.into_iter();
    let epsilon = attributes.find(|attribute| attribute.name == "epsilon")?;
    epsilon.value.parse().ok()
}

/// Rows of `width` values with mean 0 and variance 1, times gamma, plus beta, if the layer has one.
#[derive(Clone, Copy, Debug)]
struct Norm {
    width: usize,
    /// Added to the variance.
    epsilon: f32,
}

/// The state of a row.
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

impl Operation<Flex> for Norm {
    type Kept = Vec<Row>;

    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Self::Kept) {
        let (x, gamma) = (&inputs[0], &inputs[1]);
        let zeros = vec![0.0; self.width];
        let beta = inputs.get(2).map_or(&zeros[..], |beta| beta.storage());
        let parameters = [gamma.storage(), beta];
        let values = x.storage::<f32>();
        let mut output = vec![0.0; values.len()];
        let mut rows = vec![Row::default(); values.len() / self.width];
        let part = ROWS * self.width;
        let parts = output.par_chunks_mut(part).zip(values.par_chunks(part));
        let parts = parts.zip(rows.par_chunks_mut(ROWS));
        parts.for_each(|((output, values), rows)| {
            vectorized!(self.forward_rows(values, parameters, output, rows));
        });
        (tensor(output, x.layout().shape().clone()), rows)
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        rows: Self::Kept,
        mut gradient: FlexTensor,
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let (x, gamma) = (&inputs[0], inputs[1].storage());
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
                self.backward_rows(values, gamma, gradients, rows);
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
        let of_width = |values| tensor(values, [self.width]);
        let gradients = [gradient, of_width(gamma_gradient), of_width(beta_gradient)];
        let gradients = gradients.into_iter().zip(wanted);
        let wanted = gradients.map(|(one, wanted)| wanted.then_some(one));
        wanted.collect()
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
            let scale = 1.0 / (squares / self.width as f32 + self.epsilon).sqrt();
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
            // The gradients of the normalized values.
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
