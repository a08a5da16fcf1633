//! Trees of files, which can be listed and compared.

use std::{collections::BTreeMap, fmt, fmt::Write as _, fs, io, path::Path};

use crate::display::{counted, sha256};

/// The visible form of a carriage return in snapshots.
const CARRIAGE_RETURN: &str = "\u{240d}";
/// The note for a text that does not end with a newline.
const NO_NEWLINE: &str = "\\ no newline at the end\n";
/// The note for a text that ends with an empty line.
const EMPTY_LINE: &str = "\\ an empty line at the end\n";

/// An entry of a tree.
#[derive(Clone, PartialEq, Eq)]
pub enum Entry {
    /// A folder.
    Folder,
    /// A file.
    File {
        /// Contents.
        contents: Vec<u8>,
        /// Whether the file is executable. On platforms without an executable bit, scripts are.
        executable: bool,
    },
}

impl Entry {
    /// The text of a file; of a binary file, its size and hash.
    pub fn text(&self) -> String {
        let Entry::File { contents, .. } = self else {
            return String::new();
        };
        match text_of(contents) {
            Some(text) => text.to_owned(),
            None => {
                let size = counted(contents.len(), "byte");
                format!("{size}, sha256 {}\n", sha256(contents))
            }
        }
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Folder => f.write_str("folder"),
            Entry::File {
                contents,
                executable,
            } => {
                let run = if *executable { ", executable" } else { "" };
                write!(f, "file{run}: {:?}", String::from_utf8_lossy(contents))
            }
        }
    }
}

/// The text of a file, unless it is binary.
pub(super) fn text_of(contents: &[u8]) -> Option<&str> {
    let text = str::from_utf8(contents).ok()?;
    (!text.contains('\0')).then_some(text)
}

/// The entries of a folder, by path with `/` as separator.
pub type Tree = BTreeMap<String, Entry>;

/// Reads a folder recursively.
///
/// # Errors
/// The file system fails.
pub fn read_tree(folder: &Path) -> io::Result<Tree> {
    let mut tree = Tree::new();
    read_into(folder, "", &mut tree)?;
    Ok(tree)
}

fn read_into(folder: &Path, prefix: &str, tree: &mut Tree) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let path = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            read_into(&entry.path(), &format!("{path}/"), tree)?;
            tree.insert(path, Entry::Folder);
        } else {
            let contents = fs::read(entry.path())?;
            let file = Entry::File {
                executable: is_executable(&entry.metadata()?, &contents),
                contents,
            };
            tree.insert(path, file);
        }
    }
    Ok(())
}

#[cfg(unix)]
fn is_executable(metadata: &fs::Metadata, _: &[u8]) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o111 != 0
}

#[cfg(not(unix))]
fn is_executable(_: &fs::Metadata, contents: &[u8]) -> bool {
    contents.starts_with(b"#!/")
}

/// The list of all paths, followed by the contents of the shown files.
pub(super) fn describe(tree: &Tree, shown: impl Fn(&str) -> bool) -> String {
    let mut text = String::new();
    for (path, entry) in tree {
        let _ = writeln!(text, "{}", title(path, entry));
    }
    for (path, entry) in tree {
        if matches!(entry, Entry::File { .. }) && shown(path) {
            let _ = write!(text, "\n==== {path}\n{}", with_end(&visible(&entry.text())));
        }
    }
    text
}

/// A text with visible carriage returns, which the comparison of snapshots ignores.
fn visible(text: &str) -> String {
    text.replace('\r', CARRIAGE_RETURN)
}

/// A text with a note on an unusual end, which the comparison of snapshots ignores.
fn with_end(text: &str) -> String {
    if text.ends_with("\n\n") || text == "\n" {
        format!("{text}{EMPTY_LINE}")
    } else if text.is_empty() || text.ends_with('\n') {
        text.to_owned()
    } else {
        format!("{text}\n{NO_NEWLINE}")
    }
}

fn title(path: &str, entry: &Entry) -> String {
    match entry {
        Entry::Folder => format!("{path}/"),
        Entry::File {
            executable: true, ..
        } => format!("{path} (executable)"),
        Entry::File { .. } => path.to_owned(),
    }
}

/// A unified diff of two trees; empty if they are equal.
pub fn diff(before: &Tree, after: &Tree) -> String {
    let mut paths: Vec<_> = before.keys().chain(after.keys()).collect();
    paths.sort();
    paths.dedup();
    let mut text = String::new();
    for path in paths {
        let (old, new) = (before.get(path), after.get(path));
        if old != new {
            text.push_str(&diff_entry(path, old, new));
        }
    }
    text
}

fn diff_entry(path: &str, old: Option<&Entry>, new: Option<&Entry>) -> String {
    let title =
        |entry: Option<&Entry>| entry.map_or("(nothing)".to_owned(), |entry| title(path, entry));
    let text = |entry: Option<&Entry>| entry.map(Entry::text).unwrap_or_default();
    let (old_text, new_text) = (visible(&text(old)), visible(&text(new)));
    let diff = similar::TextDiff::from_lines(&old_text, &new_text);
    let mut diff = diff.unified_diff();
    let hunks = diff.context_radius(2).to_string();
    format!("--- {}\n+++ {}\n{hunks}", title(old), title(new))
}
