//! Merging of template changes into a project on disk: files that were moved are followed, and
//! changes without a place are kept as patches.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use super::{
    check_way,
    markers::conflicts,
    merge::{Fate, Labels, MergedFile, Mine, Moved, merge_in_style},
    moves::Moves,
    patches,
    transaction::Change,
};
use crate::{
    display::slashed,
    error::{Error, Result},
    render::Rendered,
    template::is_executable,
};

/// The places that an error lists at most.
const LISTED: usize = 20;

/// Merges the difference of two renderings into the files of a project. The second value tells
/// whether the user has a style of Rust sources, but no rustfmt.
///
/// # Errors
/// A path is blocked, or the file system fails.
pub(crate) fn merge_project(
    project: &Path,
    base: &Rendered<'_>,
    new: &Rendered<'_>,
    labels: Labels<'_>,
) -> Result<(Vec<MergedFile>, bool)> {
    let moves = Moves::find(project, base, new)?;
    // A file that the user moved and the template removed stays where it is.
    let is_left = |path: &Path| moves.by_user(path).is_some() && new.get(path).is_none();
    let sides = (&moves.base, new);
    let (mut merged, unstyled) = merge_in_style(project, sides, labels, |path| {
        if is_left(path) {
            return Ok(None);
        }
        read(project, moves.place(path))
    })?;
    for file in &mut merged {
        relocate(file, &moves);
    }
    for (path, old) in moves.all_by_template() {
        if !merged
            .iter()
            .any(|file| file.path == path || file.path == old)
        {
            merged.extend(only_moved(project, path, old)?);
        }
    }
    let left = moves.all_by_user().filter(|(path, _)| is_left(path));
    merged.extend(left.map(|(path, place)| {
        let mut file = MergedFile::new(place.to_path_buf(), Fate::Orphan, true, None);
        file.moved = Some(Moved::Elsewhere(path.to_path_buf()));
        file
    }));
    merged.sort_by(|one, other| one.path.cmp(&other.path));
    for file in &mut merged {
        keep_patch(project, file, &moves.base, new)?;
    }
    Ok((merged, unstyled))
}

/// Reads a file of the project, which must be one that Kiln may write.
pub(crate) fn read(project: &Path, path: &Path) -> Result<Option<Mine>> {
    if !check_way(project, path, false)? {
        return Ok(None);
    }
    let place = project.join(path);
    let failed = |cause: io::Error| Error::io("read", &place, cause);
    Ok(Some(Mine {
        contents: fs::read(&place).map_err(failed)?,
        executable: is_executable(&fs::metadata(&place).map_err(failed)?),
    }))
}

/// Gives a merged file its place in the project.
fn relocate(file: &mut MergedFile, moves: &Moves<'_>) {
    let place = moves.place(&file.path).to_path_buf();
    if place == file.path {
        return;
    }
    if moves.by_user(&file.path).is_some() {
        if let Some(change) = &mut file.change {
            change.path.clone_from(&place);
        }
        file.moved = Some(Moved::Elsewhere(std::mem::replace(&mut file.path, place)));
        return;
    }
    match &mut file.change {
        // It stays at the old place.
        None => {
            file.moved = Some(Moved::Elsewhere(std::mem::replace(&mut file.path, place)));
        }
        Some(change) => {
            if let Some(was) = change.was.take() {
                file.also.push(Change::removed(place.clone(), was));
            }
            file.moved = Some(Moved::From(place));
        }
    }
}

/// A file with the user's edits that the template only moved.
fn only_moved(project: &Path, path: &Path, old: &Path) -> Result<Option<MergedFile>> {
    let Some(mine) = read(project, old)? else {
        return Ok(None);
    };
    let change = Change {
        path: path.to_path_buf(),
        was: None,
        contents: Some((mine.contents.clone(), mine.executable)),
        mode: None,
    };
    let mut file = MergedFile::new(path.to_path_buf(), Fate::Merged, true, Some(change));
    file.moved = Some(Moved::From(old.to_path_buf()));
    file.also
        .push(Change::removed(old.to_path_buf(), mine.contents));
    Ok(Some(file))
}

/// Keeps the template's change of a file that the project has no place for.
fn keep_patch(
    project: &Path,
    file: &mut MergedFile,
    base: &Rendered<'_>,
    new: &Rendered<'_>,
) -> Result<()> {
    if !matches!(file.fate, Fate::Absent | Fate::Binary) {
        return Ok(());
    }
    let path = file.template_path().to_path_buf();
    let (was, is) = (base.get(&path), new.get(&path));
    let (was, Some(is)) = (was.unwrap_or_default(), is) else {
        return Ok(());
    };
    if was != is {
        let (place, change) = patches::keep(project, &path, was, is)?;
        file.patch = Some(place);
        file.also.extend(change);
    }
    Ok(())
}

/// Refuses a project with conflict markers that the template does not have.
///
/// # Errors
/// A file has markers.
pub(crate) fn refuse_markers(
    project: &Path,
    base: &Rendered<'_>,
    new: &Rendered<'_>,
) -> Result<()> {
    let paths = base.files.iter().chain(&new.files).map(|file| &file.path);
    let paths: BTreeSet<&PathBuf> = paths.collect();
    let has_own = |rendered: &Rendered<'_>, path: &Path| {
        let text = rendered.get(path).unwrap_or_default();
        !conflicts(&String::from_utf8_lossy(text), None).is_empty()
    };
    let mut found = Vec::new();
    for path in paths {
        // Unreadable files are reported by the merge.
        let Ok(text) = fs::read_to_string(project.join(path)) else {
            continue;
        };
        let lines = conflicts(&text, None);
        if !lines.is_empty() && !has_own(base, path) && !has_own(new, path) {
            found.extend(lines.into_iter().map(|line| (path.clone(), line)));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    Err(
        Error::unresolved(format!("conflict markers are left in {}", places(&found))).help(
            "choose a side at each and delete the markers, then run the command again; nothing was \
         changed",
        ),
    )
}

/// Lines of files, for messages.
pub(crate) fn places(found: &[(PathBuf, usize)]) -> String {
    let listed = found.iter().take(LISTED);
    let listed: Vec<_> = listed
        .map(|(path, line)| format!("`{}:{line}`", slashed(path)))
        .collect();
    match found.len().saturating_sub(LISTED) {
        0 => listed.join(", "),
        more => format!("{} and {more} more", listed.join(", ")),
    }
}
