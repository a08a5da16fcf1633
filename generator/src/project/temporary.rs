//! Hidden and temporary folders. A run removes its own; one that is killed leaves it to the next.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use tempfile::TempDir;

/// The file that is locked as long as a folder is in use.
const LOCK: &str = "lock";
/// The folder for contents, which is made when the lock is held.
const INNER: &str = "project";
/// The age from which a folder without contents was left behind: it may not be locked yet.
const OLD: Duration = Duration::from_secs(60);
/// Attempts to remove a folder.
const PATIENCE: usize = 5;

/// An empty folder that is removed on drop.
pub(crate) struct Temporary {
    path: PathBuf,
    /// Held until the process ends, to mark the folder as in use.
    _lock: File,
    _folder: TempDir,
}

impl Temporary {
    /// Makes a folder in a folder below `parent`, whose name starts with `prefix`, and removes those
    /// of killed runs.
    ///
    /// # Errors
    /// The file system fails.
    pub fn make(parent: &Path, prefix: &str) -> io::Result<Self> {
        remove_abandoned(parent, prefix);
        let folder = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        let lock = File::create_new(folder.path().join(LOCK))?;
        // Without file locks, folders of killed processes are kept.
        let _ = lock.lock();
        let path = folder.path().join(INNER);
        fs::create_dir(&path)?;
        Ok(Self {
            path,
            _lock: lock,
            _folder: folder,
        })
    }

    /// The empty folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn remove_abandoned(parent: &Path, prefix: &str) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        if !entry.file_name().to_string_lossy().starts_with(prefix) {
            continue;
        }
        let path = entry.path();
        let abandoned = match File::open(path.join(LOCK)) {
            Ok(lock) => {
                let is_begun = || path.join(INNER).exists() || lock.metadata().is_ok_and(is_old);
                lock.try_lock().is_ok() && is_begun()
            }
            // The process was killed before it made the lock file, when the folder was empty.
            Err(_) => entry.metadata().is_ok_and(is_old),
        };
        if abandoned {
            remove(&path);
        }
    }
}

/// Removes a folder; that of another user stays.
fn remove(path: &Path) {
    for _ in 0..PATIENCE {
        // The lock last: this run may be killed too, and the next must know the folder.
        let contents = match fs::remove_dir_all(path.join(INNER)) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        };
        match contents.and_then(|()| fs::remove_dir_all(path)) {
            // A git that the killed run has started still writes to it.
            Err(cause) if cause.kind() == io::ErrorKind::DirectoryNotEmpty => {
                thread::sleep(Duration::from_millis(5));
            }
            _ => return,
        }
    }
}

fn is_old(metadata: fs::Metadata) -> bool {
    let age = metadata.modified().ok();
    let age = age.and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age > OLD)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_run_left_is_removed_at_once_and_what_is_in_use_is_kept() {
        let place = tempfile::tempdir().unwrap();
        let used = Temporary::make(place.path(), "x-").unwrap();
        let [left, young, other] =
            ["x-left", "x-young", "y-other"].map(|name| place.path().join(name));
        for folder in [&left, &other] {
            fs::create_dir_all(folder.join(INNER).join("src")).unwrap();
            File::create(folder.join(LOCK)).unwrap();
        }
        fs::create_dir(&young).unwrap();
        let next = Temporary::make(place.path(), "x-").unwrap();
        assert!(used.path().is_dir() && next.path().is_dir());
        assert!(!left.exists() && young.exists() && other.exists());
        drop((used, next));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    }
}
