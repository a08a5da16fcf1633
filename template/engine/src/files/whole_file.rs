//! Atomic file writes: to a temporary file, which then replaces the target.

use std::{
    fs::{self, File, Permissions},
    io::{self, Seek, Write},
    path::Path,
};

use anyhow::{Context, Result};
use tempfile::{Builder, NamedTempFile};

/// Writes `contents` to a file atomically.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    fs::write(&temporary, contents)
        .and_then(|()| fs::rename(&temporary, path))
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Replaces the file at `path` atomically by the output of `write_to`, and keeps its permissions; a failure
/// leaves the old file. A pipe or device is written directly.
///
/// # Errors
/// The error of `write_to`, or the file cannot be written.
pub fn write_with(path: &Path, write_to: impl FnOnce(Box<dyn Write>) -> Result<()>) -> Result<()> {
    let cannot = || format!("cannot write {}", path.display());
    let is_new = !path.exists();
    // Fail before `write_to` runs if the file is not writable.
    let mut options = File::options();
    let old = options.write(true).create(true).truncate(false).open(path);
    let old = old.with_context(cannot)?;
    let metadata = old.metadata().with_context(cannot)?;
    if !metadata.is_file() {
        return write_to(Box::new(old));
    }
    drop(old);
    // Keep a symbolic link, and replace its target.
    let path = fs::canonicalize(path).with_context(cannot)?;
    if is_new {
        fs::remove_file(&path).with_context(cannot)?;
    }
    let new = aside(&path).with_context(cannot)?;
    write_to(Box::new(new.reopen().with_context(cannot)?))?;
    replace(&path, new, metadata.permissions()).with_context(cannot)
}

/// A temporary file in the folder of `path`, or elsewhere if that is not writable.
fn aside(path: &Path) -> io::Result<NamedTempFile> {
    let mut hidden = Builder::new();
    hidden.prefix(".tmp-");
    let folder = path.parent().unwrap_or(path);
    hidden.tempfile_in(folder).or_else(|_| hidden.tempfile())
}

/// Replaces `old` by `new`, or overwrites its contents if it cannot be replaced, such as a bind-mounted
/// file.
fn replace(old: &Path, new: NamedTempFile, permissions: Permissions) -> Result<()> {
    // Best effort: some file systems have no permissions.
    let _ = new.as_file().set_permissions(permissions);
    new.as_file().sync_all()?;
    let Err(failed) = new.persist(old) else {
        return Ok(());
    };
    let mut new = failed.file;
    if let Err(error) = write_over(old, &mut new) {
        let (_, kept) = new.keep()?;
        return Err(error).with_context(|| format!("the output is kept as {}", kept.display()));
    }
    Ok(())
}

fn write_over(old: &Path, new: &mut NamedTempFile) -> io::Result<()> {
    new.rewind()?;
    let mut old = File::options().write(true).truncate(true).open(old)?;
    io::copy(new, &mut old)?;
    old.sync_all()
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn a_failure_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new] = ["old", "new"].map(|name| folder.path().join(name));
        fs::write(&old, "of yesterday").unwrap();
        for path in [&old, &new] {
            let half = |mut file: Box<dyn Write>| {
                file.write_all(b"half")?;
                bail!("no more")
            };
            let error = write_with(path, half).unwrap_err();
            assert_eq!(error.to_string(), "no more");
        }
        assert_eq!(fs::read_to_string(&old).unwrap(), "of yesterday");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// A temporary file in `folder`.
    fn written_in(folder: &Path) -> NamedTempFile {
        let mut new = NamedTempFile::new_in(folder).unwrap();
        new.write_all(b"of today").unwrap();
        new
    }

    #[test]
    fn what_cannot_be_renamed_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let old = folder.path().join("old");
        fs::write(&old, "of yesterday, which was longer").unwrap();
        write_over(&old, &mut written_in(folder.path())).unwrap();
        assert_eq!(fs::read_to_string(&old).unwrap(), "of today");
    }

    #[test]
    fn what_finds_no_place_is_kept_and_named() {
        let folder = tempfile::tempdir().unwrap();
        // A folder can be neither replaced nor overwritten.
        let taken = folder.path().join("taken");
        fs::create_dir_all(taken.join("by this")).unwrap();
        let new = written_in(folder.path());
        let kept = new.path().to_owned();
        let permissions = new.as_file().metadata().unwrap().permissions();
        let error = format!("{:#}", replace(&taken, new, permissions).unwrap_err());
        let told = format!("the output is kept as {}", kept.display());
        assert!(error.starts_with(&told), "{error}");
        assert_eq!(fs::read_to_string(kept).unwrap(), "of today");
    }

    #[cfg(unix)]
    #[test]
    fn permissions_and_links_stay_and_devices_are_written_to() {
        use std::os::unix::fs::{PermissionsExt, symlink};

        let folder = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| folder.path().join(name));
        fs::write(&file, "of yesterday").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o640)).unwrap();
        symlink(&file, &link).unwrap();
        let write_to = |mut file: Box<dyn Write>| Ok(file.write_all(b"of today")?);
        write_with(&link, write_to).unwrap();
        assert!(link.is_symlink());
        assert_eq!(fs::read(&file).unwrap(), b"of today");
        let mode = fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
        write_with(Path::new("/dev/null"), write_to).unwrap();
    }
}
