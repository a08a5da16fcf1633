//! Files of earlier runs, which a new run keeps under other names.

use std::{
    ffi::OsStr,
    fs,
    io::{self, ErrorKind},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};

use super::rename;

/// Prefix of the subfolders of a linked folder for the checkpoints of earlier runs; a number follows.
const EARLIER: &str = "earlier.";

/// Renames files and folders of an earlier run from `NAME.EXTENSION` to `NAME.N.EXTENSION`, with the first
/// number that is free for all, so that nothing is deleted or overwritten. The target of a link stays, as
/// on a cluster it may be the only writable folder: its contents move to its subfolder `earlier.N`. Returns
/// the old and new paths.
///
/// # Errors
/// A file or folder cannot be renamed.
pub fn set_aside(paths: &[PathBuf]) -> Result<Vec<(PathBuf, PathBuf)>> {
    let mut there = Vec::new();
    for path in paths {
        match fs::canonicalize(path) {
            Ok(real) => there.push((path, real)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        }
    }
    let is_linked_folder = |path: &Path| path.is_symlink() && path.is_dir();
    let aside = |path: &Path, real: &Path, number: usize| match is_linked_folder(path) {
        true => path.join(format!("{EARLIER}{number}")),
        false if path.is_symlink() => numbered(real, number),
        false => numbered(path, number),
    };
    let is_free = |number: &usize| {
        let mut names = there.iter().map(|(path, real)| aside(path, real, *number));
        names.all(|path| path.symlink_metadata().is_err())
    };
    let number = (1..).find(is_free).context("no number is free")?;
    let mut renamed = Vec::new();
    for (path, real) in there {
        let aside = aside(path, &real, number);
        match is_linked_folder(path) {
            true => move_contents(path, &aside)?,
            false => rename(&real, &aside)?,
        }
        renamed.push((path.clone(), aside));
    }
    Ok(renamed)
}

/// Moves the files of a run into a new subfolder, the latest checkpoint last: after a kill in between,
/// `--resume` still uses that one.
fn move_contents(folder: &Path, to: &Path) -> Result<()> {
    let cannot = || format!("cannot set the files in {} aside", folder.display());
    let names = fs::read_dir(folder).with_context(cannot)?;
    let names = names.map(|entry| Ok(entry?.file_name()));
    let mut names = names.collect::<io::Result<Vec<_>>>().with_context(cannot)?;
    names.retain(|name| {
        let name = name.to_string_lossy();
        // Checkpoints, and the folders of event files.
        let is_of_run = name.starts_with("step-") || ["train", "validation"].contains(&&*name);
        is_of_run && folder.join(&*name).is_dir()
    });
    names.sort();
    fs::create_dir(to).with_context(cannot)?;
    let mut names = names.iter();
    names.try_for_each(|name| rename(&folder.join(name), &to.join(name)))
}

/// `runs/metrics.jsonl` to `runs/metrics.1.jsonl`.
fn numbered(path: &Path, number: usize) -> PathBuf {
    let text = |part: Option<&OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let stem = text(path.file_stem());
    path.with_file_name(match path.extension() {
        None => format!("{stem}.{number}"),
        extension => format!("{stem}.{number}.{}", text(extension)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_an_earlier_run_get_one_number_and_links_stay() {
        let parent = tempfile::tempdir().unwrap();
        let [runs, disk] = ["runs", "disk"].map(|name| parent.path().join(name));
        fs::create_dir_all(disk.join("checkpoints/step-1")).unwrap();
        fs::create_dir(&runs).unwrap();
        for name in ["metrics.jsonl", "metrics.1.jsonl"] {
            fs::write(runs.join(name), "{}").unwrap();
        }
        #[cfg(unix)]
        std::os::unix::fs::symlink(disk.join("checkpoints"), runs.join("checkpoints")).unwrap();
        #[cfg(not(unix))]
        fs::rename(disk.join("checkpoints"), runs.join("checkpoints")).unwrap();
        let paths = ["metrics.jsonl", "tensorboard", "checkpoints"].map(|name| runs.join(name));
        let renamed = set_aside(&paths).unwrap();
        let names = renamed
            .iter()
            .map(|(_, to)| to.file_name().unwrap().to_str().unwrap());
        let folder = if cfg!(unix) {
            "earlier.2"
        } else {
            "checkpoints.2"
        };
        assert_eq!(names.collect::<Vec<_>>(), ["metrics.2.jsonl", folder]);
        assert!(renamed[1].1.join("step-1").is_dir());
        #[cfg(unix)]
        assert!(disk.join("checkpoints/earlier.2/step-1").is_dir());
        #[cfg(unix)]
        assert!(runs.join("checkpoints").is_symlink());
    }
}
