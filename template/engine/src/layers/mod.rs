//! Layers that Burn has, computed faster on the CPU. The parameters stay in Burn's modules, so
//! checkpoints do not change.

#[cfg(feature = "cpu-layers")]
mod convolution;
#[cfg(feature = "cpu-layers")]
mod gelu;
#[cfg(feature = "cpu-layers")]
mod linear;
#[cfg(feature = "cpu-layers")]
pub mod matrix;
#[cfg(feature = "cpu-layers")]
pub mod operation;
#[cfg(feature = "cpu-layers")]
mod passes;
#[cfg(feature = "cpu-layers")]
mod unfolded;

use burn::{
    nn::{Linear, conv::Conv2d, pool::MaxPool2d},
    tensor::{
        Tensor,
        activation::{self, relu},
    },
};

/// What `layer.forward(x)` gives, within rounding: from `[batch, channels, height, width]` to
/// `[batch, outputs, ..]`.
///
/// On the CPU with the feature `cpu-layers`, in `f32` and without groups, images are unfolded into
/// matrices, some at a time, and gradients come from the same matrices. Elsewhere and under
/// gradient checkpointing it is Burn's.
///
/// # Panics
/// As [`Conv2d::forward`]: shapes that do not fit.
pub fn conv2d(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    #[cfg(feature = "cpu-layers")]
    if let Some(convolved) = convolution::on_cpu(layer, false, &x) {
        return convolved;
    }
    layer.forward(x)
}

/// What `pool.forward(relu(layer.forward(x)))` gives, within rounding.
///
/// Where [`conv2d`] computes on its own and `pool` takes each 2x2 values, what is between the layers
/// stays in the cache, which saves most of the memory and of the time that is not multiplication.
///
/// # Panics
/// As [`Conv2d::forward`]: shapes that do not fit.
pub fn conv2d_relu_max_pool2d(layer: &Conv2d, pool: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
    #[cfg(feature = "cpu-layers")]
    if convolution::is_2x2(pool)
        && let Some(pooled) = convolution::on_cpu(layer, true, &x)
    {
        return pooled;
    }
    pool.forward(relu(conv2d(layer, x)))
}

/// What `layer.forward(x)` gives, within rounding: from `[.., inputs]` to `[.., outputs]`.
///
/// On the CPU with the feature `cpu-layers`, in `f32`, the bias is where the product begins, and
/// gradients are multiplied in the order in which the weight lies in memory. Elsewhere it is Burn's, as for
/// [`conv2d`].
///
/// # Panics
/// As [`Linear::forward`]: shapes that do not fit.
pub fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    #[cfg(feature = "cpu-layers")]
    if let Some(product) = linear::on_cpu(layer, &x) {
        return product;
    }
    layer.forward(x)
}

/// What [`activation::gelu`] gives, within rounding: the Gaussian error linear unit of each value, of the
/// same shape.
///
/// On the CPU with the feature `cpu-layers`, in `f32`, many values are computed at once. Elsewhere it is
/// Burn's, as for [`conv2d`]; on GPUs, the gradient of Burn's is that of the approximation by tanh.
///
/// Source: D. Hendrycks and K. Gimpel, Gaussian error linear units, 2016.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    #[cfg(feature = "cpu-layers")]
    if let Some(output) = gelu::on_cpu(&x) {
        return output;
    }
    activation::gelu(x)
}
