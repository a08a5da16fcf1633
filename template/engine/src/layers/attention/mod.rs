#[cfg(any(feature = "gpu", all(test, feature = "cpu-layers")))]
mod causal;

#[cfg(feature = "gpu")]
use burn::backend::Cube;
use burn::tensor::{Bool, Device, FloatDType, Tensor, activation::softmax};

#[cfg(feature = "gpu")]
use self::causal::Causal;
#[cfg(feature = "gpu")]
use super::operation::on_backend;
use crate::{anomalies::Watch, flops, precision};

/// Scaled dot-product attention of each position to itself and those before it: from queries, keys and values
/// `[batch, heads, time, size]` to the same shape.
///
/// On GPUs, Burn's fused kernel, which does not write the scores `[batch, heads, time, time]` to memory; the
/// backward pass computes them again. On the CPU, and under gradient checkpointing, separate operations,
/// recorded by autodiff. Softmax in 32 bits, whatever the type of the inputs; products of 32 bits in the
/// [`precision`] of this thread.
///
/// Source: A. Vaswani and others, Attention is all you need, 2017; T. Dao and others, FlashAttention, 2022.
///
/// # Panics
/// The shapes differ.
pub fn causal_attention(queries: Tensor<4>, keys: Tensor<4>, values: Tensor<4>) -> Tensor<4> {
    flops::attention(&queries, &keys, &values);
    let watch = Watch::begin("causal_attention", None);
    let [queries, keys, values] = [queries, keys, values].map(|x| watch.input(x));
    #[cfg(feature = "gpu")]
    if let Some(output) = on_gpu([&queries, &keys, &values]) {
        return watch.output(output);
    }
    watch.output(composed(queries, keys, values))
}

/// The output of the fused kernel; `None` on the CPU and under gradient checkpointing.
#[cfg(feature = "gpu")]
fn on_gpu(inputs: [&Tensor<4>; 3]) -> Option<Tensor<4>> {
    let cast = precision::Cast::of(inputs[0]);
    precision::scale_gradients(inputs.map(Tensor::clone), |inputs| {
        let inputs = inputs.map(|input| cast.map_or(input.clone(), |cast| cast.enter(input)));
        let [queries, keys, values] = &inputs;
        let output = on_backend::<Cube, _, 3, 4>(Causal, [queries, keys, values])?;
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
