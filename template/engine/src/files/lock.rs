//! A file lock that allows one run at a time to write to an output folder. The operating system releases it
//! when the process exits, even after a crash.

use std::{
    env, fs,
    fs::{File, OpenOptions, TryLockError},
    io::{self, ErrorKind, Read, Seek, Write},
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, SystemTime},
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{console::terminal, system};

/// File name of the lock, which names its holder.
const NAME: &str = "run.lock";

/// Time to wait for the name of the holder, which is written right after locking.
const INTRODUCTION: Duration = Duration::from_secs(1);

/// The lock on an output folder, and on its checkpoint folder if that is a link to elsewhere.
#[derive(Debug)]
pub struct OutputLock(Vec<Option<File>>);

/// The process that holds a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Holder {
    program: String,
    host: String,
    process: u32,
    started: String,
}

impl OutputLock {
    /// Locks `folder`, which is created if missing.
    ///
    /// Network file systems support such locks unless they are mounted without; a warning then says that
    /// other runs are not detected.
    ///
    /// # Errors
    /// Another run holds the lock, or the folder cannot be created or written to.
    pub fn acquire(folder: &Path) -> Result<Self> {
        let cannot = || format!("cannot make the output folder {}", folder.display());
        fs::create_dir_all(folder).with_context(cannot)?;
        let mut files = vec![lock(&folder.join(NAME), folder)?];
        let link = folder.join("checkpoints");
        if link.is_symlink() {
            fs::create_dir_all(behind_links(&link)).with_context(cannot)?;
            let checkpoints = fs::canonicalize(&link).with_context(cannot)?;
            if checkpoints != fs::canonicalize(folder).with_context(cannot)? {
                files.push(lock(&checkpoints.join(NAME), &checkpoints)?);
            }
        }
        Ok(OutputLock(files))
    }

    /// Whether the lock is held; false on a file system without locks.
    pub fn is_held(&self) -> bool {
        self.0.iter().all(Option::is_some)
    }
}

/// Locks the file at `path` for `folder`; `None` on a file system without locks.
fn lock(path: &Path, folder: &Path) -> Result<Option<File>> {
    let cannot = || format!("cannot write {}", path.display());
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false);
    let mut file = file.open(path).with_context(cannot)?;
    match file.try_lock() {
        Ok(()) => {
            introduce(&mut file).with_context(cannot)?;
            Ok(Some(file))
        }
        Err(TryLockError::WouldBlock) => bail!(
            "{} belongs to another run{}. Wait until it ends, stop it, or use another --output-dir",
            folder.display(),
            holder(path).map_or_else(String::new, |holder| format!(": {holder}"))
        ),
        Err(TryLockError::Error(error)) if has_no_locks(&error) => {
            terminal::warn(format_args!(
                "warning: the file system of {} has no locks ({error}): a second run in this folder \
                 would not be noticed",
                folder.display()
            ));
            Ok(None)
        }
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("cannot lock {}", path.display()))
        }
    }
}

/// The process that holds the lock on `folder`; `None` if there is none, or the file system has no locks.
pub fn held_by(folder: &Path) -> Option<String> {
    let path = folder.join(NAME);
    let file = File::open(&path).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => {
            Some(holder(&path).unwrap_or_else(|| "another process".to_owned()))
        }
        _ => None,
    }
}

fn has_no_locks(error: &io::Error) -> bool {
    // ENOLCK has no kind: a network file system without a lock service.
    const NO_LOCKS: i32 = 37;
    error.kind() == ErrorKind::Unsupported
        || cfg!(target_os = "linux") && error.raw_os_error() == Some(NO_LOCKS)
}

/// Writes the holder into the lock file.
fn introduce(file: &mut File) -> Result<()> {
    let holder = Holder {
        program: env::args().next().unwrap_or_default(),
        host: system::host().unwrap_or_else(|| "unknown".to_owned()),
        process: process::id(),
        started: system::utc(SystemTime::now()),
    };
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(&serde_json::to_vec(&holder)?)?;
    Ok(file.sync_all()?)
}

/// The holder of a lock, if its file names one.
fn holder(path: &Path) -> Option<String> {
    let step = INTRODUCTION / 20;
    for _ in 0..20 {
        // Right after a start, the file still names the run before, or nobody.
        thread::sleep(step);
        let mut text = String::new();
        let read = File::open(path).and_then(|mut file| file.read_to_string(&mut text));
        if read.is_err() {
            return None;
        }
        if let Ok(holder) = serde_json::from_str::<Holder>(&text) {
            let Holder {
                program,
                host,
                process,
                started,
            } = holder;
            return Some(format!(
                "process {process} ({program}) on host {host}, since {started}"
            ));
        }
    }
    None
}

/// Resolves symbolic links, even if the final target is missing.
fn behind_links(path: &Path) -> PathBuf {
    // The limit of Linux, against links that lead back.
    const MOST_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        let Ok(target) = fs::read_link(&path) else {
            break;
        };
        path = path.parent().unwrap_or(Path::new("")).join(target);
    }
    path
}

#[cfg(all(test, unix))]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_folder_behind_links_is_made_and_locked_for_all_that_lead_there() {
        let parent = tempfile::tempdir().unwrap();
        let path = |name: &str| parent.path().join(name);
        for runs in ["a", "b"] {
            fs::create_dir(path(runs)).unwrap();
            symlink("../link", path(runs).join("checkpoints")).unwrap();
        }
        symlink("disk/checkpoints", path("link")).unwrap();
        let first = OutputLock::acquire(&path("a")).unwrap();
        assert!(first.is_held() && path("disk/checkpoints").is_dir());
        let error = OutputLock::acquire(&path("b")).unwrap_err().to_string();
        let process = format!("belongs to another run: process {} (", process::id());
        assert!(error.contains(&process), "{error}");
        drop(first);
        OutputLock::acquire(&path("b")).unwrap();
    }
}
