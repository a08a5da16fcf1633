//! [`super::causal_attention()`] as one operation, which keeps no scores for its backward pass.

use std::array;

use burn::{
    backend::{DispatchKindConversion, DispatchTensor},
    tensor::{FloatDType, Tensor, module, ops::AttentionModuleOptions},
};

use super::shares;
use kiln_kernels::autodiff::operation::{Operation, OperationBackend, Primitive};

/// From queries, keys and values to the output, all `[batch, heads, time, size]`.
#[derive(Clone, Debug)]
pub struct Causal;

impl<B: OperationBackend> Operation<B> for Causal
where
    DispatchTensor: DispatchKindConversion<B>,
{
    /// The output.
    type Kept = Primitive<B>;

    fn forward(&self, inputs: &[Primitive<B>]) -> (Primitive<B>, Primitive<B>) {
        let output = primitive::<B>(fused(tensors::<B>(inputs)));
        (output.clone(), output)
    }

    fn backward(
        &self,
        inputs: &[Primitive<B>],
        output: Primitive<B>,
        gradient: Primitive<B>,
        wanted: &[bool],
    ) -> Vec<Option<Primitive<B>>> {
        let [output, gradient] = [output, gradient].map(Tensor::from_primitive::<B>);
        let gradients = gradients(tensors::<B>(inputs), output, gradient);
        let gradients = gradients.into_iter().zip(wanted);
        let wanted = gradients.map(|(one, wanted)| wanted.then(|| primitive::<B>(one)));
        wanted.collect()
    }
}

/// Burn's attention, whose kernel on GPUs keeps the scores in the memory of its multiprocessors.
fn fused([queries, keys, values]: [Tensor<4>; 3]) -> Tensor<4> {
    let options = AttentionModuleOptions {
        is_causal: true,
        ..AttentionModuleOptions::default()
    };
    module::attention(queries, keys, values, None, None, options)
}

/// The gradients of queries, keys and values from that of the output, all `[batch, heads, time, size]`.
/// Scores are computed again.
///
/// Source: T. Dao and others, FlashAttention, NeurIPS 2022, appendix B.2.
fn gradients(
    [queries, keys, values]: [Tensor<4>; 3],
    output: Tensor<4>,
    gradient: Tensor<4>,
) -> [Tensor<4>; 3] {
    let size = queries.dims()[3];
    let (dtype, scale) = (queries.dtype(), 1.0 / (size as f64).sqrt());
    let shares = shares(queries.clone(), keys.clone()); // [batch, heads, time, time]
    let of_values = shares
        .clone()
        .cast(dtype)
        .transpose()
        .matmul(gradient.clone());
    let of_shares = gradient.clone().matmul(values.transpose()); // [batch, heads, time, time]
    let products = gradient.cast(FloatDType::F32) * output.cast(FloatDType::F32);
    let of_rows = products.sum_dim(3); // [batch, heads, time, 1]
    let of_scores = shares * (of_shares.cast(FloatDType::F32) - of_rows) * scale;
    let of_scores = of_scores.cast(dtype); // [batch, heads, time, time]
    let of_keys = of_scores.clone().transpose().matmul(queries);
    [of_scores.matmul(keys), of_keys, of_values]
}

fn tensors<B: OperationBackend>(primitives: &[Primitive<B>]) -> [Tensor<4>; 3]
where
    DispatchTensor: DispatchKindConversion<B>,
{
    array::from_fn(|number| Tensor::from_primitive::<B>(primitives[number].clone()))
}

fn primitive<B: OperationBackend>(tensor: Tensor<4>) -> Primitive<B>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    let primitive = tensor.try_into_primitive::<B>();
    primitive.expect("a tensor of the backend of the inputs")
}

#[cfg(all(test, feature = "cpu-layers"))]
mod tests {
    use burn::{
        backend::Flex,
        tensor::{Device, Distribution, GradientCheckpointingStrategy},
    };

    use super::{
        super::{
            composed,
            tests::{all, error},
        },
        *,
    };
    use kiln_kernels::autodiff::operation::on_backend;

    /// As on a GPU.
    fn own(inputs: [Tensor<4>; 3]) -> Option<Tensor<4>> {
        let output = on_backend::<Flex, _, 3>(Causal, inputs.map(Tensor::into_dispatch));
        output.map(Tensor::from_dispatch)
    }

    #[test]
    fn output_and_gradients_are_those_of_the_composed_operations() {
        let device = Device::flex().autodiff();
        device.seed(3);
        for shape in [[1, 1, 1, 4], [2, 3, 7, 8], [1, 2, 65, 16]] {
            let inputs = [0; 3].map(|_| Tensor::random(shape, Distribution::Default, &device));
            let computed = all(|inputs| own(inputs).unwrap(), &inputs);
            let expected = all(|[q, k, v]| composed(q, k, v), &inputs);
            for (computed, expected) in computed.into_iter().zip(expected) {
                assert_eq!(computed.dims(), shape);
                let error = error(computed, expected);
                assert!(error < 1e-5, "{error} for {shape:?}");
            }
        }
    }

    #[test]
    fn nothing_is_recorded_without_autodiff() {
        let inputs =
            [0; 3].map(|_| Tensor::random([2, 3, 7, 8], Distribution::Default, &Device::flex()));
        let computed = own(inputs.clone()).unwrap();
        assert!(!computed.is_autodiff());
        let [queries, keys, values] = inputs;
        assert!(error(computed, composed(queries, keys, values)) < 1e-5);
    }

    #[test]
    fn gradient_checkpointing_is_left_to_burn() {
        let device = Device::flex().autodiff();
        let marked = Tensor::<4>::ones([1, 1, 2, 4], &device)
            .with_gradient_checkpointing_strategy(GradientCheckpointingStrategy::Balanced);
        assert!(own([0; 3].map(|_| marked.clone())).is_none());
    }
}
