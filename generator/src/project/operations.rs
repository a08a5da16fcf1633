//! Operations on files before each of which a test can end the process, as if it were killed there.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::Path,
};

/// The variable with the number of the operation before which a debug build ends.
#[cfg(debug_assertions)]
const KILL_VARIABLE: &str = "KILN_TEST_KILL_BEFORE";

/// Ends the process where a test wants it; in release builds, never.
fn step() {
    #[cfg(debug_assertions)]
    {
        use std::sync::atomic::{AtomicUsize, Ordering};
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let now = COUNT.fetch_add(1, Ordering::Relaxed);
        if std::env::var(KILL_VARIABLE).is_ok_and(|at| at == now.to_string()) {
            // Nothing is dropped, and so nothing is cleaned up.
            std::process::exit(137);
        }
    }
}

pub(super) fn create_dir(path: impl AsRef<Path>) -> io::Result<()> {
    step();
    fs::create_dir(path)
}

pub(super) fn create_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    step();
    fs::create_dir_all(path)
}

pub(super) fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    step();
    fs::rename(from, to)
}

pub(super) fn hard_link(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    step();
    fs::hard_link(from, to)
}

pub(super) fn copy(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<u64> {
    step();
    fs::copy(from, to)
}

pub(super) fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    step();
    fs::remove_file(path)
}

pub(super) fn remove_dir(path: impl AsRef<Path>) -> io::Result<()> {
    step();
    fs::remove_dir(path)
}

pub(super) fn remove_dir_all(path: impl AsRef<Path>) -> io::Result<()> {
    step();
    fs::remove_dir_all(path)
}

#[cfg(unix)]
fn set_permissions(path: impl AsRef<Path>, rights: fs::Permissions) -> io::Result<()> {
    step();
    fs::set_permissions(path, rights)
}

fn open(options: &OpenOptions, path: &Path) -> io::Result<File> {
    step();
    options.open(path)
}

fn write_all(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    step();
    file.write_all(bytes)
}

/// Writes a file with the permissions of `like`, if it exists, and this executable bit.
pub(super) fn write_new(
    path: &Path,
    bytes: &[u8],
    executable: bool,
    like: Option<&Path>,
) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(if executable { 0o777 } else { 0o666 });
    }
    let mut file = open(&options, path)?;
    if let Some(like) = like {
        keep_rights(&file, like, executable)?;
    }
    write_all(&mut file, bytes)?;
    // Without it, a power failure could keep the rename but lose the contents.
    file.sync_all()
}

#[cfg(unix)]
pub(super) fn set_mode(path: &Path, mode: Option<u32>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    mode.map_or(Ok(()), |mode| {
        set_permissions(path, fs::Permissions::from_mode(mode))
    })
}

#[cfg(not(unix))]
pub(super) fn set_mode(_: &Path, _: Option<u32>) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn keep_rights(file: &File, like: &Path, executable: bool) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let mode = fs::metadata(like)?.permissions().mode() & 0o777;
    let mode = if executable {
        // Users who may read the file may execute it.
        mode | (mode & 0o444) >> 2
    } else {
        mode & !0o111
    };
    file.set_permissions(fs::Permissions::from_mode(mode))
}

/// Other platforms ignore permissions, as a read-only file could not be replaced.
#[cfg(not(unix))]
fn keep_rights(_: &File, _: &Path, _: bool) -> io::Result<()> {
    Ok(())
}
