//! An update with conflicts: until they are resolved, the project keeps all that is needed to undo
//! the update.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{
    check_way, git,
    git::{Side, Stage},
    markers::{conflicts, marked_lines, marker_length},
    merge::{Fate, MergedFile},
    operations,
    record::RECORD_FILE,
    renewal::places,
    transaction::{Change, Transaction},
};
use crate::{
    error::{Error, Result},
    render::Rendered,
};

/// The hidden folder of an update with conflicts, in the project.
pub(crate) const FOLDER: &str = ".kiln-update";
const STATE: &str = "state.json";
/// A file that exists once Git's index has the conflicts.
const MARKED: &str = "marked";

/// An update with conflicts.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pending {
    /// The command, for messages.
    pub command: String,
    /// The commit that was checked out.
    head: Option<String>,
    /// The files in conflict.
    conflicts: Vec<Conflict>,
    /// The files that the update changed; the old contents of each are in the file of its number.
    files: Vec<Saved>,
    /// The entries of these files in Git's index, before the update.
    index: Vec<String>,
    /// The entries of the conflicts in Git's index.
    unmerged: Vec<String>,
}

/// A file in conflict.
#[derive(Debug, Serialize, Deserialize)]
struct Conflict {
    path: PathBuf,
    /// The length of its conflict markers; `None` for a binary file.
    marker: Option<usize>,
}

/// A file before the update.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    path: PathBuf,
    existed: bool,
    /// Permissions on Unix.
    mode: Option<u32>,
}

impl Pending {
    /// The update of `project` by `merged`; `None` if it has no conflicts.
    pub fn of(
        command: String,
        project: &Path,
        merged: &[MergedFile],
        base: &Rendered<'_>,
        new: &Rendered<'_>,
    ) -> Option<Self> {
        let conflicts = merged.iter().filter(|file| file.fate.is_conflict());
        let conflicts: Vec<&MergedFile> = conflicts.collect();
        if conflicts.is_empty() {
            return None;
        }
        let changes = merged.iter().flat_map(MergedFile::changes);
        let files: Vec<Saved> = changes
            .map(|change| Saved {
                path: change.path.clone(),
                existed: change.was.is_some(),
                mode: mode(&project.join(&change.path)),
            })
            .collect();
        let unmerged = conflicts.iter();
        let unmerged = unmerged.filter_map(|file| unmerged_entries(project, file, base, new));
        Some(Self {
            command,
            head: git::head(project),
            unmerged: unmerged.flatten().collect(),
            index: git::entries(project, &paths(&files, &conflicts)).unwrap_or_default(),
            conflicts: conflicts
                .iter()
                .map(|file| Conflict {
                    path: file.path.clone(),
                    marker: marker(file, base, new),
                })
                .collect(),
            files,
        })
    }

    /// The update of `project` that is not ended, if any.
    ///
    /// # Errors
    /// Its state cannot be read.
    pub fn read(project: &Path) -> Result<Option<Self>> {
        let path = project.join(FOLDER).join(STATE);
        if !check_way(project, &Path::new(FOLDER).join(STATE), false)? {
            return Ok(None);
        }
        let text = fs::read(&path).map_err(|cause| Error::io("read", &path, cause))?;
        serde_json::from_slice(&text).map(Some).map_err(|error| {
            Error::system(format!("`{}` is corrupt: {error}", path.display())).help(format!(
                "compare the project with version control, then remove the folder `{FOLDER}`"
            ))
        })
    }

    /// The changes that write the state and the old contents of the files that `changes` change.
    ///
    /// # Errors
    /// A path is not UTF-8.
    pub fn saved(&self, changes: &[Change]) -> Result<Vec<Change>> {
        let state = serde_json::to_vec(self).map_err(|error| {
            Error::input(format!("a path cannot be recorded: {error}"))
                .help("rename the file: its name must be UTF-8")
        })?;
        let place = |name: &str| Path::new(FOLDER).join(name);
        let mut saved = vec![
            // Keeps the folder out of commits.
            Change::added(place(".gitignore"), b"*\n".to_vec()),
            Change::added(place(STATE), state),
        ];
        for (at, file) in self.files.iter().enumerate() {
            let was = changes.iter().find(|change| change.path == file.path);
            if let Some(was) = was.and_then(|change| change.was.clone()) {
                saved.push(Change::added(old(at), was));
            }
        }
        Ok(saved)
    }

    /// Writes the conflicts into Git's index, unless that was done.
    ///
    /// # Errors
    /// Git's complaint.
    pub fn mark(&self, project: &Path) -> std::result::Result<(), String> {
        let marked = project.join(FOLDER).join(MARKED);
        if marked.exists() {
            return Ok(());
        }
        git::write_index(project, &self.unmerged)?;
        fs::write(&marked, b"").map_err(|cause| cause.to_string())
    }

    /// The lines at which conflicts begin; where none is whole, those of the markers that are left.
    pub fn markers(&self, project: &Path) -> Vec<(PathBuf, usize)> {
        let mut found = Vec::new();
        for conflict in &self.conflicts {
            let Some(length) = conflict.marker else {
                continue;
            };
            let text = fs::read(project.join(&conflict.path)).unwrap_or_default();
            let text = String::from_utf8_lossy(&text);
            let mut lines = conflicts(&text, Some(length));
            if lines.is_empty() {
                lines = marked_lines(&text, length);
            }
            found.extend(lines.into_iter().map(|line| (conflict.path.clone(), line)));
        }
        found
    }

    /// Ends the update: marks the conflicts as resolved. Returns their number.
    ///
    /// # Errors
    /// Conflict markers are left, or Git or the file system fails.
    pub fn end(&self, project: &Path, transaction: Transaction) -> Result<usize> {
        let left = self.markers(project);
        if !left.is_empty() {
            return Err(self.error(project, &left));
        }
        let unmerged = git::unmerged(project);
        let conflicts = self
            .conflicts
            .iter()
            .map(|conflict| conflict.path.as_path());
        let unmerged: Vec<&Path> = conflicts.filter(|path| unmerged.contains(*path)).collect();
        git::resolve(project, &unmerged).map_err(|complaint| refused(&complaint))?;
        transaction.apply(&forgotten(project)?, &[])?;
        Ok(self.conflicts.len())
    }

    /// Restores all files, and their entries in Git's index. Returns the number of files.
    ///
    /// # Errors
    /// Commits were made since, a path is blocked, or Git or the file system fails.
    pub fn abort(&self, project: &Path, transaction: Transaction) -> Result<usize> {
        if self.head != git::head(project) {
            let message = format!("commits were made since `{}`", self.command);
            return Err(Error::input(message).help(format!(
                "go back with Git, or resolve the conflicts and run `{}`; nothing was changed",
                command(project, "--continue")
            )));
        }
        let mut changes = Vec::new();
        for (at, file) in self.files.iter().enumerate() {
            changes.extend(restored(project, at, file)?);
        }
        // The record is restored first: while it is the old one, an update merges what is missing.
        changes.sort_by_key(|change| change.path != Path::new(RECORD_FILE));
        let count = changes.len();
        changes.extend(forgotten(project)?);
        let files: Vec<&Path> = self.paths().collect();
        let index = git::restored(project, &files, &self.index);
        git::write_index(project, &index).map_err(|complaint| refused(&complaint))?;
        transaction.apply(&changes, &[])?;
        let _ = git::git(project, &["update-index", "-q", "--refresh"], &[]);
        Ok(count)
    }

    fn paths(&self) -> impl Iterator<Item = &Path> {
        let conflicts = self
            .conflicts
            .iter()
            .map(|conflict| conflict.path.as_path());
        let files = self.files.iter().map(|file| file.path.as_path());
        files.chain(conflicts)
    }

    /// The error for a project whose update is not ended.
    pub fn error(&self, project: &Path, markers: &[(PathBuf, usize)]) -> Error {
        let go_on = command(project, "--continue");
        let abort = command(project, "--abort");
        let name = &self.command;
        if markers.is_empty() {
            let message = format!("`{name}` is not ended; no conflict markers are left");
            return Error::unresolved(message).help(format!(
                "end it with `{go_on}`, or restore all files as they were before with `{abort}`"
            ));
        }
        let message = format!(
            "conflict markers of `{name}` are left in {}",
            places(markers)
        );
        Error::unresolved(message).help(format!(
            "choose a side at each and delete the markers, then run `{go_on}`; `{abort}` restores \
             all files as they were before"
        ))
    }
}

/// The command that ends or undoes the update of a project.
pub(crate) fn command(project: &Path, option: &str) -> String {
    if project == Path::new(".") {
        return format!("kiln update {option}");
    }
    let path = project.display().to_string();
    format!("kiln update {} {option}", shell_words::quote(&path))
}

/// Refuses a project whose update is not ended.
///
/// # Errors
/// It is not, or its state cannot be read.
pub(crate) fn refuse(project: &Path) -> Result<()> {
    match Pending::read(project)? {
        Some(pending) => Err(pending.error(project, &pending.markers(project))),
        None => Ok(()),
    }
}

/// Removes the folder if its state is missing, as after a removal by hand.
///
/// # Errors
/// The file system fails.
pub(crate) fn sweep(project: &Path) -> Result<()> {
    let place = project.join(FOLDER);
    if !place.is_dir() || place.is_symlink() || place.join(STATE).exists() {
        return Ok(());
    }
    operations::remove_dir_all(&place).map_err(|cause| Error::io("clear", &place, cause))
}

fn old(at: usize) -> PathBuf {
    Path::new(FOLDER).join("old").join(at.to_string())
}

fn refused(complaint: &str) -> Error {
    Error::system(format!("Git cannot write its index: {complaint}"))
        .help("run the command again when Git can; nothing was changed")
}

/// The change that restores a file, if it differs.
fn restored(project: &Path, at: usize, file: &Saved) -> Result<Option<Change>> {
    let read = |path: &Path| {
        let place = project.join(path);
        fs::read(&place).map_err(|cause| Error::io("read", &place, cause))
    };
    let there = check_way(project, &file.path, false)?;
    let was = there.then(|| read(&file.path)).transpose()?;
    let is = file.existed.then(|| read(&old(at))).transpose()?;
    if was == is && (is.is_none() || mode(&project.join(&file.path)) == file.mode) {
        return Ok(None);
    }
    Ok(Some(Change {
        path: file.path.clone(),
        was,
        contents: is.map(|bytes| (bytes, false)),
        mode: file.mode,
    }))
}

/// The changes that remove the state.
fn forgotten(project: &Path) -> Result<Vec<Change>> {
    let mut changes = Vec::new();
    let mut folders = vec![PathBuf::from(FOLDER)];
    while let Some(folder) = folders.pop() {
        let place = project.join(&folder);
        let failed = |cause| Error::io("read the folder", &place, cause);
        for entry in fs::read_dir(&place).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let path = folder.join(entry.file_name());
            if entry.file_type().map_err(failed)?.is_dir() {
                folders.push(path);
            } else {
                let was = fs::read(entry.path()).map_err(failed)?;
                changes.push(Change::removed(path, was));
            }
        }
    }
    // Removed last, so that Git never sees the other files.
    changes.sort_by_key(|change| change.path.ends_with(".gitignore"));
    Ok(changes)
}

fn paths<'a>(files: &'a [Saved], conflicts: &[&'a MergedFile]) -> Vec<&'a Path> {
    let conflicts = conflicts.iter().map(|file| file.path.as_path());
    let files = files.iter().map(|file| file.path.as_path());
    files.chain(conflicts).collect()
}

fn sides<'a>(
    file: &MergedFile,
    base: &'a Rendered<'_>,
    new: &'a Rendered<'_>,
) -> (Option<&'a [u8]>, Option<&'a [u8]>) {
    let path = file.template_path();
    let old = file.was_at();
    (base.get(path).or_else(|| base.get(old)), new.get(path))
}

fn marker(file: &MergedFile, base: &Rendered<'_>, new: &Rendered<'_>) -> Option<usize> {
    if !matches!(file.fate, Fate::Conflict(_)) {
        return None;
    }
    let (base, new) = sides(file, base, new);
    let mine = file.changes().find_map(|change| change.was.as_deref());
    let texts = [base, mine, new].map(|side| String::from_utf8_lossy(side.unwrap_or_default()));
    Some(marker_length(&texts.each_ref().map(|text| &**text)))
}

/// The entries of a file in conflict in Git's index, if Git tracks it.
fn unmerged_entries(
    project: &Path,
    file: &MergedFile,
    base: &Rendered<'_>,
    new: &Rendered<'_>,
) -> Option<Vec<String>> {
    let executable = |rendered: &Rendered<'_>| {
        let mut files = rendered.files.iter();
        files.any(|one| one.path == file.template_path() && one.executable)
    };
    let (was, is) = sides(file, base, new);
    let place = project.join(file.was_at());
    let mine = fs::read(&place).ok()?;
    let is_run = fs::metadata(&place).ok()?;
    let is_run = crate::template::is_executable(&is_run);
    let mut sides: Vec<Side<'_>> = Vec::new();
    sides.extend(was.map(|bytes| (Stage::Base, bytes, executable(base))));
    sides.push((Stage::Mine, &mine, is_run));
    sides.extend(is.map(|bytes| (Stage::New, bytes, executable(new))));
    git::conflict(project, file.was_at(), &file.path, &sides)
}

#[cfg(unix)]
fn mode(path: &Path) -> Option<u32> {
    use std::os::unix::fs::PermissionsExt;
    let metadata = fs::symlink_metadata(path).ok()?;
    Some(metadata.permissions().mode() & 0o7777)
}

#[cfg(not(unix))]
fn mode(_: &Path) -> Option<u32> {
    None
}
