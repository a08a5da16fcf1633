//! Changes of several files of a folder, all or none: also where the process is killed between two of
//! them.
//!
//! New contents and copies of the old files are written to a hidden folder first, then a journal that
//! lists what will be done, then each change is one renaming. What a killed process left is undone
//! from the journal by the next that works in the folder.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Write},
    path::{Component, Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The hidden folder, in that which is changed.
pub const FOLDER: &str = ".kiln-transaction";
const LOCK: &str = "lock";
const JOURNAL: &str = "journal.json";
const DONE: &str = "done";

/// What becomes of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Its path below the folder.
    pub path: PathBuf,
    /// The bytes that were there when this was decided; `None` where there was no file.
    pub was: Option<Vec<u8>>,
    /// Its new bytes and whether it can be run; `None` removes it.
    pub contents: Option<(Vec<u8>, bool)>,
}

/// A change as the journal has it. The number in the hidden folders is its place in the journal.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    path: PathBuf,
    /// The hash of what is written; `None` where the file is removed.
    new: Option<String>,
    /// Whether there is a file before.
    old: bool,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Journal {
    entries: Vec<Entry>,
    /// Folders that are made, the outermost first.
    folders: Vec<PathBuf>,
}

/// Undoes what a killed process left half done in `root`; says whether there was anything.
///
/// # Errors
/// Another Kiln is at work there, or the file system fails.
pub fn recover(root: &Path) -> Result<bool> {
    if !root.join(FOLDER).exists() {
        return Ok(false);
    }
    Ok(Transaction::begin(root)?.has_undone())
}

/// Whether a killed process left something half done in `root`.
pub fn is_unfinished(root: &Path) -> bool {
    let place = root.join(FOLDER);
    place.join(JOURNAL).exists() && !place.join(DONE).exists()
}

/// The right to change a folder, which one process has at a time.
#[derive(Debug)]
pub struct Transaction {
    root: PathBuf,
    place: PathBuf,
    lock: File,
    /// Whether something was left half done.
    undone: bool,
    /// Whether something is left for the next one to undo.
    unfinished: bool,
}

impl Transaction {
    /// Locks the folder `root`, and undoes what a killed process left half done in it.
    ///
    /// # Errors
    /// Another Kiln is at work there, or the file system fails.
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
        // Else a commit could take along what a killed process left.
        transaction.write(".gitignore", b"*\n")?;
        Ok(transaction)
    }

    /// Whether something was undone that a killed process had left half done.
    pub fn has_undone(&self) -> bool {
        self.undone
    }

    /// An empty folder to work in, which goes with the transaction.
    ///
    /// # Errors
    /// The file system fails.
    pub fn workplace(&self) -> Result<PathBuf> {
        let path = self.place.join("work");
        fs::create_dir(&path).map_err(|cause| Error::io("make the folder", &path, cause))?;
        Ok(path)
    }

    /// Changes files, and makes folders; or, on an error, leaves all as it was.
    ///
    /// # Errors
    /// A file is not as it was when its change was decided, or the file system fails.
    ///
    /// # Panics
    /// A path leads out of the folder.
    pub fn apply(mut self, changes: &[Change], folders: &[PathBuf]) -> Result<()> {
        let journal = self.prepare(changes, folders)?;
        self.unfinished = true;
        let done = self.carry_out(&journal, changes);
        if let Err(error) = done.and_then(|()| self.write(DONE, b"")) {
            // Where this fails, the journal stays, and the next one undoes it.
            self.undo()?;
            self.unfinished = false;
            return Err(error);
        }
        self.unfinished = false;
        Ok(())
    }

    /// Writes what is needed to carry out the changes and to undo them.
    fn prepare(&self, changes: &[Change], folders: &[PathBuf]) -> Result<Journal> {
        for folder in ["new", "old"] {
            let path = self.place.join(folder);
            fs::create_dir(&path).map_err(|cause| Error::io("make the folder", &path, cause))?;
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
                let mode = old.then(|| self.old(at));
                write_new(&self.fresh(at), bytes, *executable, mode.as_deref())
                    .map_err(|cause| Error::io("write", &target, cause))?;
            }
            journal.entries.push(Entry {
                path: change.path.clone(),
                new: change.contents.as_ref().map(|(bytes, _)| hash(bytes)),
                old,
            });
        }
        let text = serde_json::to_vec(&journal).map_err(|error| {
            Error::input(format!("a path cannot be noted: {error}"))
                .help("give the files names that are UTF-8")
        })?;
        self.write(JOURNAL, &text)?;
        Ok(journal)
    }

    /// The folders that have to be made, the outermost first.
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

    /// Keeps the file that stands at `target`; says whether there is one.
    fn keep_old(&self, at: usize, target: &Path) -> Result<bool> {
        let failed = |cause| Error::io("read", target, cause);
        match fs::symlink_metadata(target) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(cause) => return Err(failed(cause)),
            Ok(_) => {}
        }
        let old = self.old(at);
        // A link costs nothing; where there are none, a copy does as well.
        if fs::hard_link(target, &old).is_err() {
            fs::copy(target, &old).map_err(failed)?;
        }
        Ok(true)
    }

    /// What was there before, of a file that is kept.
    fn read_old(&self, at: usize, old: bool) -> Result<Option<Vec<u8>>> {
        let path = self.old(at);
        let read = || fs::read(&path).map_err(|cause| Error::io("read", &path, cause));
        old.then(read).transpose()
    }

    fn carry_out(&self, journal: &Journal, changes: &[Change]) -> Result<()> {
        for folder in &journal.folders {
            let folder = self.root.join(folder);
            fs::create_dir(&folder)
                .map_err(|cause| Error::io("make the folder", &folder, cause))?;
        }
        for (at, entry) in journal.entries.iter().enumerate() {
            let target = self.root.join(&entry.path);
            // An editor may have written since the old file was kept.
            if fs::read(&target).ok() != changes[at].was {
                return Err(changed_meanwhile(&target));
            }
            match entry.new {
                Some(_) => fs::rename(self.fresh(at), &target)
                    .map_err(|cause| Error::io("write", &target, cause))?,
                None if entry.old => {
                    fs::remove_file(&target).map_err(|cause| Error::io("remove", &target, cause))?
                }
                None => {}
            }
        }
        for entry in journal.entries.iter().filter(|entry| entry.new.is_none()) {
            // Those that are empty now go with their files.
            for folder in entry.path.ancestors().skip(1) {
                if folder.as_os_str().is_empty() || fs::remove_dir(self.root.join(folder)).is_err()
                {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Brings everything back that the journal lists, but what somebody changed since.
    fn undo(&self) -> Result<()> {
        let path = self.place.join(JOURNAL);
        let text = fs::read(&path).map_err(|cause| Error::io("read", &path, cause))?;
        let journal: Journal = serde_json::from_slice(&text).map_err(|error| {
            Error::system(format!("`{}` is damaged: {error}", path.display()))
                .help("compare the folder with version control, then remove that folder")
        })?;
        let paths = journal.entries.iter().map(|entry| &entry.path);
        if let Some(out) = paths.chain(&journal.folders).find(|path| !is_inside(path)) {
            let message = format!("`{}` leads out: {}", path.display(), out.display());
            return Err(Error::system(message).help("remove the folder that it is in"));
        }
        for (at, entry) in journal.entries.iter().enumerate().rev() {
            if !is_reached(&self.root, &entry.path) {
                // Somebody put something else on the way since.
                continue;
            }
            self.undo_entry(at, entry)
                .map_err(|cause| Error::io("restore", &self.root.join(&entry.path), cause))?;
        }
        for folder in journal.folders.iter().rev() {
            // One that is not empty is somebody's by now.
            let _ = fs::remove_dir(self.root.join(folder));
        }
        Ok(())
    }

    fn undo_entry(&self, at: usize, entry: &Entry) -> io::Result<()> {
        let target = self.root.join(&entry.path);
        let there = match fs::read(&target) {
            Ok(bytes) => Some(hash(&bytes)),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => None,
            // Somebody made a folder of it since.
            Err(cause) if cause.kind() == io::ErrorKind::IsADirectory => return Ok(()),
            Err(cause) => return Err(cause),
        };
        if there != entry.new {
            return Ok(());
        }
        if !entry.old {
            return match there {
                Some(_) => fs::remove_file(&target),
                None => Ok(()),
            };
        }
        if let Some(folder) = target.parent() {
            fs::create_dir_all(folder)?;
        }
        match fs::rename(self.old(at), &target) {
            // An earlier try to undo was killed after this.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Writes a file of the hidden folder, whole or not at all.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.place.join(name);
        let fresh = self.place.join(format!("{name}.new"));
        write_new(&fresh, bytes, false, None)
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(|cause| Error::io("write", &path, cause))
    }

    /// Empties the hidden folder, but for the lock; the journal goes last but one, as it says whether
    /// something is to be undone.
    fn clear(&self) -> Result<()> {
        let failed = |cause| Error::io("clear", &self.place, cause);
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.place).map_err(failed)? {
            names.push(entry.map_err(failed)?.file_name());
        }
        let rank = |name: &std::ffi::OsString| match name.to_str() {
            Some(JOURNAL) => 1,
            Some(DONE) => 2,
            // What git sees goes last.
            Some(".gitignore") => 3,
            _ => 0,
        };
        names.sort_by_key(rank);
        for name in names.iter().filter(|name| *name != LOCK) {
            let path = self.place.join(name);
            if path.is_dir() {
                // A copy of a file that cannot be written is no reason to stop.
                fs::remove_dir_all(&path).map_err(failed)?;
            } else {
                fs::remove_file(&path).map_err(failed)?;
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
            // The next one does it.
            return;
        }
        let _ = fs::remove_file(self.place.join(LOCK));
        let _ = self.lock.unlock();
        // Another one may be at work in it by now.
        let _ = fs::remove_dir(&self.place);
    }
}

fn changed_meanwhile(target: &Path) -> Error {
    let message = format!("`{}` changed while Kiln worked", target.display());
    Error::system(message).help("run the command again; nothing was changed")
}

/// Whether only folders lead to `path` below `root`, as far as there is anything.
fn is_reached(root: &Path, path: &Path) -> bool {
    let folders = path.ancestors().skip(1);
    folders.filter(|folder| !folder.as_os_str().is_empty()).all(
        |folder| match fs::symlink_metadata(root.join(folder)) {
            Ok(metadata) => metadata.is_dir(),
            Err(cause) => cause.kind() == io::ErrorKind::NotFound,
        },
    )
}

/// Locks the hidden folder, which is made if it is not there.
fn lock(root: &Path, place: &Path) -> Result<File> {
    let failed = |cause| Error::io("write to the folder", root, cause);
    loop {
        match fs::create_dir(place) {
            Err(cause) if cause.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed(cause));
            }
            _ => {}
        }
        let metadata = match fs::symlink_metadata(place) {
            // The last one has just removed the folder.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(failed)?,
        };
        if metadata.is_symlink() {
            let message = format!("`{}` is a symbolic link", place.display());
            return Err(Error::input(message).help("remove it: it is Kiln's own folder"));
        }
        let path = place.join(LOCK);
        let opened = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path);
        let file = match opened {
            // The last one has just removed the folder.
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => continue,
            other => other.map_err(failed)?,
        };
        match file.try_lock() {
            Ok(()) if is_at(&file, &path) => return Ok(file),
            // The last one has just removed it.
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let message = format!("another Kiln is at work in `{}`", root.display());
                return Err(Error::system(message).help("wait until it is done, then try again"));
            }
            Err(TryLockError::Error(cause)) => return Err(failed(cause)),
        }
    }
}

/// Whether an open file still stands at `path`.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(there)) => identity(open) == identity(there),
        _ => false,
    }
}

/// Elsewhere an open file cannot be removed.
#[cfg(not(unix))]
fn is_at(_: &File, path: &Path) -> bool {
    path.exists()
}

/// Writes a file with the rights of `like`, if there is one, but for whether it can be run.
fn write_new(path: &Path, bytes: &[u8], executable: bool, like: Option<&Path>) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(if executable { 0o777 } else { 0o666 });
    }
    let mut file = options.open(path)?;
    if let Some(like) = like {
        keep_rights(&file, like, executable)?;
    }
    file.write_all(bytes)?;
    // Otherwise a loss of power could leave the renaming and not the contents.
    file.sync_all()
}

#[cfg(unix)]
fn keep_rights(file: &File, like: &Path, executable: bool) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(like)?.permissions().mode() & 0o777;
    let mode = if executable {
        // Whoever may read it may run it.
        mode | (mode & 0o444) >> 2
    } else {
        mode & !0o111
    };
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// What a file may do is not kept elsewhere, as what is read-only could not be written.
#[cfg(not(unix))]
fn keep_rights(_: &File, _: &Path, _: bool) -> io::Result<()> {
    Ok(())
}

fn is_inside(path: &Path) -> bool {
    path.components()
        .all(|part| matches!(part, Component::Normal(_)))
}

fn hash(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}
