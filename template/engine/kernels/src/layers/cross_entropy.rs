//! The cross-entropy of labels.

use burn::{
    backend::{DispatchTensor, Flex, flex::FlexTensor},
    tensor::{Int, Shape, Tensor},
};
use rayon::prelude::*;

use super::rows::{ROWS, largest, sum};
use crate::{
    autodiff::operation::{self, Operation, tensor},
    vectors::{exp, vectorized},
};

/// The losses; `None` if unsupported: another device or type, gradient checkpointing, or shapes that do not
/// match.
///
/// # Panics
/// A label is not that of a class.
pub fn on_cpu<const D: usize, const E: usize>(
    logits: &Tensor<D>,
    labels: &Tensor<E, Int>,
) -> Option<Tensor<E>> {
    let dims = logits.dims();
    let (classes, observations) = dims.split_last()?;
    if labels.dims() != observations || dims.contains(&0) {
        return None;
    }
    let cross_entropy = CrossEntropy {
        classes: *classes,
        labels: labels.clone().reshape([-1]),
        shape: labels.shape(),
    };
    let losses = cross_entropy.output(logits.clone().into_dispatch());
    losses.map(Tensor::from_dispatch)
}

/// From `[.., classes]` to `[..]`, the shape of the labels.
#[derive(Clone, Debug)]
struct CrossEntropy {
    classes: usize,
    /// `[rows]`.
    labels: Tensor<1, Int>,
    shape: Shape,
}

/// The state of a row of logits.
#[derive(Clone, Copy, Debug)]
struct Row {
    label: usize,
    largest: f32,
    /// The logarithm of the sum of `exp(value - largest)`.
    log_sum: f32,
}

impl CrossEntropy {
    fn output(self, logits: DispatchTensor) -> Option<DispatchTensor> {
        operation::on_cpu(self, [logits])
    }
}

impl Operation<Flex> for CrossEntropy {
    type Kept = Vec<Row>;

    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Self::Kept) {
        let values = inputs[0].storage::<f32>();
        #[allow(clippy::disallowed_methods, reason = "a CPU does not wait")]
        let labels = self.labels.to_data();
        let rows = labels.iter::<i64>().map(|label| Row {
            label: label as usize,
            largest: 0.0,
            log_sum: 0.0,
        });
        let mut rows: Vec<Row> = rows.collect();
        let mut losses = vec![0.0; rows.len()];
        let parts = losses.par_chunks_mut(ROWS).zip(rows.par_chunks_mut(ROWS));
        let parts = parts.zip(values.par_chunks(ROWS * self.classes));
        parts.for_each(|((losses, rows), values)| {
            vectorized!(self.forward_rows(values, losses, rows));
        });
        (tensor(losses, self.shape.clone()), rows)
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        rows: Self::Kept,
        gradient: FlexTensor,
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let logits = &inputs[0];
        let mut output = logits.storage::<f32>().to_vec();
        let parts = output.par_chunks_mut(ROWS * self.classes);
        let gradients = gradient.storage::<f32>().par_chunks(ROWS);
        let parts = parts.zip(rows.par_chunks(ROWS).zip(gradients));
        parts.for_each(|(values, (rows, gradients))| {
            vectorized!(self.backward_rows(values, rows, gradients));
        });
        vec![wanted[0].then(|| tensor(output, logits.layout().shape().clone()))]
    }
}

impl CrossEntropy {
    #[inline(always)]
    fn forward_rows(&self, values: &[f32], losses: &mut [f32], rows: &mut [Row]) {
        let all = values.chunks_exact(self.classes).zip(losses).zip(rows);
        for ((values, loss), row) in all {
            row.largest = largest(values);
            row.log_sum = sum(values, |value| exp(value - row.largest)).ln();
            *loss = row.largest - values[row.label] + row.log_sum;
        }
    }

    /// From logits to their gradients, in place: softmax minus one-hot, times the gradient of the loss.
    #[inline(always)]
    fn backward_rows(&self, values: &mut [f32], rows: &[Row], gradients: &[f32]) {
        let all = values
            .chunks_exact_mut(self.classes)
            .zip(rows)
            .zip(gradients);
        for ((values, row), gradient) in all {
            for value in values.iter_mut() {
                *value = gradient * exp(*value - row.largest - row.log_sum);
            }
            values[row.label] -= gradient;
        }
    }
}
