//! Burn's layers with faster CPU kernels, in the [`precision`] of their thread, and reproducible dropout.
//! Parameters stay in Burn's modules, so checkpoints are unaffected.
//!
//! | | |
//! |---|---|
//! | Burn's modules | [`conv2d`], [`conv2d_relu_max_pool2d`], [`conv_transpose2d`], [`linear`], [`layer_norm`] |
//! | functions | [`gelu`], [`causal_attention`], [`causal_self_attention`] |
//! | modules of the engine | [`Dropout`] |

mod attention;
mod dropout;
#[cfg(all(test, feature = "cpu-layers"))]
mod tests;

use burn::{
    nn::{
        LayerNorm, Linear,
        conv::{Conv2d, ConvTranspose2d},
        pool::MaxPool2d,
    },
    tensor::{
        Int, Tensor,
        activation::{self, log_softmax, relu},
    },
};

#[cfg(feature = "cpu-layers")]
use kiln_kernels::layers as kernels;

use crate::{anomalies::Watch, flops, precision};

pub use attention::{causal_attention, causal_self_attention};
pub use dropout::Dropout;

/// `layer.forward(x)`, up to rounding: from `[batch, channels, height, width]` to `[batch, outputs, ..]`.
///
/// On the CPU with the feature `cpu-layers`, in `f32` and without groups, images are unfolded into
/// matrices (im2col) piece by piece, forward and backward. Otherwise, and under gradient checkpointing,
/// this calls Burn's layer. Products are in the [`precision`] of this thread.
///
/// # Panics
/// As [`Conv2d::forward`]: shapes do not match.
pub fn conv2d(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    flops::convolution(layer, &x);
    let watch = Watch::begin("conv2d", Some(layer.weight.id));
    let output = precision::scale_gradients_of(layer, watch.input(x), |layer, x| {
        #[cfg(feature = "cpu-layers")]
        if let Some(convolved) = kernels::convolution::on_cpu(layer, false, precision::active(), &x)
        {
            return convolved;
        }
        precision::conv2d(layer, x)
    });
    watch.output(output)
}

/// `layer.forward(x)` in the [`precision`] of this thread: from `[batch, channels, height, width]` to
/// `[batch, outputs, ..]`.
///
/// # Panics
/// As [`ConvTranspose2d::forward`]: shapes do not match.
pub fn conv_transpose2d(layer: &ConvTranspose2d, x: Tensor<4>) -> Tensor<4> {
    flops::transposed_convolution(layer, &x);
    let watch = Watch::begin("conv_transpose2d", Some(layer.weight.id));
    let x = watch.input(x);
    watch.output(precision::scale_gradients_of(
        layer,
        x,
        precision::conv_transpose2d,
    ))
}

/// `pool.forward(relu(layer.forward(x)))`, up to rounding.
///
/// If [`conv2d`] uses its own kernel and `pool` is 2x2, the layers are fused: intermediate values stay in
/// cache, which saves most memory and most time outside of matrix products.
///
/// # Panics
/// As [`Conv2d::forward`]: shapes do not match.
pub fn conv2d_relu_max_pool2d(layer: &Conv2d, pool: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
    flops::convolution(layer, &x);
    let watch = Watch::begin("conv2d_relu_max_pool2d", Some(layer.weight.id));
    let output = precision::scale_gradients_of(layer, watch.input(x), |layer, x| {
        #[cfg(feature = "cpu-layers")]
        if kernels::convolution::is_2x2(pool)
            && let Some(pooled) = kernels::convolution::on_cpu(layer, true, precision::active(), &x)
        {
            return pooled;
        }
        #[cfg(feature = "cpu-layers")]
        if let Some(convolved) = kernels::convolution::on_cpu(layer, false, precision::active(), &x)
        {
            return pool.forward(relu(convolved));
        }
        pool.forward(relu(precision::conv2d(layer, x)))
    });
    watch.output(output)
}

/// `layer.forward(x)`, up to rounding: from `[.., inputs]` to `[.., outputs]`.
///
/// On the CPU with the feature `cpu-layers`, in `f32`, the product accumulates onto the bias, and the
/// backward pass uses the weight without transposing it. Otherwise this calls Burn's layer, as [`conv2d`].
/// Products are in the [`precision`] of this thread.
///
/// # Panics
/// As [`Linear::forward`]: shapes do not match.
pub fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    flops::product(layer, &x);
    let watch = Watch::begin("linear", Some(layer.weight.id));
    let output = precision::scale_gradients_of(layer, watch.input(x), |layer, x| {
        #[cfg(feature = "cpu-layers")]
        if let Some(product) = kernels::linear::on_cpu(layer, precision::active(), &x) {
            return product;
        }
        precision::linear(layer, x)
    });
    watch.output(output)
}

/// [`activation::gelu`], up to rounding: the Gaussian error linear unit of each value, of the same shape.
///
/// On the CPU with the feature `cpu-layers`, in `f32`, the kernel is vectorized. Otherwise this calls
/// Burn's function, as [`conv2d`]; on GPUs, its gradient is that of the tanh approximation.
///
/// Source: D. Hendrycks and K. Gimpel, Gaussian error linear units, 2016.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let watch = Watch::begin("gelu", None);
    let x = watch.input(x);
    #[cfg(feature = "cpu-layers")]
    if let Some(output) = kernels::gelu::on_cpu(&x) {
        return watch.output(output);
    }
    watch.output(activation::gelu(x))
}

/// `layer.forward(x)`, up to rounding: from `[.., width]` to the same shape.
///
/// On the CPU with the feature `cpu-layers`, in `f32`, rows are normalized in few passes over memory, forward
/// and backward, where Burn records a dozen operations. Otherwise this calls Burn's layer, as [`conv2d`].
///
/// Source: J. Ba, J. Kiros and G. Hinton, Layer normalization, 2016.
///
/// # Panics
/// As [`LayerNorm::forward`]: shapes do not match.
pub fn layer_norm<const D: usize>(layer: &LayerNorm, x: Tensor<D>) -> Tensor<D> {
    let watch = Watch::begin("layer_norm", Some(layer.gamma.id));
    let x = watch.input(x);
    #[cfg(feature = "cpu-layers")]
    if let Some(output) = kernels::norm::on_cpu(layer, &x) {
        return watch.output(output);
    }
    watch.output(layer.forward(x))
}

/// The negative log-probability of each label, which is that of a class: from logits `[.., classes]` and labels
/// `[..]` to `[..]`.
///
/// On the CPU with the feature `cpu-layers`, in `f32`, three numbers per row of logits are kept for the backward
/// pass, and no log-probabilities. Otherwise, and under gradient checkpointing, Burn's operations.
pub(crate) fn cross_entropy<const D: usize, const E: usize>(
    logits: Tensor<D>,
    labels: Tensor<E, Int>,
) -> Tensor<E> {
    #[cfg(feature = "cpu-layers")]
    if let Some(losses) = kernels::cross_entropy::on_cpu(&logits, &labels) {
        return losses;
    }
    composed_cross_entropy(logits, labels)
}

/// As [`cross_entropy()`].
fn composed_cross_entropy<const D: usize, const E: usize>(
    logits: Tensor<D>,
    labels: Tensor<E, Int>,
) -> Tensor<E> {
    let log_probabilities = log_softmax(logits, D - 1); // [.., classes]
    let labels = labels.unsqueeze_dim::<D>(D - 1); // [.., 1]
    log_probabilities
        .gather(D - 1, labels)
        .neg()
        .squeeze_dim(D - 1) // [..]
}
