//! Kernels of GPUs: compiled and tuned at their first use, kept on disk for later starts, and shipped to
//! other machines as bundles. A no-op in programs for the CPU.
//!
//! Source: the environments and bundles of CubeCL.

#[cfg(feature = "gpu")]
mod cache;
mod compile;
#[cfg(feature = "gpu")]
mod first_step;
#[cfg(not(feature = "gpu"))]
mod no_gpu;
#[cfg(any(feature = "gpu", test))]
mod warnings;

#[cfg(feature = "gpu")]
use cache::{ensure_replaceable, export};
#[cfg(not(feature = "gpu"))]
use no_gpu::{ensure_replaceable, export};

use anyhow::Result;

use crate::loss::Losses;

pub use compile::{Steps, compile};

#[cfg(not(feature = "gpu"))]
pub(crate) use no_gpu::{
    await_first_step, is_awaiting_first_step, keep, keep_by_default, note_first_step,
};
#[cfg(feature = "gpu")]
pub(crate) use {
    cache::{keep, keep_by_default},
    first_step::{await_first_step, is_awaiting_first_step, note_first_step},
};

/// Notes the end of a step with `losses`, and after the first one waits for its results.
///
/// # Errors
/// A device failed.
pub(crate) fn end_first_step(losses: &Losses) -> Result<()> {
    if is_awaiting_first_step() {
        losses.read()?;
        note_first_step();
    }
    Ok(())
}
