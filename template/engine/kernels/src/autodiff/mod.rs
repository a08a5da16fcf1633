//! Operations with backward passes of their own, in Burn's autodiff.

#[cfg(any(feature = "gpu", feature = "cpu-layers"))]
mod map_gradient;
#[cfg(any(feature = "gpu", feature = "cpu-layers"))]
pub mod operation;

#[cfg(not(any(feature = "gpu", feature = "cpu-layers")))]
use burn::tensor::Tensor;

#[cfg(any(feature = "gpu", feature = "cpu-layers"))]
pub use map_gradient::map_gradient;

/// Without custom operations.
#[cfg(not(any(feature = "gpu", feature = "cpu-layers")))]
pub fn map_gradient<const D: usize>(
    _: &Tensor<D>,
    _: impl Fn(Tensor<D>) -> Tensor<D>,
) -> Option<Tensor<D>> {
    None
}
