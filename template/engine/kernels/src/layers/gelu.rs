//! GELU.

use burn::{
    backend::{DispatchTensor, Flex, flex::FlexTensor},
    tensor::Tensor,
};
use rayon::prelude::*;

use crate::{
    autodiff::operation::{self, Operation, tensor},
    vectors::{normal, vectorized},
};

/// Values per work item of a thread.
const PIECE: usize = 1 << 13;

/// GELU of `x`; `None` if unsupported.
pub fn on_cpu<const D: usize>(x: &Tensor<D>) -> Option<Tensor<D>> {
    output(x.clone().into_dispatch()).map(Tensor::from_dispatch)
}

/// As [`on_cpu`].
fn output(x: DispatchTensor) -> Option<DispatchTensor> {
    operation::on_cpu(Gelu, [x])
}

#[derive(Clone, Copy, Debug)]
struct Gelu;

impl Operation<Flex> for Gelu {
    type Kept = ();

    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, ()) {
        let x = &inputs[0];
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
        inputs: &[FlexTensor],
        (): (),
        mut gradient: FlexTensor,
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let gradients = gradient.storage_mut::<f32>().par_chunks_mut(PIECE);
        let pieces = gradients.zip(inputs[0].storage::<f32>().par_chunks(PIECE));
        pieces.for_each(|(gradients, values)| {
            vectorized!(for (gradient, value) in gradients.iter_mut().zip(values) {
                let (share, density) = normal(*value);
                *gradient *= share + value * density;
            });
        });
        vec![wanted[0].then_some(gradient)]
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::{
        DType, Device, GradientCheckpointingStrategy, TensorData, Tolerance, activation,
    };
    use rayon::ThreadPoolBuilder;

    use super::*;

    /// Numbers of values around vector and piece boundaries.
    const COUNTS: [usize; 6] = [0, 1, 17, PIECE - 1, PIECE, 2 * PIECE + 5];

    /// Distinct values between `-size` and `size`.
    fn values(count: usize, size: f32) -> Tensor<1> {
        let values = (0..count).map(|place| (place * 7_919 % 2_003) as f32 / 1_001.0 - 1.0);
        let values: Vec<f32> = values.map(|value| value * size).collect();
        Tensor::from_data(TensorData::from(&values[..]), &Device::flex().autodiff())
    }

    /// The output, and the gradient of `x` for a non-constant gradient of the output.
    fn results(x: &Tensor<1>, gelu: fn(Tensor<1>) -> Tensor<1>) -> [TensorData; 2] {
        let x = x.clone().detach().require_grad();
        let units = gelu(x.clone());
        let factors = values(x.dims()[0], 1.0);
        let gradients = (units.clone() * factors).sum().backward();
        [units.into_data(), x.grad(&gradients).unwrap().into_data()]
    }

    fn own(x: Tensor<1>) -> Tensor<1> {
        on_cpu(&x).expect("values for this module")
    }

    #[test]
    fn units_and_gradients_are_those_of_burn() {
        for count in COUNTS {
            for size in [1.0, 3.0, 6.0, 30.0, 1e4, 1e30] {
                let x = values(count, size);
                let (own, of_burn) = (results(&x, own), results(&x, activation::gelu));
                for (own, of_burn) in own.iter().zip(&of_burn) {
                    own.assert_approx_eq(of_burn, Tolerance::<f32>::rel_abs(1e-4, 1e-5));
                }
            }
        }
    }

    #[test]
    fn bits_depend_on_neither_threads_nor_recording() {
        let x = values(3 * PIECE, 3.0);
        let on = |threads| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build();
            pool.unwrap().install(|| results(&x, own))
        };
        assert_eq!(on(1), on(3));
        assert_eq!(own(x.clone().inner()).into_data(), on(1)[0]);
    }

    #[test]
    fn what_is_not_a_number_stays() {
        let x = values(20, 3.0).slice_fill(7..8, f32::NAN);
        for values in results(&x, own) {
            let numbers: Vec<bool> = values.iter::<f32>().map(f32::is_finite).collect();
            let expected: Vec<bool> = (0..20).map(|place| place != 7).collect();
            assert_eq!(numbers, expected);
        }
    }

    #[test]
    fn other_types_and_what_is_computed_again_are_left_to_burn() {
        let x = values(20, 3.0);
        assert!(on_cpu(&x.clone().cast(DType::F64)).is_none());
        let x = x.with_gradient_checkpointing_strategy(GradientCheckpointingStrategy::Balanced);
        assert!(on_cpu(&x).is_none());
    }
}
