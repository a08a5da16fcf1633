//! Files that were moved, by the user or by the template, recognised by their contents as in Git.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
};

use ignore::WalkBuilder;

use crate::{
    error::Result,
    render::{Rendered, RenderedFile},
    template::is_build_folder,
};

/// The least similarity of a moved file, as in Git: half of the larger file.
const SIMILAR: f64 = 0.5;
/// Larger files are not compared.
const LARGEST: u64 = 16 << 20;

/// The files of a project that are not where the template has them.
pub(crate) struct Moves<'t> {
    /// The merge base, with the paths of the new template for files that the template moved.
    pub base: Rendered<'t>,
    /// For paths of the new template, the paths of the old one.
    by_template: BTreeMap<PathBuf, PathBuf>,
    /// For paths of the template, those of the project.
    by_user: BTreeMap<PathBuf, PathBuf>,
}

impl<'t> Moves<'t> {
    /// Finds the moved files of a project that an update concerns.
    ///
    /// # Errors
    /// The file system fails.
    pub fn find(project: &Path, base: &Rendered<'t>, new: &Rendered<'_>) -> Result<Self> {
        let renames = moved_by_template(project, base, new);
        let mut moves = Self {
            base: renamed(base, &renames),
            // A file that the user moved to the same place is there already.
            by_template: renames
                .into_iter()
                .filter(|(_, old)| exists(&project.join(old)))
                .collect(),
            by_user: BTreeMap::new(),
        };
        let missing: Vec<&RenderedFile<'t>> = moves
            .base
            .files
            .iter()
            .filter(|file| {
                new.file(&file.path).is_none_or(|new| {
                    new.contents != file.contents || new.executable != file.executable
                })
            })
            .filter(|file| !exists(&project.join(moves.place(&file.path))))
            .collect();
        if !missing.is_empty() {
            let known = base.files.iter().chain(&new.files);
            let known: BTreeSet<&Path> = known.map(|file| file.path.as_path()).collect();
            let found = matched(&missing, &others(project, &known));
            moves.by_user = found;
        }
        Ok(moves)
    }

    /// The present place of the template's file `path` in the project.
    pub fn place<'p>(&'p self, path: &'p Path) -> &'p Path {
        let moved = self
            .by_user
            .get(path)
            .or_else(|| self.by_template.get(path));
        moved.map_or(path, PathBuf::as_path)
    }

    /// The place of the template's file `path` if the user moved it.
    pub fn by_user(&self, path: &Path) -> Option<&Path> {
        self.by_user.get(path).map(PathBuf::as_path)
    }

    /// The files that the user moved: paths of the template and of the project.
    pub fn all_by_user(&self) -> impl Iterator<Item = (&Path, &Path)> {
        let moves = self.by_user.iter();
        moves.map(|(path, place)| (path.as_path(), place.as_path()))
    }

    /// The files that the template moved: new and old paths.
    pub fn all_by_template(&self) -> impl Iterator<Item = (&Path, &Path)> {
        let moves = self.by_template.iter();
        moves.map(|(path, old)| (path.as_path(), old.as_path()))
    }
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

/// The files that the new template has elsewhere, by their new paths, unless the project's are unedited: these are
/// replaced as any other.
fn moved_by_template(
    project: &Path,
    base: &Rendered<'_>,
    new: &Rendered<'_>,
) -> BTreeMap<PathBuf, PathBuf> {
    let only = |one: &Rendered<'_>, other: &Rendered<'_>| -> BTreeSet<PathBuf> {
        let other: BTreeSet<&Path> = other.files.iter().map(|file| file.path.as_path()).collect();
        let paths = one.files.iter().map(|file| &file.path);
        paths
            .filter(|path| !other.contains(path.as_path()))
            .cloned()
            .collect()
    };
    let (gone, come) = (only(base, new), only(new, base));
    if gone.is_empty() || come.is_empty() {
        return BTreeMap::new();
    }
    let edited = base.files.iter().filter(|file| gone.contains(&file.path));
    let edited: Vec<_> = edited
        .filter(|file| match fs::read(project.join(&file.path)) {
            Ok(mine) => mine != *file.contents,
            Err(_) => !exists(&project.join(&file.path)),
        })
        .collect();
    let come = new.files.iter().filter(|file| come.contains(&file.path));
    let come: Vec<_> = come
        .map(|file| (file.path.clone(), file.contents.to_vec()))
        .collect();
    let pairs = matched(&edited, &come).into_iter();
    pairs
        .map(|(old, new)| (new, old))
        // With both, the second is a file of the user's own; with none, the user removed the first.
        .filter(|(new, old)| exists(&project.join(old)) != exists(&project.join(new)))
        .collect()
}

fn renamed<'t>(base: &Rendered<'t>, moves: &BTreeMap<PathBuf, PathBuf>) -> Rendered<'t> {
    let to: BTreeMap<&Path, &Path> = moves
        .iter()
        .map(|(new, old)| (old.as_path(), new.as_path()))
        .collect();
    let mut base = base.clone();
    for file in &mut base.files {
        if let Some(new) = to.get(file.path.as_path()) {
            file.path = new.to_path_buf();
        }
    }
    base.files.sort_by(|one, other| one.path.cmp(&other.path));
    base
}

/// The user's own files, which the template does not have.
fn others(project: &Path, known: &BTreeSet<&Path>) -> Vec<(PathBuf, Vec<u8>)> {
    let walk = WalkBuilder::new(project)
        .hidden(false)
        .require_git(false)
        .filter_entry(|entry| {
            let name = entry.file_name().to_string_lossy();
            let is_folder = entry.file_type().is_some_and(|kind| kind.is_dir());
            name != ".git"
                && !name.starts_with(".kiln")
                && !(is_folder && is_build_folder(entry.path()))
        })
        .build();
    let mut files = Vec::new();
    for entry in walk.flatten() {
        let Ok(path) = entry.path().strip_prefix(project) else {
            continue;
        };
        let is_file = entry.file_type().is_some_and(|kind| kind.is_file());
        if is_file
            && !known.contains(path)
            && entry.metadata().is_ok_and(|it| it.len() <= LARGEST)
            && let Ok(contents) = fs::read(entry.path())
        {
            files.push((path.to_path_buf(), contents));
        }
    }
    files.sort();
    files
}

/// For each file, the candidate that is most similar, each at most once.
fn matched(
    files: &[&RenderedFile<'_>],
    candidates: &[(PathBuf, Vec<u8>)],
) -> BTreeMap<PathBuf, PathBuf> {
    let lines: Vec<_> = candidates
        .iter()
        .map(|(_, contents)| counted_lines(contents))
        .collect();
    let mut pairs = Vec::new();
    for file in files {
        let own = counted_lines(&file.contents);
        for (at, (path, contents)) in candidates.iter().enumerate() {
            let larger = contents.len().max(file.contents.len());
            let smaller = contents.len().min(file.contents.len());
            if smaller == 0 || share(smaller, larger) < SIMILAR {
                continue;
            }
            let similar = share(common(&own, &lines[at]), larger);
            if similar >= SIMILAR {
                let same_name = path.file_name() == file.path.file_name();
                pairs.push((similar, same_name, &file.path, path));
            }
        }
    }
    pairs.sort_by(|one, other| {
        let by_name = other.1.cmp(&one.1);
        let by_path = (one.2, one.3).cmp(&(other.2, other.3));
        other.0.total_cmp(&one.0).then(by_name).then(by_path)
    });
    let (mut found, mut taken) = (BTreeMap::new(), BTreeSet::new());
    for (_, _, file, candidate) in pairs {
        if !found.contains_key(file) && taken.insert(candidate) {
            found.insert(file.clone(), candidate.clone());
        }
    }
    found
}

// Files are smaller than 2^52 bytes.
#[allow(clippy::cast_precision_loss)]
fn share(part: usize, whole: usize) -> f64 {
    part as f64 / whole as f64
}

/// The lines of a file without their ends and indentation, each with its count.
fn counted_lines(contents: &[u8]) -> HashMap<&[u8], usize> {
    let mut lines = HashMap::new();
    for line in contents.split_inclusive(|byte| *byte == b'\n') {
        *lines.entry(line.trim_ascii()).or_insert(0) += 1;
    }
    lines
}

/// The bytes of the lines that both have.
fn common(one: &HashMap<&[u8], usize>, other: &HashMap<&[u8], usize>) -> usize {
    let lines = one.iter();
    lines
        .map(|(line, count)| (line.len() + 1) * count.min(other.get(line).unwrap_or(&0)))
        .sum()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn file(path: &str, text: &str) -> RenderedFile<'static> {
        RenderedFile {
            path: path.into(),
            contents: Cow::Owned(text.as_bytes().to_vec()),
            executable: false,
        }
    }

    fn found(files: &[(&str, &str)], candidates: &[(&str, &str)]) -> Vec<(String, String)> {
        let files: Vec<_> = files.iter().map(|(path, text)| file(path, text)).collect();
        let files: Vec<_> = files.iter().collect();
        let candidates: Vec<_> = candidates
            .iter()
            .map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec()))
            .collect();
        let found = matched(&files, &candidates).into_iter();
        found
            .map(|(one, other)| (one.display().to_string(), other.display().to_string()))
            .collect()
    }

    fn pair(one: &str, other: &str) -> (String, String) {
        (one.to_owned(), other.to_owned())
    }

    #[test]
    fn half_of_the_larger_file_is_enough() {
        let half = found(&[("a", "1\n2\n3\n4\n")], &[("b", "1\n2\n5\n6\n")]);
        assert_eq!(half, [pair("a", "b")]);
        assert!(found(&[("a", "1\n2\n3\n4\n")], &[("b", "1\n5\n6\n7\n")]).is_empty());
        assert!(found(&[("a", "")], &[("b", "")]).is_empty());
        // Git for Windows checks files out with CRLF.
        let crlf = found(&[("a", "one\ntwo\n")], &[("b", "one\r\ntwo\r\n")]);
        assert_eq!(crlf, [pair("a", "b")]);
    }

    #[test]
    fn each_file_is_moved_once_to_the_most_similar() {
        let texts = [("x/a", "1\n2\n3\n4\n"), ("x/b", "1\n2\n3\n5\n")];
        let moved = found(&texts, &[("y/c", "1\n2\n3\n5\n"), ("y/d", "1\n2\n3\n4\n")]);
        assert_eq!(moved, [pair("x/a", "y/d"), pair("x/b", "y/c")]);
        let moved = found(&texts[..1], &[("y/0", texts[0].1), ("y/a", texts[0].1)]);
        assert_eq!(
            moved,
            [pair("x/a", "y/a")],
            "of equals, the one of the same name"
        );
    }
}
