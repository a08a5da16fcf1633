//! Transactions on the files of a folder: all changes are applied or none, even if the process is killed.
//!
//! New contents and copies of the old files are first written to a hidden folder, followed by a
//! journal of all changes; then each change is a single rename. The next transaction in the folder
//! rolls back an interrupted one from its journal.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    path::{Component, Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::operations::{self, set_mode, write_new};
use crate::{
    display::sha256,
    error::{Error, Result},
};

/// The hidden folder of a transaction, in the folder that it changes.
pub const FOLDER: &str = ".kiln-transaction";
const LOCK: &str = "lock";
const JOURNAL: &str = "journal.json";
const DONE: &str = "done";
/// Keeps the other files of the hidden folder out of commits: written first and removed last.
const IGNORE: &str = ".gitignore";
const ALL: &[u8] = b"*\n";

/// A change of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Path, relative to the folder.
    pub path: PathBuf,
    /// The expected old contents; `None` if the file must not exist.
    pub was: Option<Vec<u8>>,
    /// The new contents and executable bit; `None` removes the file.
    pub contents: Option<(Vec<u8>, bool)>,
    /// The exact permissions of the new file on Unix; by default, those of the old file.
    pub mode: Option<u32>,
}

impl Change {
    /// A new file.
    pub(crate) fn added(path: PathBuf, contents: Vec<u8>) -> Self {
        Self {
            path,
            was: None,
            contents: Some((contents, false)),
            mode: None,
        }
    }

    /// The removal of a file with these contents.
    pub(crate) fn removed(path: PathBuf, was: Vec<u8>) -> Self {
        Self {
            path,
            was: Some(was),
            contents: None,
            mode: None,
        }
    }
}

/// An entry of the journal. Its index is the file name in the hidden folders.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    path: PathBuf,
    /// The hash of the new contents; `None` if the file is removed.
    new: Option<String>,
    /// Whether an old file exists.
    old: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Journal {
    entries: Vec<Entry>,
    /// Folders to create, outermost first.
    folders: Vec<PathBuf>,
}

/// Rolls back an interrupted transaction in `root`, if any; returns whether there was one.
///
/// # Errors
/// Another process has a transaction in the folder, or the file system fails.
pub fn recover(root: &Path) -> Result<bool> {
    if !root.join(FOLDER).exists() {
        return Ok(false);
    }
    Ok(Transaction::begin(root)?.has_undone())
}

/// Whether `root` has an interrupted transaction.
pub fn is_unfinished(root: &Path) -> bool {
    let place = root.join(FOLDER);
    place.join(JOURNAL).exists() && !place.join(DONE).exists()
}

/// A transaction: an exclusive lock on a folder.
#[derive(Debug)]
pub struct Transaction {
    root: PathBuf,
    place: PathBuf,
    lock: File,
    /// Whether an interrupted transaction was rolled back.
    undone: bool,
    /// Whether the next transaction must roll back this one.
    unfinished: bool,
}

impl Transaction {
    /// Locks the folder `root` and rolls back an interrupted transaction in it.
    ///
    /// # Errors
    /// Another process has a transaction in the folder, or the file system fails.
    pub fn begin(root: &Path) -> Result<Self> {
        let place = root.join(FOLDER);
        let lock = lock(root, &place)?;
        let mut transaction = Self {
            root: root.to_path_buf(),
            place,
            lock,
            undone: false,
            unfinished: is_unfinished(root),
        };
        if transaction.unfinished {
            transaction.undo()?;
            transaction.undone = true;
            transaction.unfinished = false;
        }
        transaction.clear()?;
        Ok(transaction)
    }

    /// Whether an interrupted transaction was rolled back.
    pub fn has_undone(&self) -> bool {
        self.undone
    }

    /// An empty folder for temporary files, which is removed with the transaction.
    ///
    /// # Errors
    /// The file system fails.
    pub fn workplace(&self) -> Result<PathBuf> {
        let path = self.place.join("work");
        operations::create_dir(&path)
            .map_err(|cause| Error::io("create the folder", &path, cause))?;
        Ok(path)
    }

    /// Applies changes of files and creates folders; on an error, rolls everything back.
    ///
    /// # Errors
    /// A file does not have its expected contents, or the file system fails.
    ///
    /// # Panics
    /// A path leads out of the folder.
    pub fn apply(mut self, changes: &[Change], folders: &[PathBuf]) -> Result<()> {
        let journal = self.prepare(changes, folders)?;
        self.unfinished = true;
        let done = self.carry_out(&journal, changes);
        if let Err(error) = done.and_then(|()| self.write(DONE, b"")) {
            // If the rollback fails, the journal is kept for the next transaction.
            self.undo()?;
            self.unfinished = false;
            return Err(error);
        }
        self.unfinished = false;
        Ok(())
    }

    /// Writes everything that is needed to apply the changes and to roll them back.
    fn prepare(&self, changes: &[Change], folders: &[PathBuf]) -> Result<Journal> {
        for folder in ["new", "old"] {
            let path = self.place.join(folder);
            operations::create_dir(&path)
                .map_err(|cause| Error::io("create the folder", &path, cause))?;
        }
        let mut journal = Journal {
            entries: Vec::new(),
            folders: self.missing(changes, folders),
        };
        for (at, change) in changes.iter().enumerate() {
            assert!(
                is_inside(&change.path),
                "{} leads out of the project",
                change.path.display()
            );
            let target = self.root.join(&change.path);
            let old = self.keep_old(at, &target)?;
            if self.read_old(at, old)? != change.was {
                return Err(changed_meanwhile(&target));
            }
            if let Some((bytes, executable)) = &change.contents {
                let like = old.then(|| self.old(at));
                write_new(&self.fresh(at), bytes, *executable, like.as_deref())
                    .and_then(|()| set_mode(&self.fresh(at), change.mode))
                    .map_err(|cause| Error::io("write", &target, cause))?;
            }
            journal.entries.push(Entry {
                path: change.path.clone(),
                new: change.contents.as_ref().map(|(bytes, _)| sha256(bytes)),
                old,
            });
        }
        let text = serde_json::to_vec(&journal).map_err(|error| {
            Error::input(format!("a path cannot be recorded: {error}"))
                .help("rename the file: its name must be UTF-8")
        })?;
        self.write(JOURNAL, &text)?;
        Ok(journal)
    }

    /// The folders to create, outermost first.
    fn missing(&self, changes: &[Change], folders: &[PathBuf]) -> Vec<PathBuf> {
        let written = changes.iter().filter(|change| change.contents.is_some());
        let parents = written.flat_map(|change| change.path.ancestors().skip(1));
        let wanted = folders.iter().flat_map(|folder| folder.ancestors());
        let mut missing: Vec<_> = parents
            .chain(wanted)
            .filter(|folder| !self.root.join(folder).exists())
            .map(Path::to_path_buf)
            .collect();
        missing.sort();
        missing.dedup();
        missing
    }

    /// Keeps a copy of the file at `target`; returns whether it exists.
    fn keep_old(&self, at: usize, target: &Path) -> Result<bool> {
        let failed = |cause| Error::io("read", target, cause);
        match fs::symlink_metadata(target) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(cause) => return Err(failed(cause)),
            Ok(_) => {}
        }
        let old = self.old(at);
        // A hard link is cheap; without hard links, the file is copied.
        if operations::hard_link(target, &old).is_err() {
            operations::copy(target, &old).map_err(failed)?;
        }
        Ok(true)
    }

    /// The contents of a kept file.
    fn read_old(&self, at: usize, old: bool) -> Result<Option<Vec<u8>>> {
        let path = self.old(at);
        let read = || fs::read(&path).map_err(|cause| Error::io("read", &path, cause));
        old.then(read).transpose()
    }

    fn carry_out(&self, journal: &Journal, changes: &[Change]) -> Result<()> {
        for folder in &journal.folders {
            let folder = self.root.join(folder);
            operations::create_dir(&folder)
                .map_err(|cause| Error::io("create the folder", &folder, cause))?;
        }
        for (at, entry) in journal.entries.iter().enumerate() {
            let target = self.root.join(&entry.path);
            // An editor may have changed the file since it was copied.
            if fs::read(&target).ok() != changes[at].was {
                return Err(changed_meanwhile(&target));
            }
            match entry.new {
                Some(_) => operations::rename(self.fresh(at), &target)
                    .map_err(|cause| Error::io("write", &target, cause))?,
                None if entry.old => operations::remove_file(&target)
                    .map_err(|cause| Error::io("remove", &target, cause))?,
                None => {}
            }
        }
        for entry in journal.entries.iter().filter(|entry| entry.new.is_none()) {
            // Folders that are now empty are removed too.
            for folder in entry.path.ancestors().skip(1) {
                if folder.as_os_str().is_empty()
                    || operations::remove_dir(self.root.join(folder)).is_err()
                {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Rolls back the changes in the journal, except files that were changed since.
    fn undo(&self) -> Result<()> {
        let path = self.place.join(JOURNAL);
        let text = fs::read(&path).map_err(|cause| Error::io("read", &path, cause))?;
        let journal: Journal = serde_json::from_slice(&text).map_err(|error| {
            Error::system(format!("`{}` is corrupt: {error}", path.display())).help(
                "compare the project with version control, then remove the folder of this file",
            )
        })?;
        let paths = journal.entries.iter().map(|entry| &entry.path);
        if let Some(out) = paths.chain(&journal.folders).find(|path| !is_inside(path)) {
            let message = format!(
                "`{}` has a path outside the folder: {}",
                path.display(),
                out.display()
            );
            return Err(Error::system(message).help("remove the folder of this file"));
        }
        for (at, entry) in journal.entries.iter().enumerate().rev() {
            if !is_reached(&self.root, &entry.path) {
                // An entry on the path was replaced since.
                continue;
            }
            self.undo_entry(at, entry)
                .map_err(|cause| Error::io("restore", &self.root.join(&entry.path), cause))?;
        }
        for folder in journal.folders.iter().rev() {
            // A folder that is not empty has new files of the user.
            let _ = operations::remove_dir(self.root.join(folder));
        }
        Ok(())
    }

    fn undo_entry(&self, at: usize, entry: &Entry) -> io::Result<()> {
        let target = self.root.join(&entry.path);
        let there = match fs::read(&target) {
            Ok(bytes) => Some(sha256(&bytes)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
            // The file was replaced by a folder since.
            Err(cause) if cause.kind() == io::ErrorKind::IsADirectory => return Ok(()),
            Err(cause) => return Err(cause),
        };
        if there != entry.new {
            return Ok(());
        }
        if !entry.old {
            return match there {
                Some(_) => operations::remove_file(&target),
                None => Ok(()),
            };
        }
        if let Some(folder) = target.parent() {
            operations::create_dir_all(folder)?;
        }
        match operations::rename(self.old(at), &target) {
            // A previous rollback was killed after this step.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Writes a file of the hidden folder atomically.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.place.join(name);
        let fresh = self.place.join(format!("{name}.new"));
        write_new(&fresh, bytes, false, None)
            .and_then(|()| operations::rename(&fresh, &path))
            .map_err(|cause| Error::io("write", &path, cause))
    }

    /// Empties the hidden folder except for the lock and what hides it from git. The journal is
    /// removed before the marker of completion, so that a finished transaction is never rolled back.
    fn clear(&self) -> Result<()> {
        let failed = |cause| Error::io("clear", &self.place, cause);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.place).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name());
        }
        let rank = |name: &std::ffi::OsString| match name.to_str() {
            Some(JOURNAL) => 1,
            Some(DONE) => 2,
            _ => 0,
        };
        names.sort_by_key(rank);
        for name in names.iter().filter(|name| *name != LOCK && *name != IGNORE) {
            let path = self.place.join(name);
            if path.is_dir() {
                // Read-only copies can be removed too.
                operations::remove_dir_all(&path).map_err(failed)?;
            } else {
                operations::remove_file(&path).map_err(failed)?;
            }
        }
        Ok(())
    }

    fn fresh(&self, at: usize) -> PathBuf {
        self.place.join("new").join(at.to_string())
    }

    fn old(&self, at: usize) -> PathBuf {
        self.place.join("old").join(at.to_string())
    }
}

impl Drop for Transaction {
    fn drop(&mut self) {
        if self.unfinished || self.clear().is_err() {
            // The next transaction cleans up.
            return;
        }
        let _ = operations::remove_file(self.place.join(LOCK));
        let _ = operations::remove_file(self.place.join(IGNORE));
        let _ = self.lock.unlock();
        // Another process may be using the folder by now.
        let _ = operations::remove_dir(&self.place);
    }
}

fn changed_meanwhile(target: &Path) -> Error {
    let message = format!("`{}` was changed while Kiln was running", target.display());
    Error::system(message).help("run the command again; nothing was changed")
}

/// Whether every existing part of `path` below `root` is a folder.
fn is_reached(root: &Path, path: &Path) -> bool {
    let folders = path.ancestors().skip(1);
    folders.filter(|folder| !folder.as_os_str().is_empty()).all(
        |folder| match fs::symlink_metadata(root.join(folder)) {
            Ok(metadata) => metadata.is_dir(),
            Err(cause) => cause.kind() == io::ErrorKind::NotFound,
        },
    )
}

/// Longest wait for a lock.
const PATIENCE: Duration = Duration::from_millis(300);

/// Creates the hidden folder if it is missing, and locks it.
fn lock(root: &Path, place: &Path) -> Result<File> {
    let failed = |cause| Error::io("write to the folder", root, cause);
    let began = Instant::now();
    loop {
        match operations::create_dir(place) {
            Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(cause));
            }
            _ => {}
        }
        let metadata = match fs::symlink_metadata(place) {
            // The previous transaction has just removed the folder.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(failed)?,
        };
        if metadata.is_symlink() {
            let message = format!("`{}` is a symbolic link", place.display());
            return Err(
                Error::input(message).help("remove the link; the folder is reserved for Kiln")
            );
        }
        let path = place.join(LOCK);
        let opened = hide(place).and_then(|()| {
            let mut options = OpenOptions::new();
            options.create(true).truncate(false).write(true).open(&path)
        });
        let file = match opened {
            // The previous transaction has just removed the folder.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(failed)?,
        };
        match file.try_lock() {
            Ok(()) if is_at(&file, &path) => return Ok(file),
            // The previous transaction has just removed the lock file.
            Ok(()) => {}
            // A git that a killed process was about to start has its lock for a moment.
            Err(TryLockError::WouldBlock) if began.elapsed() < PATIENCE => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => {
                let message = format!("another process of Kiln is changing `{}`", root.display());
                return Err(Error::system(message).help("wait until it exits, then try again"));
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
    }
}

/// Hides the files of the folder from git.
fn hide(place: &Path) -> io::Result<()> {
    let path = place.join(IGNORE);
    match fs::read(&path) {
        Ok(there) if there == ALL => Ok(()),
        // Without a pause between creating and filling it: until then, Git shows the file itself. What
        // a crash loses of it is written again by the next run.
        _ => fs::write(&path, ALL),
    }
}

/// Whether an open file is still the one at `path`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => identity(open) == identity(there),
        _ => false,
    }
}

/// On other platforms, an open file cannot be removed.
#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

fn is_inside(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_)))
}
