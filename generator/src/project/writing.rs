//! Writing a project to disk atomically, and creating its repository.

use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    iter,
    panic::resume_unwind,
    path::{Component, Path, PathBuf},
    thread,
};

use super::{
    pending,
    place::check_parents,
    record::RECORD_FILE,
    repository::{make_repository, wants_repository},
    temporary::Temporary,
    transaction::{Change, Transaction},
};
use crate::{
    display::slashed,
    error::{Error, Result},
    project::workspace::check_replaced,
    render::{Rendered, RenderedFile},
    template::{Vcs, is_executable},
};

/// The threads that write the files of a new project, and the fewest files for each.
const WRITERS: usize = 4;
const FEWEST_FILES: usize = 32;
/// The prefix of staging folders.
const STAGING: &str = ".kiln-new-";
/// Files that are kept if they exist: a new repository often has them.
const KEPT: [&str; 1] = ["README.md"];
/// Files that get the template's lines if they exist.
const EXTENDED: [&str; 2] = [".gitignore", ".gitattributes"];
/// Maximum number of files in an error message.
const SHOWN: usize = 5;

/// Options for writing a project.
#[derive(Debug, Clone, Copy)]
pub struct WriteOptions {
    /// Whether files of the template may replace existing files.
    pub force: bool,
    /// The version control, unless the project lies in a repository that does not ignore it.
    pub vcs: Vcs,
    /// Whether the user asked for it: a failure of git is an error rather than a warning, and a
    /// repository is created inside another one.
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
    /// Existing files that were kept in place of the template's.
    pub kept: Vec<PathBuf>,
    /// Existing files that the template's lines were added to.
    pub extended: Vec<PathBuf>,
    /// Whether a repository was created.
    pub repository: bool,
    /// Lines about the repository.
    pub notes: Vec<String>,
    /// Failures that do not affect the project's files.
    pub warnings: Vec<String>,
}

/// Writes a project to `destination`. Without `force`, an existing `README.md` is kept, and an existing
/// `.gitignore` gets the lines that it lacks. On an error, nothing is changed.
///
/// # Errors
/// Another file of the template exists (without `force`), a symbolic link or a folder blocks a path, or
/// the file system or git fails.
pub fn write(
    rendered: &Rendered<'_>,
    destination: &Path,
    options: WriteOptions,
) -> Result<Written> {
    check_destination(destination)?;
    if !destination.is_dir() {
        return write_new(rendered, destination, options);
    }
    let transaction = Transaction::begin(destination)?;
    // Repeated under the lock, when no other process can write.
    check_destination(destination)?;
    write_into(rendered, destination, options, transaction)
}

/// The outcome of [`write()`], without changing anything.
///
/// # Errors
/// A file of the template exists (without `force`), or a symbolic link or a folder blocks a path.
pub fn plan(rendered: &Rendered<'_>, destination: &Path, options: WriteOptions) -> Result<Written> {
    check_destination(destination)?;
    let mut written = if destination.exists() {
        compare(rendered, destination, options.force)?.1
    } else {
        all_created(rendered)
    };
    written.repository = wants_repository(destination, options, &mut written)?;
    Ok(written)
}

/// Checks that no file of a project exists in `destination`, except those that are kept or extended.
///
/// # Errors
/// Files exist, which the error lists, or a path is blocked.
pub fn check_free(rendered: &Rendered<'_>, destination: &Path) -> Result<()> {
    if destination.exists() {
        compare(rendered, destination, false)?;
    }
    Ok(())
}

/// Checks whether a project can be written to `destination`, before anything is rendered or asked.
///
/// # Errors
/// The destination is blocked.
pub fn check_destination(destination: &Path) -> Result<()> {
    let metadata = match fs::symlink_metadata(destination) {
        Ok(metadata) => metadata,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
            return check_parents(destination);
        }
        Err(cause) if cause.kind() == io::ErrorKind::InvalidFilename => {
            let message = "a part of the folder's path is too long for the file system";
            return Err(Error::input(message)
                .help("give a folder with a shorter name; most file systems take 255 bytes"));
        }
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
    // A hidden sibling.
    let place = Temporary::make(parent, STAGING)
        .map_err(|cause| Error::io("write to the folder", parent, cause))?;
    let project = place.path();
    fill(project, destination, rendered)?;
    let mut written = all_created(rendered);
    if wants_repository(destination, options, &mut written)? {
        make_repository(project, options.require_vcs, &mut written)?;
    }
    fs::rename(project, destination).map_err(|cause| not_made(destination, cause))?;
    parents.keep();
    Ok(written)
}

pub(super) fn parent(destination: &Path) -> &Path {
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
    pending::refuse(destination)?;
    let (mut changes, mut written) = compare(rendered, destination, options.force)?;
    // The record is written last: while it is the old one, an update merges what is missing.
    changes.sort_by_key(|change| change.path == Path::new(RECORD_FILE));
    let mut folders = rendered.folders.clone();
    if wants_repository(destination, options, &mut written)? {
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
                mode: None,
            });
        }
    }
    Ok(())
}

/// The files to write, and the outcome of each; fails if a path is blocked or, without `force`, taken.
fn compare(
    rendered: &Rendered<'_>,
    destination: &Path,
    force: bool,
) -> Result<(Vec<Change>, Written)> {
    let mut changes = Vec::new();
    let mut written = Written::default();
    let mut taken: Vec<&Path> = Vec::new();
    for folder in &rendered.folders {
        check_way(destination, folder, true)?;
    }
    for file in &rendered.files {
        let target = destination.join(&file.path);
        let was = check_way(destination, &file.path, false)?.then(|| fs::read(&target));
        let was = was
            .transpose()
            .map_err(|cause| Error::io("read", &target, cause))?;
        let mut contents = file.contents.to_vec();
        match (&was, if force { None } else { courtesy(&file.path) }) {
            (None, _) => written.created.push(file.path.clone()),
            (Some(there), Some(courtesy)) => {
                contents = match courtesy {
                    Courtesy::Keep => there.clone(),
                    Courtesy::Extend => extended(there, &file.contents),
                };
                let outcome = match courtesy {
                    _ if *there == *file.contents => &mut written.unchanged,
                    Courtesy::Extend if contents != *there => &mut written.extended,
                    _ => &mut written.kept,
                };
                outcome.push(file.path.clone());
            }
            (Some(_), None) if !force => taken.push(&file.path),
            (Some(there), None) if *there == *file.contents => {
                written.unchanged.push(file.path.clone());
            }
            (Some(_), None) => written.replaced.push(file.path.clone()),
        }
        if was.as_ref() != Some(&contents) {
            changes.push(Change {
                path: file.path.clone(),
                was,
                contents: Some((contents, file.executable)),
                mode: None,
            });
        }
    }
    if !taken.is_empty() {
        return Err(has_files(destination, &taken));
    }
    if force {
        check_replaced(rendered, destination)?;
    }
    Ok((changes, written))
}

/// Treatment of an existing file without `force`.
#[derive(Clone, Copy)]
enum Courtesy {
    Keep,
    Extend,
}

fn courtesy(path: &Path) -> Option<Courtesy> {
    let is = |names: &[&str]| names.iter().any(|name| path == Path::new(name));
    if is(&KEPT) {
        Some(Courtesy::Keep)
    } else {
        is(&EXTENDED).then_some(Courtesy::Extend)
    }
}

/// A file of patterns with the lines of `more` that it lacks at its end.
fn extended(there: &[u8], more: &[u8]) -> Vec<u8> {
    let lines = |bytes| String::from_utf8_lossy(bytes).into_owned();
    let (had, more) = (lines(there), lines(more));
    let had: Vec<&str> = had.lines().map(str::trim_end).collect();
    let line_end = if there.windows(2).any(|pair| pair == b"\r\n") {
        "\r\n"
    } else {
        "\n"
    };
    let mut text = there.to_vec();
    for line in more
        .lines()
        .filter(|line| !line.is_empty() && !had.contains(line))
    {
        if !text.is_empty() && !text.ends_with(b"\n") {
            text.extend(line_end.as_bytes());
        }
        text.extend(line.as_bytes());
        text.extend(line_end.as_bytes());
    }
    text
}

fn has_files(destination: &Path, taken: &[&Path]) -> Error {
    let first: Vec<_> = taken
        .iter()
        .take(SHOWN)
        .map(|path| format!("`{}`", slashed(path)))
        .collect();
    let more = match taken.len().saturating_sub(SHOWN) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let of = if taken.len() == 1 { "a file" } else { "files" };
    Error::input(format!(
        "the folder `{}` has {of} of the template: {}{more}",
        destination.display(),
        first.join(", ")
    ))
    .help(
        "give another folder, or add `--force` to replace the files that the template has too; all \
         other files are kept",
    )
}

/// True if `path` exists below `root`; fails if it is of the wrong type or passes a symbolic link.
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
    match check_destination(destination) {
        Err(error) => error,
        Ok(()) if destination.exists() => Error::input(format!(
            "the folder `{}` was created while Kiln was running, and is not empty",
            destination.display()
        ))
        .help("run the command again; nothing was written"),
        Ok(()) => Error::io("make", destination, cause),
    }
}

fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir(path).map_err(|cause| Error::io("create the folder", path, cause))
}

/// Writes all files and folders below `root`; errors show their final paths.
fn fill(root: &Path, destination: &Path, rendered: &Rendered<'_>) -> Result<()> {
    for folder in &rendered.folders {
        make_folder(&root.join(folder))?;
    }
    let write = &|files: &[RenderedFile<'_>]| -> Result<()> {
        for file in files {
            write_file(&root.join(&file.path), file)
                .map_err(|cause| Error::io("write", &destination.join(&file.path), cause))?;
        }
        Ok(())
    };
    // Most of the time goes to the kernel, a file at a time.
    let share = rendered.files.len().div_ceil(WRITERS).max(FEWEST_FILES);
    let mut shares = rendered.files.chunks(share);
    let own = shares.next().unwrap_or_default();
    thread::scope(|scope| {
        let others: Vec<_> = shares
            .map(|files| scope.spawn(move || write(files)))
            .collect();
        let others = others
            .into_iter()
            .map(|other| other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        iter::once(write(own)).chain(others).collect()
    })
}

fn write_file(path: &Path, file: &RenderedFile<'_>) -> io::Result<()> {
    assert!(
        file.path
            .components()
            .all(|part| matches!(part, Component::Normal(_))),
        "rendered paths lie in the project"
    );
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(if file.executable { 0o777 } else { 0o666 });
    }
    options.open(path)?.write_all(&file.contents)
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
