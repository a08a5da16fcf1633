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
        let values = x.storage::<f32>();
        let mut output = vec![0.0; values.len()];
        let pieces = output.par_chunks_mut(PIECE).zip(values.par_chunks(PIECE));
        pieces.for_each(|(output, values)| {
            vectorized(
                #[inline(always)]
                || {
                    for (output, value) in output.iter_mut().zip(values) {
                        *output = value * normal(*value).0;
                    }
                },
            );
        });
        (tensor(output, x.layout().shape().clone()), ())
    }

    fn backward(
        &self,
        [x]: [&FlexTensor; 1],
        (): &(),
        gradient: &FlexTensor,
        [wanted]: [bool; 1],
    ) -> [Option<FlexTensor>; 1] {
        if !wanted {
            return [None];
        }
        let (values, gradients) = (x.storage::<f32>(), gradient.storage::<f32>());
        let mut output = vec![0.0; values.len()];
        let pieces = output.par_chunks_mut(PIECE).zip(values.par_chunks(PIECE));
        let pieces = pieces.zip(gradients.par_chunks(PIECE));
        pieces.for_each(|((output, values), gradients)| {
            vectorized(
                #[inline(always)]
                || {
                    let places = output.iter_mut().zip(values).zip(gradients);
                    for ((output, value), gradient) in places {
                        let (share, density) = normal(*value);
                        *output = gradient * (share + value * density);
                    }
                },
            );
        });
        [Some(tensor(output, x.layout().shape().clone()))]
    }
}
