//! Three-way merging of template changes into a project. The merge base is the template that the
//! project was generated from.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use diffy::{ConflictStyle, IncompleteHunkStyle, MergeOptions};

use super::{record::RECORD_FILE, transaction::Change};
use crate::{
    error::Result,
    render::{Rendered, RenderedFile},
};

/// Default length of conflict markers.
const MARKER: usize = 7;

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
    /// The new template changed the file, but the user removed it; it stays removed.
    Absent,
}

impl Fate {
    /// Whether the user must resolve a conflict.
    pub fn needs_a_look(self) -> bool {
        matches!(self, Fate::Conflict(_) | Fate::Binary)
    }
}

/// A file that the template changed, with its outcome.
#[derive(Debug)]
pub struct MergedFile {
    /// Path in the project.
    pub path: PathBuf,
    /// Outcome.
    pub fate: Fate,
    /// Whether the user edited the file, or created one that the old template did not have.
    pub edited: bool,
    /// The change to write, if any.
    pub change: Option<Change>,
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
    let (base, new) = (by_path(base), by_path(new));
    let paths: BTreeSet<&Path> = base.keys().chain(new.keys()).copied().collect();
    let mut merged = Vec::new();
    for path in paths {
        let (base, new) = (base.get(path).copied(), new.get(path).copied());
        if same(base, new) {
            continue;
        }
        let mine = mine(path)?;
        if let Some((fate, contents)) = merge_file(path, base, new, mine.as_ref(), labels) {
            let executable = executable(base, new, mine.as_ref());
            let contents =
                contents.map(|bytes| bytes.map(|bytes| (bytes.into_owned(), executable)));
            let is_edited = |mine: &Mine| base.is_none_or(|base| !is(mine, base));
            merged.push(MergedFile {
                path: path.to_path_buf(),
                fate,
                edited: mine.as_ref().is_some_and(is_edited),
                change: contents.map(|contents| Change {
                    path: path.to_path_buf(),
                    was: mine.map(|mine| mine.contents),
                    contents,
                }),
            });
        }
    }
    Ok(merged)
}

/// A change of a file: no change, removal, or new contents.
type Written<'a> = Option<Option<Cow<'a, [u8]>>>;

fn merge_file<'a>(
    path: &Path,
    base: Option<&'a RenderedFile<'_>>,
    new: Option<&'a RenderedFile<'_>>,
    mine: Option<&Mine>,
    labels: Labels<'_>,
) -> Option<(Fate, Written<'a>)> {
    let taken = new.map(|new| Cow::Borrowed(&*new.contents));
    match (base, new, mine) {
        (_, None, None) => None,
        (_, Some(new), Some(mine)) if is(mine, new) => None,
        (None, Some(_), None) => Some((Fate::Added, Some(taken))),
        (Some(_), Some(_), None) => Some((Fate::Absent, None)),
        // The record belongs to Kiln and is replaced even if edited.
        (_, Some(_), Some(_)) if path == Path::new(RECORD_FILE) => {
            Some((Fate::Replaced, Some(taken)))
        }
        (Some(base), None, Some(mine)) if is(mine, base) => Some((Fate::Removed, Some(None))),
        (_, None, Some(_)) => Some((Fate::Orphan, None)),
        (Some(base), Some(_), Some(mine)) if is(mine, base) => Some((Fate::Replaced, Some(taken))),
        (base, Some(new), Some(mine)) => {
            let base = base.map_or(&[][..], |base| &*base.contents);
            let (fate, bytes) = merge_contents(base, &mine.contents, &new.contents, labels);
            Some((fate, bytes.map(|bytes| Some(Cow::Owned(bytes)))))
        }
    }
}

/// Merges the contents of one file; `None` leaves the file unchanged.
fn merge_contents(
    base: &[u8],
    mine: &[u8],
    new: &[u8],
    labels: Labels<'_>,
) -> (Fate, Option<Vec<u8>>) {
    if base == new || mine == new {
        // Only the executable bit changed.
        return (Fate::Merged, Some(mine.to_vec()));
    }
    if mine == base {
        return (Fate::Merged, Some(new.to_vec()));
    }
    let texts = [base, mine, new].map(|bytes| str::from_utf8(bytes).ok());
    let [Some(base), Some(mine), Some(new)] = texts else {
        return (Fate::Binary, None);
    };
    if [base, mine, new].iter().any(|text| text.contains('\0')) {
        return (Fate::Binary, None);
    }
    let (fate, merged) = merge_texts(base, mine, new, labels);
    (fate, Some(merged.into_bytes()))
}

/// Merges texts line by line. If all lines of `mine` end with CRLF, so do those of the result.
pub fn merge_texts(base: &str, mine: &str, new: &str, labels: Labels<'_>) -> (Fate, String) {
    if is_crlf(mine) && !is_crlf(base) {
        let (base, new) = (to_crlf(base), to_crlf(new));
        return merge_lines(&base, mine, &new, labels);
    }
    merge_lines(base, mine, new, labels)
}

fn merge_lines(base: &str, mine: &str, new: &str, labels: Labels<'_>) -> (Fate, String) {
    let length = marker_length(&[base, mine, new]);
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

/// A length of conflict markers with which no line of the texts starts.
fn marker_length(texts: &[&str]) -> usize {
    let lines = texts.iter().flat_map(|text| text.lines());
    let longest = lines.filter_map(|line| {
        let first = line.chars().next().filter(|c| "<|=>".contains(*c))?;
        Some(line.chars().take_while(|c| *c == first).count())
    });
    longest
        .filter(|length| *length >= MARKER)
        .max()
        .map_or(MARKER, |longest| longest + 1)
}

/// Counts the conflicts in a text and puts the labels into its markers.
fn label(marked: &str, length: usize, labels: Labels<'_>) -> (usize, String) {
    let mut text = String::with_capacity(marked.len());
    let mut count = 0;
    for line in marked.split_inclusive('\n') {
        let first = line.chars().next().filter(|c| "<|>".contains(*c));
        let run = first.map_or(0, |first| line.chars().take_while(|c| *c == first).count());
        let label = match first {
            _ if run != length => None,
            Some('<') => Some(labels.mine),
            Some('|') => Some(labels.base),
            Some('>') => Some(labels.new),
            _ => None,
        };
        match label {
            None => text.push_str(line),
            Some(label) => {
                count += usize::from(line.starts_with('<'));
                text.push_str(&line[..length]);
                text.push(' ');
                text.push_str(label);
                text.push_str(&line[line.trim_end_matches(['\r', '\n']).len()..]);
            }
        }
    }
    (count, text)
}

fn is_crlf(text: &str) -> bool {
    let ends = text.matches('\n').count();
    ends > 0 && text.matches("\r\n").count() == ends
}

fn to_crlf(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\n', "\r\n")
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
