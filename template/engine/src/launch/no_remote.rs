//! Replacement of `remote` without the feature `remote`.

use std::time::Duration;

use anyhow::{Result, bail};
use burn::tensor::Device;

use crate::options::Serve;

/// Fails, as the feature `remote` is disabled.
///
/// # Errors
/// Always.
pub fn connect_servers(_hosts: &[String], _timeout: Duration) -> Result<Vec<Device>> {
    bail!("devices of Burn servers need a program that is built with `--features remote`")
}

/// Fails, as the feature `remote` is disabled.
///
/// # Errors
/// Always.
pub fn serve(_options: &Serve, _indices: Option<&[usize]>) -> Result<()> {
    bail!("`serve` needs a program that is built with `--features remote`")
}
