//! Folders of projects as absolute paths.

use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

/// The absolute path, with symbolic links resolved as far as the path exists.
///
/// # Errors
/// The current folder cannot be found.
pub(crate) fn resolved(path: &Path) -> Result<PathBuf> {
    let absolute =
        std::path::absolute(path).map_err(|cause| Error::io("find the folder", path, cause))?;
    let mut real = PathBuf::new();
    for part in absolute.components() {
        match part {
            Component::ParentDir => {
                real.pop();
            }
            Component::Normal(name) => {
                real.push(name);
                real = real.canonicalize().unwrap_or(real);
            }
            part => real.push(part),
        }
    }
    Ok(real)
}
