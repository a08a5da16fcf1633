//! Three-way merging: what the template changed since a project was made from it, brought into the
//! project beside what its user changed.

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

/// How long a conflict marker is, where no line of the texts starts with such a one.
const MARKER: usize = 7;

/// What becomes of a file of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is new.
    Added,
    /// Its user left it alone, and it becomes that of the new template.
    Replaced,
    /// Both changed it, at different places.
    Merged,
    /// Both changed the same lines: this many places are marked in it.
    Conflict(usize),
    /// Its user left it alone, and the new template has it no longer.
    Removed,
    /// Both changed it and it is no text: it stays as it is.
    Binary,
    /// The new template has it no longer, and its user changed it: it stays.
    Orphan,
    /// The new template changed it, and its user removed it: it stays away.
    Absent,
}

impl Fate {
    /// Whether somebody has to look at the file.
    pub fn needs_a_look(self) -> bool {
        matches!(self, Fate::Conflict(_) | Fate::Binary)
    }
}

/// A file that the template changed, and what becomes of it.
#[derive(Debug)]
pub struct MergedFile {
    /// Its path in the project.
    pub path: PathBuf,
    /// What becomes of it.
    pub fate: Fate,
    /// Whether its user changed it, or has one where the old template had none.
    pub edited: bool,
    /// What is to be written, if anything is.
    pub change: Option<Change>,
}

/// A file as it stands in a project.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mine {
    /// Its bytes.
    pub contents: Vec<u8>,
    /// Whether it can be run.
    pub executable: bool,
}

/// What conflict markers call the three sides.
#[derive(Debug, Clone, Copy)]
pub struct Labels<'a> {
    /// The project as it stands.
    pub mine: &'a str,
    /// What it was made from.
    pub base: &'a str,
    /// What it would be made from today.
    pub new: &'a str,
}

/// Merges what changed from `base` to `new` into the files that `mine` gives; files that did not
/// change are not listed.
///
/// # Errors
/// Those of `mine`.
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

/// What is written instead of a file: nothing, no file, or these bytes.
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
        // The record is Kiln's, and is renewed whatever stands in it.
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

/// Merges the bytes of one file; `None` where it stays as it is.
fn merge_contents(
    base: &[u8],
    mine: &[u8],
    new: &[u8],
    labels: Labels<'_>,
) -> (Fate, Option<Vec<u8>>) {
    if base == new || mine == new {
        // Only the mode changed.
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

/// Merges texts by their lines. Where `mine` ends all lines as Windows does, so does the result.
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

/// A length of markers that no line starts with.
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

/// Counts the conflicts of a text, and has its markers say whose the sides are.
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

/// Whether a file of a project is as it was rendered. Systems without the bit that says what can be run
/// make no difference.
fn is(mine: &Mine, rendered: &RenderedFile<'_>) -> bool {
    (mine.executable == rendered.executable || cfg!(not(unix)))
        && mine.contents == *rendered.contents
}

/// Whether the result can be run: as the user has it, unless only the template changed that.
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

    /// Merges one file; gives its fate and what then stands in the project.
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
