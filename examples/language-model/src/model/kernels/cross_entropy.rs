//! [`super::cross_entropy`] on Burn's CPU backend.

use burn::{
    backend::{Flex, flex::FlexTensor},
    tensor::{Int, Tensor},
};
use kiln_engine::{
    layers::operation::{self, Operation, tensor},
    vectors::exp,
};
use rayon::prelude::*;

use super::rows::{ROWS, largest, sum, vectorized};

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
#[derive(Clone, Copy, Debug)]
struct Row {
    label: usize,
    largest: f32,
    /// The logarithm of the sum of the exponentials of what the values are below the largest.
    log_sum: f32,
}

impl Operation<Flex, 1> for CrossEntropy {
    type Kept = Vec<Row>;

    fn forward(&self, [logits]: [&FlexTensor; 1]) -> (FlexTensor, Self::Kept) {
        let values = logits.storage::<f32>();
        // Read here and not before: on another device it would wait for the step.
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
        (tensor(losses, self.labels.dims()), rows)
    }

    fn backward(
        &self,
        [logits]: [&FlexTensor; 1],
        rows: Self::Kept,
        gradient: FlexTensor,
        [wanted]: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let mut output = logits.storage::<f32>().to_vec();
        let parts = output.par_chunks_mut(ROWS * self.classes);
        let gradients = gradient.storage::<f32>().par_chunks(ROWS);
        let parts = parts.zip(rows.par_chunks(ROWS).zip(gradients));
        parts.for_each(|(values, (rows, gradients))| {
            vectorized!(self.backward_rows(values, rows, gradients));
        });
        [wanted.then(|| tensor(output, logits.layout().shape().clone()))]
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

    /// From logits to their gradients, in place.
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
