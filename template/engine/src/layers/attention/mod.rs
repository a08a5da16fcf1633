//! Causal attention, by heads or of queries, keys and values side by side.

#[cfg(any(feature = "gpu", all(test, feature = "cpu-layers")))]
mod causal;

#[cfg(feature = "gpu")]
use burn::backend::Cube;
use burn::tensor::{Bool, Device, FloatDType, Tensor, activation::softmax};

#[cfg(feature = "gpu")]
use kiln_kernels::autodiff::operation::on_backend;

#[cfg(feature = "gpu")]
use self::causal::Causal;
use crate::{anomalies::Watch, flops, precision};

/// Scaled dot-product attention of each position to itself and those before it: from queries, keys and values
/// `[batch, heads, time, size]` to the same shape.
///
/// On GPUs, Burn's fused kernel, which does not write the scores `[batch, heads, time, time]` to memory; the
/// backward pass computes them again. On the CPU, where [`causal_self_attention`] is faster, and under gradient
/// checkpointing, separate operations, recorded by autodiff. Softmax in 32 bits, whatever the type of the
/// inputs; products of 32 bits in the [`precision`] of this thread.
///
/// Source: A. Vaswani and others, Attention is all you need, 2017; T. Dao and others, FlashAttention, 2022.
///
/// # Panics
/// The shapes differ.
pub fn causal_attention(queries: Tensor<4>, keys: Tensor<4>, values: Tensor<4>) -> Tensor<4> {
    flops::attention(&queries, &keys, &values);
    let watch = Watch::begin("causal_attention", None);
    let [queries, keys, values] = [queries, keys, values].map(|x| watch.input(x));
    watch.output(attend(queries, keys, values))
}

/// [`causal_attention`] of each position to its own sequence, from the output of one linear layer: queries, keys
/// and values, in this order and each of `heads` heads, side by side in `[batch, time, 3 * width]`, to `[batch,
/// time, width]`. A head has `width / heads` adjacent values.
///
/// On the CPU with the feature `cpu-layers`, in `f32`, one kernel reads all three where they are, and only
/// attention weights are kept for the backward pass. Otherwise, and under gradient checkpointing, this is
/// [`causal_attention`] of their heads. Products are in the [`precision`] of this thread.
///
/// Source: as [`causal_attention`]; the order is that of `in_proj_weight` of `torch.nn.MultiheadAttention`.
///
/// # Panics
/// `3 * heads` does not divide the last dimension.
pub fn causal_self_attention(all: Tensor<3>, heads: usize) -> Tensor<3> {
    let values = all.dims()[2];
    assert!(
        heads > 0 && values.is_multiple_of(3 * heads),
        "{values} values are not queries, keys and values of {heads} heads"
    );
    flops::self_attention(&all);
    let watch = Watch::begin("causal_self_attention", None);
    let all = watch.input(all);
    #[cfg(feature = "cpu-layers")]
    if let Some(output) = on_cpu(&all, heads) {
        return watch.output(output);
    }
    watch.output(attend_by_heads(all, heads))
}

/// By the kernel of the CPU; `None` if unsupported. `3 * heads` divides the last dimension.
#[cfg(feature = "cpu-layers")]
pub(super) fn on_cpu(all: &Tensor<3>, heads: usize) -> Option<Tensor<3>> {
    precision::scale_gradients([all.clone()], |[all]| {
        kiln_kernels::layers::attention::on_cpu(&all, heads, precision::active())
    })
}

/// As [`causal_self_attention`], by [`attend`].
pub(super) fn attend_by_heads(all: Tensor<3>, heads: usize) -> Tensor<3> {
    let [batch, time, values] = all.dims();
    let (width, size) = (values / 3, values / 3 / heads);
    let part = |number| {
        let part = all.clone().narrow(2, number * width, width); // [batch, time, width]
        part.reshape([batch, time, heads, size]).swap_dims(1, 2) // [batch, heads, time, size]
    };
    let output = attend(part(0), part(1), part(2)); // [batch, heads, time, size]
    output.swap_dims(1, 2).reshape([batch, time, width])
}

/// As [`causal_attention`], on all devices.
fn attend(queries: Tensor<4>, keys: Tensor<4>, values: Tensor<4>) -> Tensor<4> {
    #[cfg(feature = "gpu")]
    if let Some(output) = on_gpu([&queries, &keys, &values]) {
        return output;
    }
    composed(queries, keys, values)
}

/// The output of the fused kernel; `None` on the CPU and under gradient checkpointing.
#[cfg(feature = "gpu")]
fn on_gpu(inputs: [&Tensor<4>; 3]) -> Option<Tensor<4>> {
    let cast = precision::Cast::of(inputs[0]);
    precision::scale_gradients(inputs.map(Tensor::clone), |inputs| {
        let inputs = inputs.map(|input| cast.map_or(input.clone(), |cast| cast.enter(input)));
        let output = on_backend::<Cube, _, 3>(Causal, inputs.map(Tensor::into_dispatch))?;
        let output = Tensor::from_dispatch(output);
        Some(cast.map_or(output.clone(), |cast| cast.leave(output)))
    })
}

fn composed(queries: Tensor<4>, keys: Tensor<4>, values: Tensor<4>) -> Tensor<4> {
    let dtype = values.dtype();
    let shares = shares(queries, keys); // [batch, heads, time, time]
    precision::product(shares.cast(dtype), values)
}

/// The shares of keys in the output of each query, `[batch, heads, time, time]`, in 32 bits.
fn shares(queries: Tensor<4>, keys: Tensor<4>) -> Tensor<4> {
    let [_, _, time, size] = queries.dims();
    let later = later(time, &queries.device());
    let scores = precision::product(queries, keys.transpose()); // [batch, heads, time, time]
    // The softmax adds up many numbers.
    let scores = scores.cast(FloatDType::F32) / (size as f64).sqrt();
    softmax(scores.mask_fill(later, f32::NEG_INFINITY), 3)
}

/// True where a row's position would look at a later one, `[1, 1, time, time]`.
fn later(time: usize, device: &Device) -> Tensor<4, Bool> {
    let device = device.clone().without_autodiff();
    // In Burn, this is false in and below the diagonal.
    Tensor::<2, Bool>::tril_mask([time, time], 0, &device).unsqueeze()
}

#[cfg(test)]
mod tests {
    use burn::tensor::Distribution;

    use super::*;
    use crate::replica::{is_cpu, visible_devices};

    /// The tolerance for a GPU, which adds in another order in its fused kernel.
    const TOLERANCE: f32 = 1e-4;

    /// The largest difference of two values.
    pub(super) fn error(left: Tensor<4>, right: Tensor<4>) -> f32 {
        (left - right).abs().max().into_scalar()
    }

    /// The output and the gradients of the inputs for a loss that weights all values differently.
    pub(super) fn all(
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

    /// On a GPU, or one in software where it is asked for. The separate operations are those of the CPU, which a GPU
    /// would tune first, for longer than all else.
    #[test]
    fn a_gpu_attends_like_separate_operations() {
        let devices = visible_devices();
        if is_cpu(&devices) {
            println!("skipped: no GPU");
            return;
        }
        let (gpu, cpu) = (devices[0].clone().autodiff(), Device::flex().autodiff());
        cpu.seed(4);
        for shape in [[1, 2, 7, 16], [2, 2, 65, 32]] {
            let inputs = [0; 3].map(|_| Tensor::random(shape, Distribution::Default, &cpu));
            let on_gpu = inputs.clone().map(|input| input.to_device(&gpu));
            let computed = all(|[q, k, v]| causal_attention(q, k, v), &on_gpu);
            let expected = all(|[q, k, v]| composed(q, k, v), &inputs);
            let names = ["output", "queries", "keys", "values"];
            for ((name, computed), expected) in names.into_iter().zip(computed).zip(expected) {
                assert_eq!(computed.dims(), shape);
                let error = error(computed.to_device(&Device::flex()), expected);
                assert!(error < TOLERANCE, "{error} of {name} for {shape:?}");
            }
        }
    }

    /// The same on the CPU, whose operations are the separate ones.
    #[test]
    fn the_helpers_of_these_tests_tell_a_difference() {
        let device = Device::flex().autodiff();
        device.seed(4);
        let inputs = [0; 3].map(|_| Tensor::random([1, 2, 7, 4], Distribution::Default, &device));
        let right = all(|[q, k, v]| causal_attention(q, k, v), &inputs);
        // Attention to later positions, too.
        let wrong = all(
            |[q, k, v]| softmax(q.matmul(k.transpose()) / 2.0, 3).matmul(v),
            &inputs,
        );
        let expected = all(|[q, k, v]| composed(q, k, v), &inputs);
        for ((right, wrong), expected) in right.into_iter().zip(wrong).zip(expected) {
            assert!(error(right, expected.clone()) < TOLERANCE);
            assert!(error(wrong, expected) > TOLERANCE);
        }
    }
}
