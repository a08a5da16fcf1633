//! Kernels for the CPU: the loops over numbers in which a training spends its time, with gradients for Burn's
//! autodiff.
//!
//! They are a crate of their own to be compiled as one unit and fully optimised, in debug builds as in release: a
//! loop is fast only with all that it calls inlined. The rest of the engine is compiled faster without that.
//!
//! | module | contents |
//! |---|---|
//! | [`layers`] | convolutions, linear layers, layer norm, GELU, causal self-attention, and the cross-entropy |
//! | [`products`], [`half`] | matrix products, in float32 and of operands in 16 bits |
//! | [`adam`], [`elementwise`] | the update of Adam; sums, averages and roundings of vectors |
//! | [`autodiff`] | operations with backward passes of their own |
//! | [`vectors`], [`threads`] | vectorization, and functions that vectorize; the threads of computations |

#![warn(missing_docs)]
// Tests read as they like: see `clippy.toml`.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

pub mod adam;
pub mod autodiff;
pub mod elementwise;
pub mod half;
#[cfg(feature = "cpu-layers")]
pub mod layers;
#[cfg(feature = "cpu-layers")]
pub mod products;
pub mod threads;
pub mod vectors;
