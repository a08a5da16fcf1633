//! Writing a project to disk atomically, and creating its repository.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use tempfile::TempDir;

use super::transaction::{self, Change, Transaction};
use crate::{
    error::{Error, Result},
    render::{Rendered, RenderedFile},
    template::{Vcs, is_executable},
};

/// The prefix of staging folders.
const STAGING: &str = ".kiln-new-";
/// The lock file of a staging folder.
const LOCK: &str = "lock";

/// Options for writing a project.
#[derive(Debug, Clone, Copy)]
pub struct WriteOptions {
    /// Whether files of the template may replace existing files.
    pub force: bool,
    /// The version control, unless the project lies in a repository.
    pub vcs: Vcs,
    /// Whether a failure of git is an error rather than a warning.
    pub require_vcs: bool,
}

/// The files written, or planned to be written.
#[derive(Debug, Default)]
pub struct Written {
    /// New files.
    pub created: Vec<PathBuf>,
    /// Files whose contents changed.
    pub replaced: Vec<PathBuf>,
    /// Existing files with the same contents.
    pub unchanged: Vec<PathBuf>,
    /// Whether a repository was created.
    pub repository: bool,
    /// Failures that do not affect the project's files.
    pub warnings: Vec<String>,
}

/// Writes a project to `destination`. On an error, nothing is changed.
///
/// # Errors
/// The folder exists and is not empty (without `force`), a symbolic link or a folder blocks a path,
/// or the file system or git fails.
pub fn write(
    rendered: &Rendered<'_>,
    destination: &Path,
    options: WriteOptions,
) -> Result<Written> {
    if !destination.is_dir() {
        check_destination(destination, options.force)?;
        return write_new(rendered, destination, options);
    }
    // Repeated under the lock, when no other process can write.
    check_destination(destination, true)?;
    let transaction = Transaction::begin(destination)?;
    check_destination(destination, options.force)?;
    write_into(rendered, destination, options, transaction)
}

/// The outcome of [`write()`], without changing anything.
///
/// # Errors
/// The folder exists and is not empty (without `force`), or a symbolic link or a folder blocks a path.
pub fn plan(rendered: &Rendered<'_>, destination: &Path, options: WriteOptions) -> Result<Written> {
    check_destination(destination, options.force)?;
    let exists = destination.exists();
    let mut written = if exists {
        compare(rendered, destination)?.1
    } else {
        all_created(rendered)
    };
    let place = if exists {
        destination
    } else {
        parent(destination)
    };
    written.repository = options.vcs == Vcs::Git && !in_repository(place)?;
    Ok(written)
}

/// Checks whether a project can be written to `destination`, before anything is rendered or asked.
///
/// # Errors
/// The destination is blocked.
pub fn check_destination(destination: &Path, force: bool) -> Result<()> {
    let metadata = match fs::symlink_metadata(destination) {
        Ok(metadata) => metadata,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) if cause.kind() == io::ErrorKind::NotADirectory => {
            let shown = destination.display();
            return Err(
                Error::input(format!("part of the path `{shown}` is not a folder"))
                    .help("give another folder with `--path`"),
            );
        }
        Err(cause) => return Err(Error::io("access", destination, cause)),
    };
    let shown = destination.display();
    if metadata.is_symlink() {
        return Err(Error::input(format!("`{shown}` is a symbolic link"))
            .help("give the target of the link"));
    }
    if !metadata.is_dir() {
        return Err(
            Error::input(format!("`{shown}` exists and is not a folder"))
                .help("give another folder with `--path`"),
        );
    }
    let entries = fs::read_dir(destination)
        .map_err(|cause| Error::io("read the folder", destination, cause))?;
    let mut entries = entries.flatten().map(|entry| entry.file_name());
    if !force && entries.any(|name| name != transaction::FOLDER) {
        return Err(
            Error::input(format!("the folder `{shown}` exists and is not empty")).help(
                "give another folder with `--path`, or add `--force` to replace the files that the \
             template has too; all other files are kept",
            ),
        );
    }
    Ok(())
}

/// Writes to a new folder: to a hidden sibling, which is then renamed.
fn write_new(
    rendered: &Rendered<'_>,
    destination: &Path,
    options: WriteOptions,
) -> Result<Written> {
    let parent = parent(destination);
    let parents = MadeFolders::make(parent)?;
    let place = staging(parent)?;
    let project = &place.project;
    fill(project, destination, rendered)?;
    let mut written = all_created(rendered);
    if options.vcs == Vcs::Git && !in_repository(parent)? {
        make_repository(project, options.require_vcs, &mut written)?;
    }
    fs::rename(project, destination).map_err(|cause| not_made(destination, cause))?;
    parents.keep();
    Ok(written)
}

fn parent(destination: &Path) -> &Path {
    match destination.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn all_created(rendered: &Rendered<'_>) -> Written {
    let files = rendered.files.iter();
    Written {
        created: files.map(|file| file.path.clone()).collect(),
        ..Written::default()
    }
}

/// Writes to an existing folder in a transaction.
fn write_into(
    rendered: &Rendered<'_>,
    destination: &Path,
    options: WriteOptions,
    transaction: Transaction,
) -> Result<Written> {
    let (mut changes, mut written) = compare(rendered, destination)?;
    let mut folders = rendered.folders.clone();
    if options.vcs == Vcs::Git && !in_repository(destination)? {
        let place = transaction.workplace()?;
        make_repository(&place, options.require_vcs, &mut written)?;
        read_folder(&place, Path::new(""), &mut changes, &mut folders)?;
    }
    transaction.apply(&changes, &folders)?;
    Ok(written)
}

/// Lists the files and folders below `root`.
fn read_folder(
    root: &Path,
    folder: &Path,
    files: &mut Vec<Change>,
    folders: &mut Vec<PathBuf>,
) -> Result<()> {
    let place = root.join(folder);
    let failed = |cause| Error::io("read the folder", &place, cause);
    for entry in fs::read_dir(&place).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = folder.join(entry.file_name());
        let kind = entry.file_type().map_err(failed)?;
        if kind.is_dir() {
            read_folder(root, &path, files, folders)?;
            folders.push(path);
        } else if !kind.is_file() || path.to_str().is_none() {
            let message = format!(
                "`git init` creates `{}`, which is not a regular file",
                path.display()
            );
            return Err(Error::system(message).help("use `--vcs none`; nothing was written"));
        } else {
            let contents = fs::read(entry.path()).map_err(failed)?;
            let executable = is_executable(&entry.metadata().map_err(failed)?);
            files.push(Change {
                path,
                was: None,
                contents: Some((contents, executable)),
            });
        }
    }
    Ok(())
}

/// The files to write, and the outcome of each; fails if a path is blocked.
fn compare(rendered: &Rendered<'_>, destination: &Path) -> Result<(Vec<Change>, Written)> {
    let mut changes = Vec::new();
    let mut written = Written::default();
    for folder in &rendered.folders {
        check_way(destination, folder, true)?;
    }
    for file in &rendered.files {
        let target = destination.join(&file.path);
        let was = check_way(destination, &file.path, false)?.then(|| fs::read(&target));
        let was = was
            .transpose()
            .map_err(|cause| Error::io("read", &target, cause))?;
        match &was {
            Some(there) if *there == *file.contents => {
                written.unchanged.push(file.path.clone());
                continue;
            }
            Some(_) => written.replaced.push(file.path.clone()),
            None => written.created.push(file.path.clone()),
        }
        changes.push(Change {
            path: file.path.clone(),
            was,
            contents: Some((file.contents.to_vec(), file.executable)),
        });
    }
    Ok((changes, written))
}

/// Whether `path` exists below `root`; fails if it is of the wrong type or passes a symbolic link.
pub(crate) fn check_way(root: &Path, path: &Path, folder: bool) -> Result<bool> {
    let mut way = root.to_path_buf();
    let parts = path.components().count();
    for (at, part) in path.components().enumerate() {
        way.push(part);
        let metadata = match fs::symlink_metadata(&way) {
            Ok(metadata) => metadata,
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(cause) => return Err(Error::io("access", &way, cause)),
        };
        let wants_folder = folder || at + 1 < parts;
        let problem = if metadata.is_symlink() {
            "is a symbolic link, which Kiln does not write through"
        } else if wants_folder && !metadata.is_dir() {
            "blocks a folder of the template"
        } else if !wants_folder && !metadata.is_file() {
            "blocks a file of the template"
        } else {
            continue;
        };
        return Err(Error::input(format!("`{}` {problem}", way.display()))
            .help("move it away first; nothing was written"));
    }
    Ok(true)
}

/// An error if another process created the folder in the meantime.
fn not_made(destination: &Path, cause: io::Error) -> Error {
    match check_destination(destination, false) {
        Err(error) => error,
        Ok(()) => Error::io("make", destination, cause),
    }
}

/// A hidden staging folder with an empty folder for a project, which is removed on drop.
struct Staging {
    project: PathBuf,
    /// Held until the process ends, to mark the folder as in use.
    _lock: File,
    _folder: TempDir,
}

fn staging(parent: &Path) -> Result<Staging> {
    remove_abandoned(parent);
    let failed = |cause| Error::io("write to the folder", parent, cause);
    let folder = tempfile::Builder::new()
        .prefix(STAGING)
        .tempdir_in(parent)
        .map_err(failed)?;
    let lock = File::create_new(folder.path().join(LOCK)).map_err(failed)?;
    // Without file locks, staging folders of killed processes are kept.
    let _ = lock.try_lock();
    let project = folder.path().join("project");
    make_folder(&project)?;
    Ok(Staging {
        project,
        _lock: lock,
        _folder: folder,
    })
}

/// Removes staging folders of killed processes. Folders younger than a minute are kept, as they may
/// not be locked yet.
fn remove_abandoned(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_string_lossy().starts_with(STAGING);
        if ours && File::open(entry.path().join(LOCK)).is_ok_and(|lock| is_abandoned(&lock)) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn is_abandoned(lock: &File) -> bool {
    let age = lock.metadata().and_then(|metadata| metadata.modified());
    let age = age.ok().and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age > Duration::from_secs(60)) && lock.try_lock().is_ok()
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir(path).map_err(|cause| Error::io("create the folder", path, cause))
}

/// Writes all files and folders below `root`; errors show their final paths.
fn fill(root: &Path, destination: &Path, rendered: &Rendered<'_>) -> Result<()> {
    for folder in &rendered.folders {
        make_folder(&root.join(folder))?;
    }
    for file in &rendered.files {
        assert!(
            file.path
                .components()
                .all(|part| matches!(part, Component::Normal(_))),
            "rendered paths lie in the project"
        );
        write_file(&root.join(&file.path), file)
            .map_err(|cause| Error::io("write", &destination.join(&file.path), cause))?;
    }
    Ok(())
}

fn write_file(path: &Path, file: &RenderedFile<'_>) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(if file.executable { 0o777 } else { 0o666 });
    }
    options.open(path)?.write_all(&file.contents)
}

fn in_repository(folder: &Path) -> Result<bool> {
    let folder =
        std::path::absolute(folder).map_err(|cause| Error::io("find the folder", folder, cause))?;
    Ok(folder
        .ancestors()
        .any(|folder| folder.join(".git").exists()))
}

/// The output of git for files in a folder; `None` if it fails.
pub(crate) fn git(folder: &Path, args: &[&str], files: &[&Path]) -> Option<String> {
    let output = git_command()
        .arg("--literal-pathspecs")
        .args(args)
        .args(files)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output();
    let output = output.ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The git command, independent of environment variables that redirect it.
fn git_command() -> Command {
    let mut git = Command::new("git");
    for variable in [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",
    ] {
        git.env_remove(variable);
    }
    git
}

fn make_repository(project: &Path, required: bool, written: &mut Written) -> Result<()> {
    let mut git = git_command();
    let output = git
        .args(["init", "--quiet"])
        .current_dir(project)
        .stdin(Stdio::null())
        .output();
    let problem = match output {
        Ok(output) if output.status.success() => {
            written.repository = true;
            return Ok(());
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Err(cause) => cause.to_string(),
    };
    let message = format!("`git init` failed: {problem}");
    if required {
        return Err(Error::system(message).help("use `--vcs none`; nothing was written"));
    }
    written.warnings.push(format!(
        "{message}; the project is under no version control"
    ));
    Ok(())
}

/// Parent folders created for a project, which are removed on drop unless kept.
struct MadeFolders(Vec<PathBuf>);

impl MadeFolders {
    fn make(folder: &Path) -> Result<Self> {
        let missing: Vec<_> = folder
            .ancestors()
            .take_while(|folder| !folder.as_os_str().is_empty() && !folder.exists())
            .collect();
        let mut made = Self(Vec::new());
        for folder in missing.into_iter().rev() {
            make_folder(folder)?;
            made.0.push(folder.to_path_buf());
        }
        Ok(made)
    }

    fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for MadeFolders {
    fn drop(&mut self) {
        for folder in self.0.iter().rev() {
            // A folder that is not empty is in use by now.
            let _ = fs::remove_dir(folder);
        }
    }
}
