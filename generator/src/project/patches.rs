//! Changes of the template that have no place in a project: they are kept as files until the user
//! has dealt with them and deletes them.

use std::{
    fs,
    path::{Path, PathBuf},
};

use diffy::DiffOptions;

use super::{operations, transaction::Change};
use crate::{
    display::{counted, slashed},
    error::{Error, Result},
};

/// The folder of the changes that are left, in a project.
pub(crate) const FOLDER: &str = ".kiln-patches";

/// A file that keeps the change from `base` to `new` of the template's file `path`: a patch or,
/// for binary files, the new contents. The change is `None` if the project has this file already.
///
/// # Errors
/// The file system fails.
pub(crate) fn keep(
    project: &Path,
    path: &Path,
    base: &[u8],
    new: &[u8],
) -> Result<(PathBuf, Option<Change>)> {
    let (ending, contents) = match patch(path, base, new) {
        Some(patch) => (".patch", patch.into_bytes()),
        None => ("", new.to_vec()),
    };
    for number in 1.. {
        let mut name = Path::new(FOLDER).join(path).into_os_string();
        if number > 1 {
            name.push(format!(".{number}"));
        }
        name.push(ending);
        let place = PathBuf::from(name);
        match fs::read(project.join(&place)) {
            Ok(there) if there == contents => return Ok((place, None)),
            // A change of an earlier update, which is still to be dealt with.
            Ok(_) => {}
            Err(_) if !project.join(&place).exists() => {
                return Ok((place.clone(), Some(Change::added(place, contents))));
            }
            Err(cause) => return Err(Error::io("read", &project.join(&place), cause)),
        }
    }
    unreachable!("a free name was found")
}

fn patch(path: &Path, base: &[u8], new: &[u8]) -> Option<String> {
    let texts = [base, new].map(|bytes| str::from_utf8(bytes).ok());
    let [Some(base), Some(new)] = texts else {
        return None;
    };
    if base.contains('\0') || new.contains('\0') {
        return None;
    }
    let path = slashed(path);
    let mut options = DiffOptions::new();
    options
        .set_original_filename(format!("a/{path}"))
        .set_modified_filename(format!("b/{path}"));
    Some(options.create_patch(base, new).to_string())
}

/// The changes that are left in a project.
pub(crate) fn left(project: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    list(project, Path::new(FOLDER), &mut files);
    files.sort();
    files
}

fn list(project: &Path, folder: &Path, files: &mut Vec<PathBuf>) {
    // A folder that cannot be read has nothing that can be dealt with.
    let entries = fs::read_dir(project.join(folder)).into_iter().flatten();
    for entry in entries.flatten() {
        let path = folder.join(entry.file_name());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            list(project, &path, files);
        } else {
            files.push(path);
        }
    }
}

/// Removes the folders that are empty since the user deleted the files.
pub(crate) fn sweep(project: &Path) {
    sweep_folder(&project.join(FOLDER));
}

fn sweep_folder(folder: &Path) {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        sweep_folder(&entry.path());
    }
    if folder.is_dir() {
        let _ = operations::remove_dir(folder);
    }
}

/// Message on the changes that are left in a project, if any.
pub(crate) fn told(project: &Path) -> Option<String> {
    let left = left(project);
    if left.is_empty() {
        return None;
    }
    let mut text = format!(
        "note: {} of the template had no place in the project and must be made by hand:\n",
        counted(left.len(), "change")
    );
    for file in &left {
        text.push_str(&format!("  {}\n", project.join(file).display()));
    }
    text.push_str("  apply each where it belongs (`patch FILE PATCH`), then delete it");
    Some(text)
}
