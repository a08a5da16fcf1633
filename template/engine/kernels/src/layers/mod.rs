//! Layers and the cross-entropy on Burn's CPU backend, in float32. Each is `None` if it does not support its
//! arguments, which are then left to Burn.

pub mod attention;
pub mod convolution;
pub mod cross_entropy;
pub mod gelu;
pub mod linear;
pub mod norm;
mod rows;
