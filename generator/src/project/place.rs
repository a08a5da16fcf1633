//! Folders of projects as absolute paths.

use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};

/// Checks that `..` in a path only follows folders that exist.
///
/// # Errors
/// One does not; the error has the path without it.
pub(crate) fn check_parents(path: &Path) -> Result<()> {
    let mut before = PathBuf::new();
    for part in path.components() {
        let leads_back = part == Component::ParentDir && !before.as_os_str().is_empty();
        if leads_back && !before.is_dir() {
            let message = format!(
                "`{}` leads back out of `{}`, which does not exist",
                path.display(),
                before.display()
            );
            return Err(
                Error::input(message).help(format!("write `{}`", without_parents(path).display()))
            );
        }
        before.push(part);
    }
    Ok(())
}

/// A path without folders that `..` leaves.
fn without_parents(path: &Path) -> PathBuf {
    let mut short = PathBuf::new();
    for part in path.components() {
        let ends_in_folder = matches!(short.components().next_back(), Some(Component::Normal(_)));
        if part == Component::ParentDir && ends_in_folder {
            short.pop();
        } else {
            short.push(part);
        }
    }
    match short.as_os_str().is_empty() {
        true => PathBuf::from("."),
        false => short,
    }
}

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
