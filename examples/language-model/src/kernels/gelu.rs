//! [`super::gelu`] on Burn's CPU backend.

use burn::{backend::flex::FlexTensor, tensor::Tensor};
use rayon::prelude::*;

use super::vectors::{normal, vectorized};
use crate::layers::operation::{self, Operation, tensor};

/// Values that a thread takes at a time.
const PIECE: usize = 1 << 13;

/// The unit of each value of `x`, or none where it is not for this module.
pub fn on_cpu(x: &Tensor<3>) -> Option<Tensor<3>> {
    operation::on_cpu(Gelu, [x])
}

#[derive(Clone, Copy, Debug)]
struct Gelu;

impl Operation<1> for Gelu {
    type Kept = ();

    fn forward(&self, [x]: [&FlexTensor; 1]) -> (FlexTensor, ()) {
        let mut output = x.storage::<f32>().to_vec();
        output.par_chunks_mut(PIECE).for_each(|values| {
            vectorized!(for value in values {
                *value *= normal(*value).0;
            });
        });
        (tensor(output, x.layout().shape().clone()), ())
    }

    fn backward(
        &self,
        [x]: [&FlexTensor; 1],
        (): (),
        mut gradient: FlexTensor,
        [wanted]: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        let gradients = gradient.storage_mut::<f32>().par_chunks_mut(PIECE);
        let pieces = gradients.zip(x.storage::<f32>().par_chunks(PIECE));
        pieces.for_each(|(gradients, values)| {
            vectorized!(for (gradient, value) in gradients.iter_mut().zip(values) {
                let (share, density) = normal(*value);
                *gradient *= share + value * density;
            });
        });
        [wanted.then_some(gradient)]
    }
}
