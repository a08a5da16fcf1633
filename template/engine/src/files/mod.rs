//! Files of an output folder: the lock, atomic writes, and files of earlier runs.

mod earlier;
mod lock;
pub mod whole_file;

use std::{
    fs::{self, File},
    path::Path,
};

use anyhow::{Context, Error, Result};

pub use earlier::set_aside;
pub use lock::{OutputLock, held_by};

/// Renames a file or a folder, on disk.
///
/// # Errors
/// It cannot be renamed.
pub fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to)
        .map_err(Error::from)
        .and_then(|()| sync_folder(parent(to)))
        .with_context(|| format!("cannot rename {} to {}", from.display(), to.display()))
}

/// Flushes the entries of `folder` to disk. Windows cannot open folders, and needs no such call.
///
/// # Errors
/// They cannot be flushed.
pub fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// The folder of `path`.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}
