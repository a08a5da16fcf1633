//! Three-way merging of template changes into a project. The merge base is the template that the
//! project was generated from.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use diffy::{ConflictStyle, IncompleteHunkStyle, MergeOptions};

use super::{
    layout::{self, Merging, Texts, in_ends_of, is_layout_of, restyle},
    markers::label,
    record::RECORD_FILE,
    todo,
    transaction::Change,
};
use crate::{
    error::Result,
    render::{Rendered, RenderedFile},
};

/// The outcome of a merge for a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The file is new.
    Added,
    /// The user did not edit the file, and it is replaced by the new template's.
    Replaced,
    /// Both sides changed the file at different places.
    Merged,
    /// Both sides changed the same lines; the number of conflicts marked in the file.
    Conflict(usize),
    /// The user did not edit the file, and the new template does not have it.
    Removed,
    /// Both sides changed a binary file; the user's version is kept.
    Binary,
    /// The new template does not have the file, but the user edited it; it is kept.
    Orphan,
    /// The new template changed the file, but the user removed it; it stays removed, and the change
    /// is kept as a patch.
    Absent,
}

impl Fate {
    /// Whether both sides changed the file in ways that do not go together.
    pub fn is_conflict(self) -> bool {
        matches!(self, Fate::Conflict(_) | Fate::Binary)
    }

    /// Whether the user must do something about the file.
    pub fn needs_a_look(self) -> bool {
        self.is_conflict() || self == Fate::Absent
    }
}

/// A file that the template changed, with its outcome.
#[derive(Debug)]
pub struct MergedFile {
    /// Path in the project.
    pub path: PathBuf,
    /// Outcome.
    pub fate: Fate,
    /// True if the user edited the file, or created one that the old template did not have.
    pub edited: bool,
    /// True if that edit is one of the layout only: of formatting, line ends or the mode.
    pub layout_only: bool,
    /// The change to write, if any.
    pub change: Option<Change>,
    /// The move of the file, if it is not at the place that the template had for it.
    pub moved: Option<Moved>,
    /// The file that keeps the template's change, if the project has no place for it.
    pub patch: Option<PathBuf>,
    /// Changes of other files that come with it.
    pub also: Vec<Change>,
}

/// Author of the move of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Moved {
    /// The user has it elsewhere than the template, which has it at this path.
    Elsewhere(PathBuf),
    /// The template moved it, and the user's file follows from this path.
    From(PathBuf),
}

impl MergedFile {
    pub(crate) fn new(path: PathBuf, fate: Fate, edited: bool, change: Option<Change>) -> Self {
        Self {
            path,
            fate,
            edited,
            layout_only: false,
            change,
            moved: None,
            patch: None,
            also: Vec::new(),
        }
    }

    /// The path in the new template.
    pub(crate) fn template_path(&self) -> &Path {
        match &self.moved {
            Some(Moved::Elsewhere(path)) => path,
            _ => &self.path,
        }
    }

    /// The place of the user's file, before the merge.
    pub(crate) fn was_at(&self) -> &Path {
        match &self.moved {
            Some(Moved::From(old)) => old,
            _ => &self.path,
        }
    }

    /// All changes to write.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.change.iter().chain(&self.also)
    }
}

/// A file of the project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mine {
    /// Contents.
    pub contents: Vec<u8>,
    /// Whether the file is executable.
    pub executable: bool,
}

/// The names of the three sides in conflict markers.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a> {
    /// The project.
    pub mine: &'a str,
    /// The merge base.
    pub base: &'a str,
    /// The new template.
    pub new: &'a str,
}

/// Merges the changes from `base` to `new` into the files that `mine` returns. Files that the
/// template did not change are omitted.
///
/// # Errors
/// Errors of `mine`.
pub fn merge(
    base: &Rendered<'_>,
    new: &Rendered<'_>,
    labels: Labels<'_>,
    mine: impl Fn(&Path) -> Result<Option<Mine>>,
) -> Result<Vec<MergedFile>> {
    let files = first_merged((base, new), labels, mine)?;
    Ok(files.into_iter().filter_map(merged_file).collect())
}

/// Merges as [`merge`], with Rust sources in the style of the rustfmt of the project in `folder`.
/// The second value tells whether a style was found, but no rustfmt.
///
/// # Errors
/// Errors of `mine`.
pub(crate) fn merge_in_style(
    folder: &Path,
    sides: (&Rendered<'_>, &Rendered<'_>),
    labels: Labels<'_>,
    mine: impl Fn(&Path) -> Result<Option<Mine>>,
) -> Result<(Vec<MergedFile>, bool)> {
    let mut files = first_merged(sides, labels, mine)?;
    let styled = restyle(folder, &mut files, labels);
    Ok((files.into_iter().filter_map(merged_file).collect(), !styled))
}

/// The files that the template changed, merged line by line.
fn first_merged<'a>(
    (base, new): (&'a Rendered<'_>, &'a Rendered<'_>),
    labels: Labels<'_>,
    mine: impl Fn(&Path) -> Result<Option<Mine>>,
) -> Result<Vec<Merging<'a>>> {
    let (base, new) = (by_path(base), by_path(new));
    let paths: BTreeSet<&Path> = base.keys().chain(new.keys()).copied().collect();
    let mut files = Vec::new();
    for path in paths {
        let (base, new) = (base.get(path).copied(), new.get(path).copied());
        if !same(base, new) {
            files.extend(merge_file(path, base, new, mine(path)?, labels));
        }
    }
    Ok(files)
}

/// The outcome of a merge; `None` if the user has its result already.
fn merged_file(file: Merging<'_>) -> Option<MergedFile> {
    let executable = executable(file.base, file.new, file.mine.as_ref());
    let is_edited = |mine: &Mine| file.base.is_none_or(|base| !is(mine, base));
    let edited = file.mine.as_ref().is_some_and(is_edited);
    let (contents, layout_only) = match &file.texts {
        Some((texts, merged)) => {
            let text = texts.written(merged).into_bytes();
            (Some(Some(Cow::Owned(text))), merged.layout_only)
        }
        None => (file.contents, file.layout_only),
    };
    let fate = file.texts.map_or(file.fate, |(_, merged)| merged.fate);
    if let (Some(mine), Some(Some(bytes))) = (&file.mine, &contents)
        && fate == Fate::Merged
        && *mine.contents == **bytes
        && (mine.executable == executable || cfg!(not(unix)))
    {
        return None;
    }
    let change = contents.map(|contents| Change {
        path: file.path.to_path_buf(),
        was: file.mine.map(|mine| mine.contents),
        contents: contents.map(|bytes| (bytes.into_owned(), executable)),
        mode: None,
    });
    let mut merged = MergedFile::new(file.path.to_path_buf(), fate, edited, change);
    merged.layout_only = layout_only;
    Some(merged)
}

fn merge_file<'a>(
    path: &'a Path,
    base: Option<&'a RenderedFile<'a>>,
    new: Option<&'a RenderedFile<'a>>,
    mine: Option<Mine>,
    labels: Labels<'_>,
) -> Option<Merging<'a>> {
    let taken = new.map(|new| Cow::Borrowed(&*new.contents));
    let mut texts = None;
    let mut layout_only = false;
    let (fate, contents) = match (base, new, &mine) {
        (_, None, None) => return None,
        (_, Some(new), Some(mine)) if is(mine, new) => return None,
        (None, Some(_), None) => (Fate::Added, Some(taken)),
        (Some(_), Some(_), None) => (Fate::Absent, None),
        // The record belongs to Kiln and is replaced even if edited.
        (base, Some(new), Some(mine)) if path == Path::new(RECORD_FILE) => {
            let base = base.map_or(&[][..], |base| &*base.contents);
            let contents = in_ends_of(base, &mine.contents, &new.contents);
            (Fate::Replaced, Some(Some(contents)))
        }
        (Some(base), None, Some(mine)) if is(mine, base) => (Fate::Removed, Some(None)),
        (Some(base), None, Some(mine)) if has_code_of(base, mine) => {
            layout_only = true;
            (Fate::Removed, Some(None))
        }
        (_, None, Some(_)) => (Fate::Orphan, None),
        (Some(base), Some(_), Some(mine)) if is(mine, base) => (Fate::Replaced, Some(taken)),
        (base, Some(new), Some(mine)) => {
            let was = base.map_or(&[][..], |base| &*base.contents);
            if was == &*new.contents || mine.contents == *new.contents {
                // Only the executable bit changed.
                (Fate::Merged, Some(Some(Cow::Owned(mine.contents.clone()))))
            } else if base.is_some() && mine.contents == was {
                layout_only = true;
                (Fate::Merged, Some(taken))
            } else {
                let done = done_sites(path, was, &mine.contents);
                let [was, new] = [was, &new.contents].map(|text| without(path, text, &done));
                texts = Texts::of(&was, &mine.contents, &new).map(|texts| {
                    let merged = texts.merge(labels);
                    (texts, merged)
                });
                let fate = texts
                    .as_ref()
                    .map_or(Fate::Binary, |(_, merged)| merged.fate);
                (fate, None)
            }
        }
    };
    Some(Merging {
        path,
        base,
        new,
        mine,
        fate,
        contents,
        layout_only,
        texts,
    })
}

/// True if the user changed only the layout or the mode of a file.
fn has_code_of(base: &RenderedFile<'_>, mine: &Mine) -> bool {
    mine.contents == *base.contents || is_layout_of(&base.contents, &mine.contents)
}

/// The TODO sites whose markers and notes the user deleted.
fn done_sites(path: &Path, base: &[u8], mine: &[u8]) -> Vec<String> {
    let (Ok(base), Ok(mine)) = (str::from_utf8(base), str::from_utf8(mine)) else {
        return Vec::new();
    };
    let file = path.to_string_lossy();
    let lines: Vec<&str> = base.lines().collect();
    let kept: BTreeSet<&str> = mine.lines().map(str::trim).collect();
    let mut sites = todo::marked_sites(&file, base);
    sites.retain(|site| {
        let marked = todo::marked_lines(&file, &lines, site).unwrap_or_default();
        let is_open = todo::marked_sites(&file, mine).contains(site);
        !is_open && !lines[marked].iter().any(|line| kept.contains(line.trim()))
    });
    sites
}

/// A text of the template without the markers of some sites: new words in a marker that the user
/// deleted are no conflict.
fn without<'t>(path: &Path, text: &'t [u8], sites: &[String]) -> Cow<'t, [u8]> {
    let Ok(mut stripped) = str::from_utf8(text).map(str::to_owned) else {
        return Cow::Borrowed(text);
    };
    let file = path.to_string_lossy();
    for site in sites {
        stripped = todo::without_marker(&file, &stripped, site).unwrap_or(stripped);
    }
    Cow::Owned(stripped.into_bytes())
}

/// Merges texts. The result has the layout of `mine`: line ends, byte order mark, last newline, and
/// white space of lines that are otherwise equal.
pub fn merge_texts(base: &str, mine: &str, new: &str, labels: Labels<'_>) -> (Fate, String) {
    layout::merge_texts(base, mine, new, labels)
}

/// Merges line by line, with markers of this length.
pub(super) fn merge_lines(
    [base, mine, new]: [&str; 3],
    length: usize,
    labels: Labels<'_>,
) -> (Fate, String) {
    let mut options = MergeOptions::new();
    options
        .set_conflict_marker_length(length)
        .set_conflict_style(ConflictStyle::Diff3)
        .set_incomplete_hunk_style(IncompleteHunkStyle::Git);
    match options.merge(base, mine, new) {
        Ok(merged) => (Fate::Merged, merged),
        Err(marked) => {
            let (count, text) = label(&marked, length, labels);
            (Fate::Conflict(count), text)
        }
    }
}

fn by_path<'r, 't>(rendered: &'r Rendered<'t>) -> BTreeMap<&'r Path, &'r RenderedFile<'t>> {
    let files = rendered.files.iter();
    files.map(|file| (file.path.as_path(), file)).collect()
}

fn same(a: Option<&RenderedFile<'_>>, b: Option<&RenderedFile<'_>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.contents == b.contents && a.executable == b.executable,
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// Whether a file is as it was rendered. Without an executable bit, only the contents count.
fn is(mine: &Mine, rendered: &RenderedFile<'_>) -> bool {
    (mine.executable == rendered.executable || cfg!(not(unix)))
        && mine.contents == *rendered.contents
}

/// The executable bit of the result: the user's, unless only the template changed it.
fn executable(
    base: Option<&RenderedFile<'_>>,
    new: Option<&RenderedFile<'_>>,
    mine: Option<&Mine>,
) -> bool {
    let new = new.is_some_and(|new| new.executable);
    match (base, mine) {
        (Some(base), Some(mine)) if base.executable != mine.executable => mine.executable,
        (None, Some(mine)) => mine.executable,
        _ => new,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: Labels<'_> = Labels {
        mine: "yours",
        base: "0.1.0",
        new: "0.2.0",
    };

    fn rendered(files: &[(&str, &str)]) -> Rendered<'static> {
        let file = |(path, text): &(&str, &str)| RenderedFile {
            path: PathBuf::from(path),
            contents: Cow::Owned(text.as_bytes().to_vec()),
            executable: false,
        };
        Rendered {
            files: files.iter().map(file).collect(),
            folders: Vec::new(),
            warnings: Vec::new(),
        }
    }

    /// Merges one file; returns its outcome and the resulting text.
    fn one(base: Option<&str>, mine: Option<&str>, new: Option<&str>) -> (Option<Fate>, String) {
        let tree = |text: Option<&str>| match text {
            Some(text) => rendered(&[("a", text)]),
            None => rendered(&[]),
        };
        let read = |_: &Path| {
            Ok(mine.map(|text| Mine {
                contents: text.as_bytes().to_vec(),
                executable: false,
            }))
        };
        let mut merged = merge(&tree(base), &tree(new), LABELS, read).unwrap();
        assert!(merged.len() <= 1);
        let Some(file) = merged.pop() else {
            return (None, mine.unwrap_or("nothing").to_owned());
        };
        let text = match file.change {
            None => mine.unwrap_or("nothing").to_owned(),
            Some(change) => change.contents.map_or("nothing".to_owned(), |(bytes, _)| {
                String::from_utf8(bytes).unwrap()
            }),
        };
        (Some(file.fate), text)
    }

    #[test]
    fn each_fate() {
        let (a, b, c) = (Some("a\n"), Some("b\n"), Some("c\n"));
        let cases = [
            ((a, c, a), (None, "c\n")),
            ((a, None, a), (None, "nothing")),
            ((a, b, b), (None, "b\n")),
            ((None, b, b), (None, "b\n")),
            ((a, None, None), (None, "nothing")),
            ((None, None, b), (Some(Fate::Added), "b\n")),
            ((a, a, b), (Some(Fate::Replaced), "b\n")),
            ((a, a, None), (Some(Fate::Removed), "nothing")),
            ((a, c, None), (Some(Fate::Orphan), "c\n")),
            ((a, None, b), (Some(Fate::Absent), "nothing")),
            (
                (Some("\0"), Some("\0a"), Some("\0b")),
                (Some(Fate::Binary), "\0a"),
            ),
        ];
        for ((base, mine, new), (fate, text)) in cases {
            assert_eq!(
                one(base, mine, new),
                (fate, text.to_owned()),
                "{base:?} {mine:?} {new:?}"
            );
        }
    }

    #[test]
    fn changes_at_different_places_are_joined() {
        let (fate, text) = one(
            Some("a\nb\nc\nd\ne\n"),
            Some("A\nb\nc\nd\ne\n"),
            Some("a\nb\nc\nd\nE\n"),
        );
        assert_eq!((fate, &*text), (Some(Fate::Merged), "A\nb\nc\nd\nE\n"));
    }

    #[test]
    fn a_marker_that_the_user_deleted_is_no_conflict() {
        let text = |marker: &str| format!("a\nx\ny\n{marker}b\nc\n");
        let site = |words: &str| text(&format!("// TODO(model.split): {words}\n//   Now: x\n"));
        let file = |contents: &str| RenderedFile {
            path: "a.rs".into(),
            contents: Cow::Owned(contents.as_bytes().to_vec()),
            executable: false,
        };
        let mine = Mine {
            contents: text("").replace('b', "mine").into_bytes(),
            executable: false,
        };
        let (base, new) = (file(&site("old")), file(&site("new").replace('a', "A")));
        let path = Path::new("a.rs");
        let merged = merge_file(path, Some(&base), Some(&new), Some(mine), LABELS);
        let merged = merged_file(merged.unwrap()).unwrap();
        assert_eq!(merged.fate, Fate::Merged);
        let (written, _) = merged.change.unwrap().contents.unwrap();
        assert_eq!(written, b"A\nx\ny\nmine\nc\n");
    }

    #[test]
    fn changes_of_the_same_lines_are_marked() {
        let (fate, text) = one(Some("x\nb\ny\n"), Some("x\nmine\ny\n"), Some("x\nnew\ny\n"));
        assert_eq!(fate, Some(Fate::Conflict(1)));
        let marked = "x\n<<<<<<< yours\nmine\n||||||| 0.1.0\nb\n=======\nnew\n>>>>>>> 0.2.0\ny\n";
        assert_eq!(text, marked);
    }

    #[test]
    fn a_text_with_markers_of_its_own_gets_longer_ones() {
        let (_, text) = one(
            Some("<<<<<<< a\nb\n"),
            Some("<<<<<<< a\nmine\n"),
            Some("<<<<<<< a\nnew\n"),
        );
        assert!(
            text.starts_with("<<<<<<< a\n<<<<<<<< yours\nmine\n||||||||"),
            "{text}"
        );
    }

    #[test]
    fn lines_end_as_the_user_has_them() {
        let (fate, text) = one(
            Some("a\nb\nc\nd\ne\n"),
            Some("A\r\nb\r\nc\r\nd\r\ne\r\n"),
            Some("a\nb\nc\nd\nE\n"),
        );
        assert_eq!(
            (fate, &*text),
            (Some(Fate::Merged), "A\r\nb\r\nc\r\nd\r\nE\r\n")
        );
    }

    #[test]
    fn the_record_is_renewed() {
        let read = |_: &Path| {
            Ok(Some(Mine {
                contents: b"edited".to_vec(),
                executable: false,
            }))
        };
        let (base, new) = (
            rendered(&[(RECORD_FILE, "old")]),
            rendered(&[(RECORD_FILE, "new")]),
        );
        let merged = merge(&base, &new, LABELS, read).unwrap();
        assert_eq!(merged[0].fate, Fate::Replaced);
    }
}
