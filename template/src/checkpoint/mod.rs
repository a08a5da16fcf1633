//! Trained weights on disk, as Burn's burnpack files.

use std::{fs, path::Path};

use anyhow::{Context, Result, anyhow};
use burn::module::Module;

/// Saves the parameters of `model` in `path`; an older file stays until the new one is whole.
///
/// # Errors
/// The file cannot be written.
pub fn save<M: Module>(model: M, path: &Path) -> Result<()> {
    let cannot = || format!("cannot save the weights in {}", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(cannot)?;
    }
    // Without recording, as running statistics settle only then.
    let record = model.valid().into_record();
    record
        .save(path)
        .map_err(|error| anyhow!("{error}"))
        .with_context(cannot)
}

/// Loads the parameters of `model` from `path`.
///
/// # Errors
/// There is no such file, it is damaged, or it holds other parameters.
pub fn load<M: Module>(model: M, path: &Path) -> Result<M> {
    let cannot = || {
        format!(
            "cannot load the weights from {}: train first, or name the folder of a training with \
             --output-dir",
            path.display()
        )
    };
    model
        .try_load_file(path)
        .map_err(|error| anyhow!("{error}"))
        .with_context(cannot)
}
