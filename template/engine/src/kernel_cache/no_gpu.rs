//! Replacement of `cache` and `first_step` in programs for the CPU.

use std::path::Path;

use anyhow::{Result, bail, ensure};
use burn::tensor::Device;

use crate::options::Options;

/// Refuses the options for GPUs.
///
/// # Errors
/// One of them is given.
pub fn keep(options: &Options) -> Result<()> {
    let given = [
        ("--kernel-cache", options.kernel_cache.is_some()),
        ("--kernels", options.kernels.is_some()),
    ];
    for (option, is_given) in given {
        ensure!(
            !is_given,
            "{option} is for GPUs, and this program is built for the CPU: leave it out, or build with a \
             feature such as `--features cuda`"
        );
    }
    Ok(())
}

pub fn keep_by_default() {}

pub fn await_first_step(_devices: &[Device], _speaks: bool) -> Result<()> {
    Ok(())
}

pub fn is_awaiting_first_step() -> bool {
    false
}

pub fn note_first_step() {}

pub fn ensure_kept(_device: &Device) -> Result<()> {
    Ok(())
}

pub fn ensure_replaceable(_file: &Path) -> Result<()> {
    Ok(())
}

/// Fails, as there are no kernels.
///
/// # Errors
/// Always.
pub fn export(_file: &Path, _devices: &[Device]) -> Result<&'static str> {
    bail!(
        "`compile` is for GPUs, and this program is built for the CPU: build with a feature such as \
         `--features cuda`"
    )
}
