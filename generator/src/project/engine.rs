//! The engine of a project: a crate that is independent of the task. An update replaces it as a
//! whole if its hash is the one recorded in `.kiln.toml`.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use super::{Git, ask_git};
use crate::{
    display::slashed,
    error::{Error, Result},
    render::{Rendered, RenderedFile},
    template::{embedded::hash_files, is_build_folder, is_executable},
};

/// The folder of the engine in a project.
pub const ENGINE_FOLDER: &str = "engine";

/// A hash of the engine of a rendered project: of the paths, bytes and executable bits of its files.
pub fn engine_hash(rendered: &Rendered<'_>) -> String {
    hash(rendered.files.iter().filter(|file| is_of_engine(file)))
}

/// `base` with the engine found in a project, if that has the hash `recorded` and so is unedited.
/// With this merge base, a merge finds no edits in the engine and replaces all of it.
///
/// # Errors
/// The file system fails.
pub(crate) fn with_untouched_engine<'t>(
    base: &Rendered<'t>,
    new: &Rendered<'_>,
    project: &Path,
    recorded: &str,
) -> Result<Option<Rendered<'t>>> {
    let Some(engine) = engine_of(project, base, new)? else {
        return Ok(None);
    };
    if hash(engine.iter()) != recorded {
        return Ok(None);
    }
    let others = base.files.iter().filter(|file| !is_of_engine(file));
    let mut files: Vec<_> = others.cloned().chain(engine).collect();
    files.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(Some(Rendered {
        files,
        folders: base.folders.clone(),
        warnings: base.warnings.clone(),
    }))
}

fn is_of_engine(file: &RenderedFile<'_>) -> bool {
    file.path.starts_with(ENGINE_FOLDER)
}

fn hash<'f>(files: impl Iterator<Item = &'f RenderedFile<'f>>) -> String {
    hash_files(files.map(|file| (slashed(&file.path), &*file.contents, file.executable)))
}

/// The engine's files on disk, except those that git ignores and neither rendering has; `None` if
/// an entry is not a regular file.
fn engine_of(
    project: &Path,
    base: &Rendered<'_>,
    new: &Rendered<'_>,
) -> Result<Option<Vec<RenderedFile<'static>>>> {
    let mut entries = Vec::new();
    let folder = Path::new(ENGINE_FOLDER);
    if fs::symlink_metadata(project.join(folder)).is_ok_and(|metadata| metadata.is_dir()) {
        list(project, folder, &mut entries)?;
    }
    let rendered = base.files.iter().chain(&new.files);
    let rendered: BTreeSet<&Path> = rendered.map(|file| file.path.as_path()).collect();
    let is_rendered = |entry: &Entry| rendered.contains(entry.path.as_path());
    if !entries.iter().all(is_rendered) {
        let ignored = ignored(project);
        entries.retain(|entry| is_rendered(entry) || !ignored.contains(&entry.path));
    }
    if entries.iter().any(|entry| !entry.is_file) {
        return Ok(None);
    }
    entries.sort_by(|one, other| one.path.cmp(&other.path));
    let files = entries.into_iter().map(|entry| read(project, entry, base));
    files.collect::<Result<_>>().map(Some)
}

/// An entry that is not a folder.
struct Entry {
    path: PathBuf,
    is_file: bool,
}

/// Lists the entries below a folder of the project, without build folders.
fn list(project: &Path, folder: &Path, entries: &mut Vec<Entry>) -> Result<()> {
    let place = project.join(folder);
    let failed = |cause| Error::io("read the folder", &place, cause);
    for entry in fs::read_dir(&place).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        let path = folder.join(entry.file_name());
        // The engine may be a repository of its own, such as a submodule.
        if entry.file_name() == ".git" {
            continue;
        }
        if !kind.is_dir() {
            let is_file = kind.is_file();
            entries.push(Entry { path, is_file });
        } else if path != Path::new(ENGINE_FOLDER).join("target") && !is_build_folder(&entry.path())
        {
            list(project, &path, entries)?;
        }
    }
    Ok(())
}

fn read(project: &Path, entry: Entry, base: &Rendered<'_>) -> Result<RenderedFile<'static>> {
    let place = project.join(&entry.path);
    let failed = |cause| Error::io("read", &place, cause);
    let contents = fs::read(&place).map_err(failed)?;
    let metadata = fs::metadata(&place).map_err(failed)?;
    // Without an executable bit, the rendered one is kept.
    let was_executable = || {
        let mut files = base.files.iter();
        files.any(|file| file.path == entry.path && file.executable)
    };
    Ok(RenderedFile {
        executable: is_executable(&metadata) || cfg!(not(unix)) && was_executable(),
        path: entry.path,
        contents: Cow::Owned(contents),
    })
}

/// The files of the engine that git ignores; empty outside a repository.
fn ignored(project: &Path) -> BTreeSet<PathBuf> {
    let options = ["ls-files", "--others", "--ignored", "--exclude-standard"];
    let listed = ask_git(
        project,
        &[&options[..], &["-z", "--"]].concat(),
        &[Path::new(ENGINE_FOLDER)],
    );
    let Git::Output(listed) = listed else {
        return BTreeSet::new();
    };
    let paths = listed.split('\0').filter(|path| !path.is_empty());
    paths.map(PathBuf::from).collect()
}
