//! Folders of files that are whole or not there: hashed, written aside and renamed.

use std::{
    fmt::Write as _,
    fs::{self, File},
    io::Write as _,
    path::{Path, PathBuf},
    process,
};

use anyhow::{Context, Result, bail, ensure};
use indexmap::IndexMap;
use sha2::{Digest, Sha256};

/// The contents of a checkpoint's files by name.
pub type Files = IndexMap<String, Vec<u8>>;

/// The hashes of all other files, as `sha256sum --check SHA256SUMS` reads them.
const HASHES: &str = "SHA256SUMS";

/// What unfinished work is called; nobody reads such folders.
const TEMPORARY: &str = ".tmp-";

/// Writes `files` into a new folder at `target`. A kill at any moment leaves the whole folder or
/// none, as it gets its name only when all is on disk.
///
/// # Errors
/// A file cannot be written; nothing is left at `target`.
pub fn write(target: &Path, files: &Files) -> Result<()> {
    let temporary = beside(target)?;
    let written = write_all(&temporary, files)
        .and_then(|()| fs::rename(&temporary, target).map_err(Into::into))
        .and_then(|()| sync_folder(parent(target)));
    if written.is_err() {
        // The disk may be full: make room again. The first error is the one to report.
        let _ = fs::remove_dir_all(&temporary);
    }
    written.with_context(|| format!("cannot write {}", target.display()))
}

/// Reads the folder at `path`, and makes sure that every file is the one that was written.
///
/// # Errors
/// A file is missing, damaged or cut off; the message names it.
pub fn read(path: &Path) -> Result<Files> {
    let hashes = fs::read_to_string(path.join(HASHES))
        .with_context(|| format!("cannot read its {HASHES}"))?;
    let mut files = Files::new();
    for line in hashes.lines() {
        let entry = line.split_once("  ");
        let (expected, name) = entry.with_context(|| format!("its {HASHES} is damaged"))?;
        ensure!(
            Path::new(name).file_name().is_some_and(|file| file == name),
            "its {HASHES} is damaged: {name:?} is no file name"
        );
        let bytes = fs::read(path.join(name)).with_context(|| format!("cannot read its {name}"))?;
        if hash(&bytes) != expected {
            bail!("its {name} is damaged: the SHA-256 is not the one in {HASHES}");
        }
        files.insert(name.to_owned(), bytes);
    }
    ensure!(!files.is_empty(), "its {HASHES} is empty");
    Ok(files)
}

/// Removes the folder at `path`; a kill in between leaves nothing that looks whole.
///
/// # Errors
/// It cannot be removed.
pub fn remove(path: &Path) -> Result<()> {
    let temporary = beside(path)?;
    fs::rename(path, &temporary)
        .and_then(|()| fs::remove_dir_all(&temporary))
        .with_context(|| format!("cannot remove {}", path.display()))
}

/// Makes sure that folders can be made in `folder`.
///
/// # Errors
/// They cannot.
pub fn ensure_writable(folder: &Path) -> Result<()> {
    let temporary = beside(&folder.join("check"))?;
    fs::create_dir(&temporary)?;
    Ok(fs::remove_dir(&temporary)?)
}

/// Removes what a kill left unfinished in `folder`.
///
/// # Errors
/// The folder cannot be read, or a leftover not be removed.
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
    let mut hashes = String::new();
    for (name, bytes) in files {
        write_file(&folder.join(name), bytes)?;
        writeln!(hashes, "{}  {name}", hash(bytes))?;
    }
    write_file(&folder.join(HASHES), hashes.as_bytes())?;
    sync_folder(folder)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    Ok(file.sync_all()?)
}

/// Makes a new name in `folder` last. Windows cannot open folders, and needs no such call.
fn sync_folder(folder: &Path) -> Result<()> {
    if cfg!(unix) {
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}

/// A hidden name for unfinished work in the same folder, so that a rename cannot cross disks.
fn beside(path: &Path) -> Result<PathBuf> {
    let name = path.file_name().context("the path names no folder")?;
    let name = format!("{TEMPORARY}{}-{}", process::id(), name.to_string_lossy());
    Ok(path.with_file_name(name))
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

/// SHA-256 in hexadecimal digits.
pub fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .fold(String::new(), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
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

    /// What is done to a folder, and what the message then says.
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
                |folder| fs::remove_file(folder.join(HASHES)).unwrap(),
                "cannot read its SHA256SUMS",
            ),
            (
                |folder| fs::write(folder.join(HASHES), "").unwrap(),
                "its SHA256SUMS is empty",
            ),
            (
                |folder| fs::write(folder.join(HASHES), "00  ../a.bin\n").unwrap(),
                "is no file name",
            ),
        ];
        for (damage, message) in cases {
            let parent = tempfile::tempdir().unwrap();
            let folder = parent.path().join("step-1");
            write(&folder, &files()).unwrap();
            damage(&folder);
            let error = format!("{:#}", read(&folder).unwrap_err());
            assert!(error.contains(message), "{error}");
        }
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
