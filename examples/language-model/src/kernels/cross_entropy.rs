//! [`super::cross_entropy`] on Burn's CPU backend.

use std::sync::Arc;

use burn::{
    backend::flex::FlexTensor,
    tensor::{Int, Tensor},
};
use rayon::prelude::*;

use super::vectors::{ROWS, exp, largest, sum, vectorized};
use crate::layers::operation::{self, Operation, tensor};

/// The losses, or none where they are not for this module.
///
/// # Panics
/// A label is no class.
pub fn on_cpu(logits: &Tensor<3>, labels: &Tensor<2, Int>) -> Option<Tensor<2>> {
    let [batch, time, classes] = logits.dims();
    if labels.dims() != [batch, time] || [batch, time, classes].contains(&0) {
        return None;
    }
    let labels = labels.clone();
    operation::on_cpu(CrossEntropy { classes, labels }, [logits])
}

#[derive(Clone, Debug)]
struct CrossEntropy {
    classes: usize,
    labels: Tensor<2, Int>,
}

/// What is kept of each row.
#[derive(Clone, Debug)]
struct Row {
    label: usize,
    /// The logarithm of the sum of the exponentials.
    sum: f32,
}

impl Operation<1> for CrossEntropy {
    type Kept = Arc<[Row]>;

    fn forward(&self, [logits]: [&FlexTensor; 1]) -> (FlexTensor, Self::Kept) {
        let values = logits.storage::<f32>();
        let parts = values.par_chunks(ROWS * self.classes);
        let sums = parts.flat_map_iter(|part| {
            vectorized(
                #[inline(always)]
                || {
                    let rows = part.chunks_exact(self.classes).map(log_sum_exp);
                    rows.collect::<Vec<_>>()
                },
            )
        });
        let sums: Vec<f32> = sums.collect();
        // Read here and not before: on another device it would wait for the step.
        let labels = self.labels.to_data();
        let rows = labels.iter::<i64>().zip(sums).map(|(label, sum)| Row {
            label: label as usize,
            sum,
        });
        let rows: Arc<[Row]> = rows.collect();
        let losses = values.chunks_exact(self.classes).zip(&*rows);
        let losses = losses.map(|(values, row)| row.sum - values[row.label]);
        (tensor(losses.collect(), self.labels.dims()), rows)
    }

    fn backward(
        &self,
        [logits]: [&FlexTensor; 1],
        rows: &Self::Kept,
        gradient: &FlexTensor,
        [wanted]: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        if !wanted {
            return [None];
        }
        let (values, gradients) = (logits.storage::<f32>(), gradient.storage::<f32>());
        let mut output = vec![0.0; values.len()];
        let part = ROWS * self.classes;
        let parts = output.par_chunks_mut(part).zip(values.par_chunks(part));
        let parts = parts.zip(rows.par_chunks(ROWS).zip(gradients.par_chunks(ROWS)));
        parts.for_each(|((output, values), (rows, gradients))| {
            vectorized(
                #[inline(always)]
                || self.backward_rows(values, (rows, gradients), output),
            );
        });
        [Some(tensor(output, logits.layout().shape().clone()))]
    }
}

impl CrossEntropy {
    #[inline(always)]
    fn backward_rows(
        &self,
        values: &[f32],
        (rows, gradients): (&[Row], &[f32]),
        output: &mut [f32],
    ) {
        let outputs = output.chunks_exact_mut(self.classes);
        let outputs = outputs.zip(values.chunks_exact(self.classes));
        for ((output, values), (row, gradient)) in outputs.zip(rows.iter().zip(gradients)) {
            for (output, value) in output.iter_mut().zip(values) {
                *output = gradient * exp(value - row.sum);
            }
            output[row.label] -= gradient;
        }
    }
}

#[inline(always)]
fn log_sum_exp(row: &[f32]) -> f32 {
    let largest = largest(row);
    largest + sum(row, |_, value| exp(value - largest)).ln()
}
