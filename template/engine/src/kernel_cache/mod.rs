//! Kernels of GPUs: compiled and tuned at their first use, kept on disk for later starts, and shipped to
//! other machines as bundles. A no-op in programs for the CPU.
//!
//! Source: the environments and bundles of CubeCL.

#[cfg(feature = "gpu")]
mod cache;
#[cfg(feature = "gpu")]
mod first_step;
#[cfg(not(feature = "gpu"))]
mod no_gpu;
#[cfg(any(feature = "gpu", test))]
mod warnings;

#[cfg(not(feature = "gpu"))]
pub(crate) use no_gpu::{
    await_first_step, ensure_kept, ensure_replaceable, export, is_awaiting_first_step, keep,
    keep_by_default, note_first_step,
};
#[cfg(feature = "gpu")]
pub(crate) use {
    cache::{ensure_kept, ensure_replaceable, export, keep, keep_by_default},
    first_step::{await_first_step, is_awaiting_first_step, note_first_step},
};
