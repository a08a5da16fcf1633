//! As `remote`, in a program that is built without.

use std::time::Duration;

use anyhow::{Result, bail};
use burn::tensor::Device;

use crate::options::Serve;

/// Refuses.
///
/// # Errors
/// Always.
pub fn connect_servers(_hosts: &[String], _timeout: Duration) -> Result<Vec<Device>> {
    bail!("devices of Burn servers need a program that is built with `--features remote`")
}

/// Refuses.
///
/// # Errors
/// Always.
pub fn serve(_options: &Serve, _indices: Option<&[usize]>) -> Result<()> {
    bail!("`serve` needs a program that is built with `--features remote`")
}
