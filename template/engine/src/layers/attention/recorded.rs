//! [`super::causal_attention()`] as one operation, which keeps no scores for its backward pass.

use burn::{
    backend::{
        Autodiff, Backend, DispatchKindConversion, DispatchTensor,
        autodiff::{
            checkpoint::{base::Checkpointer, strategy::NoCheckpointing},
            grads::Gradients,
            ops::{Backward, Ops, OpsKind},
        },
    },
    tensor::{
        FloatDType, GradientCheckpointingStrategy, Tensor, module, ops::AttentionModuleOptions,
    },
};

use super::shares;
#[cfg(feature = "gpu")]
use crate::replica::is_cpu;

/// Attention on a GPU; `None` on the CPU and under gradient checkpointing.
#[cfg(feature = "gpu")]
pub fn on_gpu(inputs: [&Tensor<4>; 3]) -> Option<Tensor<4>> {
    match inputs[0].is_autodiff() {
        true => recorded::<burn::backend::Cube>(inputs),
        false => {
            let is_gpu = !is_cpu(&[inputs[0].device()]);
            is_gpu.then(|| fused(inputs.map(Tensor::clone)))
        }
    }
}

/// Attention on the backend `B` with a backward pass of its own; `None` on another backend, without autodiff,
/// or under gradient checkpointing.
fn recorded<B: Backend>(inputs: [&Tensor<4>; 3]) -> Option<Tensor<4>>
where
    DispatchTensor: DispatchKindConversion<B> + DispatchKindConversion<Autodiff<B>>,
{
    let strategy = inputs[0].gradient_checkpointing_strategy();
    if strategy != Some(GradientCheckpointingStrategy::Disabled) {
        return None;
    }
    let [queries, keys, values] = inputs.map(|input| {
        let input = input.clone().try_into_primitive::<Autodiff<B>>();
        input.ok()
    });
    let inputs = [queries?, keys?, values?];
    let nodes = inputs.each_ref().map(|input| input.node());
    let [queries, keys, values] = inputs.map(|input| input.into_primitive());
    let output = fused([&queries, &keys, &values].map(|one| plain::<B>(one.clone())));
    let output = primitive::<B>(output);
    let prepared = Causal.prepare::<NoCheckpointing>(nodes);
    let output = match prepared.compute_bound().stateful() {
        OpsKind::Tracked(prepared) => {
            prepared.finish([queries, keys, values, output.clone()], output)
        }
        OpsKind::UnTracked(prepared) => prepared.finish(output),
    };
    Some(Tensor::from_primitive::<Autodiff<B>>(output))
}

/// Burn's attention, whose kernel on GPUs keeps the scores in the memory of its multiprocessors.
fn fused([queries, keys, values]: [Tensor<4>; 3]) -> Tensor<4> {
    let options = AttentionModuleOptions {
        is_causal: true,
        ..AttentionModuleOptions::default()
    };
    module::attention(queries, keys, values, None, None, options)
}

#[derive(Clone, Debug)]
struct Causal;

impl<B: Backend> Backward<B, 3> for Causal
where
    DispatchTensor: DispatchKindConversion<B>,
{
    /// Queries, keys, values and output.
    type State = [B::FloatTensorPrimitive; 4];

    fn backward(self, ops: Ops<Self::State, 3>, recorded: &mut Gradients, _: &mut Checkpointer) {
        let gradient = plain::<B>(recorded.consume::<B>(&ops.node));
        let gradients = gradients(ops.state.map(plain::<B>), gradient);
        for (node, gradient) in ops.parents.into_iter().zip(gradients) {
            if let Some(node) = node {
                recorded.register::<B>(node.id, primitive::<B>(gradient));
            }
        }
    }
}

/// The gradients of queries, keys and values from that of the output, all `[batch, heads, time, size]`. Scores
/// are computed again.
///
/// Source: T. Dao and others, FlashAttention, NeurIPS 2022, appendix B.2.
fn gradients(
    [queries, keys, values, output]: [Tensor<4>; 4],
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

fn plain<B: Backend>(primitive: B::FloatTensorPrimitive) -> Tensor<4>
where
    DispatchTensor: DispatchKindConversion<B>,
{
    Tensor::from_primitive::<B>(primitive)
}

fn primitive<B: Backend>(tensor: Tensor<4>) -> B::FloatTensorPrimitive
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
        tensor::{Device, Distribution},
    };

    use super::{super::composed, *};

    /// The output and the gradients of the inputs for a loss that weights all values differently.
    fn all(
        attend: impl Fn([Tensor<4>; 3]) -> Tensor<4>,
        inputs: &[Tensor<4>; 3],
    ) -> Vec<Tensor<4>> {
        let inputs = inputs.clone().map(Tensor::require_grad);
        let output = attend(inputs.clone());
        let weights = output.clone().inner().cos(); // [batch, heads, time, size]
        let loss = output.clone() * Tensor::from_inner(weights);
        let gradients = loss.sum().backward();
        let of_inputs = inputs.iter().map(|input| input.grad(&gradients).unwrap());
        [output.inner()].into_iter().chain(of_inputs).collect()
    }

    #[test]
    fn output_and_gradients_are_those_of_the_composed_operations() {
        let device = Device::flex().autodiff();
        device.seed(3);
        for shape in [[1, 1, 1, 4], [2, 3, 7, 8], [1, 2, 65, 16]] {
            let inputs = [0; 3].map(|_| Tensor::random(shape, Distribution::Default, &device));
            let own = all(|[q, k, v]| recorded::<Flex>([&q, &k, &v]).unwrap(), &inputs);
            for (own, expected) in own
                .into_iter()
                .zip(all(|[q, k, v]| composed(q, k, v), &inputs))
            {
                assert_eq!(own.dims(), shape);
                let error: f32 = (own - expected).abs().max().into_scalar();
                assert!(error < 1e-5, "{error} for {shape:?}");
            }
        }
    }

    #[test]
    fn what_is_not_recorded_is_left_to_burn() {
        let plain = Tensor::<4>::ones([1, 1, 2, 4], &Device::flex());
        assert!(recorded::<Flex>([&plain, &plain, &plain]).is_none());
        let device = Device::flex().autodiff();
        let marked = Tensor::<4>::ones([1, 1, 2, 4], &device)
            .with_gradient_checkpointing_strategy(GradientCheckpointingStrategy::Balanced);
        assert!(recorded::<Flex>([&marked, &marked, &marked]).is_none());
    }
}
