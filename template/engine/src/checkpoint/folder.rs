//! Atomic writes of folders: files and checksums go to a temporary folder, which is then renamed.

use std::{
    fs::{self, File},
    io::{self, ErrorKind, Write as _},
    path::{Path, PathBuf},
    process,
    time::{SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, Error, Result, anyhow};

use super::{
    Files,
    checksums::{self, checksum},
};
use crate::files::{parent, rename, sync_folder};

/// Prefix of temporary folders, which are never read.
const TEMPORARY: &str = ".tmp-";

/// Writes `files` atomically into a new folder at `target`: it gets its name once all is on disk, so that a
/// kill at any moment leaves the complete folder or none.
///
/// # Errors
/// A file cannot be written; nothing is left at `target`.
pub fn write(target: &Path, files: &Files) -> Result<()> {
    write_by(target, |temporary| write_all(temporary, files))
}

/// The way in which a folder takes over files of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// As hard links, or as copies if the file system has none.
    Links,
    Copies,
}

/// As [`write`], with all files of the folder `other` that `files` has not. Their checksums are taken over, so
/// that one damaged since is found.
///
/// # Errors
/// As [`write`], or a file of `other` cannot be read.
pub fn write_with_files_of(other: &Path, share: Share, target: &Path, files: &Files) -> Result<()> {
    write_by(target, |temporary| {
        fs::create_dir(temporary)?;
        let list = read_file(other, checksums::FILE).map_err(Unusable::into_error)?;
        let entries = checksums::parse(&list).map_err(|problem| anyhow!(problem))?;
        let mut kept = String::new();
        for (checksum, name) in entries {
            if !files.contains_key(name) {
                take_over(&other.join(name), share, &temporary.join(name))?;
                kept += &checksums::line(checksum, name);
            }
        }
        write_files(temporary, files, kept)
    })
    .with_context(|| format!("cannot use the files of {}", other.display()))
}

/// Makes the folder `target` with `write`, at a temporary path.
fn write_by(target: &Path, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
    let temporary = beside(target)?;
    let written = write(&temporary)
        .and_then(|()| fs::rename(&temporary, target).map_err(Into::into))
        .and_then(|()| sync_folder(parent(target)));
    if written.is_err() {
        // The disk may be full: make room again. The first error is the one to report.
        let _ = fs::remove_dir_all(&temporary);
    }
    written.with_context(|| format!("cannot write {}", target.display()))
}

/// Why a checkpoint cannot be used.
#[derive(Debug)]
pub enum Unusable {
    /// A file is missing, or differs from its checksum.
    Damaged(Error),
    /// An I/O error, or the format of another version of the program. The checkpoint may be intact.
    Unreadable(Error),
}

impl Unusable {
    /// The underlying error, for a message.
    pub fn into_error(self) -> Error {
        match self {
            Unusable::Damaged(error) | Unusable::Unreadable(error) => error,
        }
    }
}

/// Reads the folder at `path` and verifies the checksums of all files.
///
/// # Errors
/// A file is missing, damaged, truncated or unreadable; the message names it.
pub fn read(path: &Path) -> Result<Files, Unusable> {
    let damaged = |problem: String| Unusable::Damaged(anyhow!(problem));
    let list = read_file(path, checksums::FILE)?;
    let mut files = Files::new();
    for (expected, name) in checksums::parse(&list).map_err(damaged)? {
        let bytes = read_file(path, name)?;
        if checksum(&bytes) != expected {
            let list = checksums::FILE;
            return Err(damaged(format!(
                "its {name} is damaged: the SHA-256 is not the one in {list}"
            )));
        }
        files.insert(name.to_owned(), bytes);
    }
    Ok(files)
}

/// Reads a file of a folder. Only a missing file counts as damage.
///
/// # Errors
/// The file is missing or unreadable.
pub fn read_file(folder: &Path, name: &str) -> Result<Vec<u8>, Unusable> {
    fs::read(folder.join(name)).map_err(|error| unusable(name, error))
}

/// Checks that the folder at `path` has all its files, without reading them.
///
/// # Errors
/// A file is missing or unreadable; the message names it.
pub fn ensure_whole(path: &Path) -> Result<(), Unusable> {
    let list = read_file(path, checksums::FILE)?;
    let entries = checksums::parse(&list);
    for (_, name) in entries.map_err(|problem| Unusable::Damaged(anyhow!(problem)))? {
        fs::metadata(path.join(name)).map_err(|error| unusable(name, error))?;
    }
    Ok(())
}

/// The meaning of an I/O error for the folder of the file `name`. Only a missing file counts as damage.
fn unusable(name: &str, error: io::Error) -> Unusable {
    let kind = error.kind();
    let error = Error::new(error).context(format!("cannot read its {name}"));
    match kind {
        // Of a folder that is missing itself, too.
        ErrorKind::NotFound | ErrorKind::NotADirectory => Unusable::Damaged(error),
        _ => Unusable::Unreadable(error),
    }
}

/// Renames an unusable checkpoint, such as `step-7`, to the first free name of `step-7.damaged`,
/// `step-7.damaged.1` and so on, which searches for checkpoints ignore. Returns the new path.
///
/// # Errors
/// The checkpoint cannot be renamed.
pub fn mark(path: &Path, why: &str) -> Result<PathBuf> {
    let name = path.file_name().context("the path names no folder")?;
    let first = path.with_file_name(format!("{}.{why}", name.to_string_lossy()));
    let others = (1..).map(|number| first.with_added_extension(number.to_string()));
    let mut free = std::iter::once(first.clone())
        .chain(others)
        .filter(|path| path.symlink_metadata().is_err());
    let marked = free.next().context("no name is free")?;
    rename(path, &marked)?;
    Ok(marked)
}

/// Removes the folder at `path`; a kill in between leaves nothing that looks like a checkpoint.
///
/// # Errors
/// The folder cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    let temporary = beside(path)?;
    fs::rename(path, &temporary)
        .and_then(|()| fs::remove_dir_all(&temporary))
        .with_context(|| format!("cannot remove {}", path.display()))
}

/// Checks that folders can be created in `folder`.
///
/// # Errors
/// They cannot be created.
pub fn ensure_writable(folder: &Path) -> Result<()> {
    let temporary = beside(&folder.join("check"))?;
    fs::create_dir(&temporary)?;
    Ok(fs::remove_dir(&temporary)?)
}

/// Removes temporary folders that a killed process left in `folder`.
///
/// # Errors
/// The folder cannot be read, or a temporary folder cannot be removed.
pub fn remove_unfinished(folder: &Path) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if name.to_string_lossy().starts_with(TEMPORARY) && entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn write_all(folder: &Path, files: &Files) -> Result<()> {
    fs::create_dir(folder)?;
    write_files(folder, files, String::new())
}

/// Writes `files` and their checksums, after those in the `list`.
fn write_files(folder: &Path, files: &Files, list: String) -> Result<()> {
    for (name, bytes) in files {
        write_file(&folder.join(name), bytes)?;
    }
    let list = list + &checksums::list(files);
    write_file(&folder.join(checksums::FILE), list.as_bytes())?;
    sync_folder(folder)
}

fn take_over(from: &Path, share: Share, to: &Path) -> Result<()> {
    let cannot = || format!("cannot copy {}", from.display());
    if share == Share::Links && fs::hard_link(from, to).is_ok() {
        return Ok(());
    }
    fs::copy(from, to).with_context(cannot)?;
    // Windows flushes only what may be written.
    let copied = File::options().write(true).open(to);
    copied.and_then(|file| file.sync_all()).with_context(cannot)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    Ok(file.sync_all()?)
}

/// A hidden temporary name in the same folder, so that a rename stays within one file system.
fn beside(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().context("the path names no folder")?;
    // In containers process ids repeat.
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let nanos = since.map_or(0, |since| since.as_nanos());
    let (id, name) = (process::id(), name.to_string_lossy());
    let name = format!("{TEMPORARY}{id}-{nanos}-{name}");
    Ok(path.with_file_name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> Files {
        Files::from_iter([
            ("a.bin".to_owned(), vec![1, 2, 3]),
            ("b.json".to_owned(), b"{}".to_vec()),
        ])
    }

    #[test]
    fn what_is_written_is_read() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("step-1");
        write(&folder, &files()).unwrap();
        assert_eq!(read(&folder).unwrap(), files());
        assert_eq!(
            fs::read_dir(parent.path()).unwrap().count(),
            1,
            "nothing is left beside it"
        );
    }

    #[test]
    fn a_folder_takes_over_the_files_of_another_one_with_their_checksums() {
        let parent = tempfile::tempdir().unwrap();
        let [other, folder] = ["step-1", "step-1-epoch-1"].map(|name| parent.path().join(name));
        let manifest = Files::from_iter([("b.json".to_owned(), b"[1]".to_vec())]);
        let mut expected = files();
        expected.extend(manifest.clone());
        for share in [Share::Copies, Share::Links] {
            write(&other, &files()).unwrap();
            write_with_files_of(&other, share, &folder, &manifest).unwrap();
            remove(&other).unwrap();
            assert_eq!(read(&folder).unwrap(), expected);
            assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 1);
            remove(&folder).unwrap();
        }
        write(&folder, &files()).unwrap();
        // Damage to the other one is not covered by a new checksum.
        fs::write(folder.join("a.bin"), [7]).unwrap();
        write_with_files_of(&folder, Share::Links, &other, &manifest).unwrap();
        assert!(matches!(read(&other), Err(Unusable::Damaged(_))));
        remove(&other).unwrap();
        fs::remove_file(folder.join("a.bin")).unwrap();
        let error = write_with_files_of(&folder, Share::Links, &other, &manifest).unwrap_err();
        assert!(format!("{error:#}").contains("a.bin"), "{error:#}");
        assert_eq!(
            fs::read_dir(parent.path()).unwrap().count(),
            1,
            "nothing is left"
        );
    }

    /// The damage to a folder, and the expected message.
    #[test]
    fn every_kind_of_damage_is_named() {
        type Damage = fn(&Path);
        let cases: [(Damage, &str); 6] = [
            (
                |folder| fs::write(folder.join("a.bin"), [1, 2]).unwrap(),
                "its a.bin is damaged",
            ),
            (
                |folder| fs::write(folder.join("a.bin"), [1, 2, 7]).unwrap(),
                "its a.bin is damaged",
            ),
            (
                |folder| fs::remove_file(folder.join("b.json")).unwrap(),
                "cannot read its b.json",
            ),
            (
                |folder| fs::remove_file(folder.join(checksums::FILE)).unwrap(),
                "cannot read its SHA256SUMS",
            ),
            (
                |folder| fs::write(folder.join(checksums::FILE), "").unwrap(),
                "its SHA256SUMS is empty",
            ),
            (
                |folder| fs::write(folder.join(checksums::FILE), "00  ../a.bin\n").unwrap(),
                "is no file name",
            ),
        ];
        for (damage, message) in cases {
            let parent = tempfile::tempdir().unwrap();
            let folder = parent.path().join("step-1");
            write(&folder, &files()).unwrap();
            damage(&folder);
            let Err(Unusable::Damaged(error)) = read(&folder) else {
                panic!("no damage is found: {message}");
            };
            let error = format!("{error:#}");
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn a_file_that_the_system_does_not_read_is_not_damaged() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("step-1");
        write(&folder, &files()).unwrap();
        fs::remove_file(folder.join("a.bin")).unwrap();
        // Reading a folder as a file fails for every user, root included.
        fs::create_dir(folder.join("a.bin")).unwrap();
        let Err(Unusable::Unreadable(error)) = read(&folder) else {
            panic!("an I/O error is taken for damage");
        };
        assert!(format!("{error:#}").contains("cannot read its a.bin"));
    }

    #[test]
    fn a_marked_checkpoint_overwrites_no_other() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("step-1");
        for expected in ["step-1.damaged", "step-1.damaged.1", "step-1.damaged.2"] {
            fs::create_dir(&folder).unwrap();
            assert!(mark(&folder, "damaged").unwrap().ends_with(expected));
        }
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 3);
    }

    #[test]
    fn what_cannot_be_written_leaves_nothing() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("step-1");
        // A file of this name can exist in no folder.
        let files = Files::from_iter([("no/such/folder".to_owned(), vec![1])]);
        assert!(write(&folder, &files).is_err());
        assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
    }

    #[test]
    fn only_unfinished_work_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        fs::create_dir(parent.path().join(".tmp-1-step-1")).unwrap();
        fs::create_dir(parent.path().join("step-1")).unwrap();
        fs::write(parent.path().join(".tmp-notes"), "mine").unwrap();
        remove_unfinished(parent.path()).unwrap();
        let mut left: Vec<_> = fs::read_dir(parent.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, [".tmp-notes", "step-1"]);
    }
}
