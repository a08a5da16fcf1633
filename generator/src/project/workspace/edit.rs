//! Edits of the manifest of a workspace that keep everything else: comments, layout, line ends, a
//! byte-order mark and the mode of the file.

use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
};

use toml_edit::{Array, DocumentMut, Item, Table, TableLike, Value};

use crate::error::{Error, Result};

/// A planned edit of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edit {
    /// The file, with symbolic links resolved.
    pub(super) path: PathBuf,
    /// Its contents now.
    pub(super) before: String,
    /// Its contents after the edit.
    pub(super) after: String,
}

/// Edits that were carried out, and are undone on drop unless kept.
#[derive(Debug)]
#[must_use = "the edits are undone on drop"]
pub struct Edited(Vec<Edit>);

impl Edited {
    /// Carries out edits. On an error, none remains.
    ///
    /// # Errors
    /// A file was changed since it was read, or the file system fails.
    pub(super) fn carry_out(edits: &[Edit]) -> Result<Self> {
        let mut done = Self(Vec::new());
        for edit in edits {
            let now = fs::read(&edit.path).map_err(|cause| Error::io("read", &edit.path, cause))?;
            if now != edit.before.as_bytes() {
                let message = format!(
                    "`{}` was changed while Kiln was running",
                    edit.path.display()
                );
                return Err(
                    Error::system(message).help("run the command again; nothing was changed")
                );
            }
            replace(&edit.path, &edit.after)
                .map_err(|cause| Error::io("write", &edit.path, cause))?;
            done.0.push(edit.clone());
        }
        Ok(done)
    }

    /// Keeps the edits.
    pub fn keep(mut self) {
        self.0.clear();
    }
}

impl Drop for Edited {
    fn drop(&mut self) {
        for edit in &self.0 {
            // A file that somebody else changed since is not restored.
            if fs::read(&edit.path).is_ok_and(|now| now == edit.after.as_bytes()) {
                let _ = replace(&edit.path, &edit.before);
            }
        }
    }
}

/// Replaces a file by a single rename; keeps its mode.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut fresh = tempfile::Builder::new()
        .prefix(".kiln-manifest-")
        .tempfile_in(folder)?;
    fresh.write_all(text.as_bytes())?;
    fresh
        .as_file()
        .set_permissions(fs::metadata(path)?.permissions())?;
    fresh.as_file().sync_all()?;
    fresh.persist(path).map(drop).map_err(|error| error.error)
}

/// `text` after `change`, a change of its TOML.
pub(super) fn edited(
    text: &str,
    change: impl FnOnce(&mut DocumentMut) -> Option<()>,
) -> Option<String> {
    let (mark, body) = match text.strip_prefix('\u{feff}') {
        Some(body) => ("\u{feff}", body),
        None => ("", text),
    };
    let plain = body.replace("\r\n", "\n");
    let mut document: DocumentMut = plain.parse().ok()?;
    let parsed = document.to_string();
    change(&mut document)?;
    let after = document.to_string();
    // A file without a last line end keeps to that only if it is not changed there.
    debug_assert!(
        parsed.trim_end() == plain.trim_end(),
        "the editor keeps what it does not change"
    );
    Some(format!("{mark}{}", with_line_ends(body, &plain, &after)))
}

/// `after` with the line ends of `body`: lines before and after the changed ones keep theirs, and
/// new ones have the usual one.
fn with_line_ends(body: &str, plain: &str, after: &str) -> String {
    let crlf = body.matches("\r\n").count();
    if crlf == 0 {
        return after.to_owned();
    }
    let usual = if 2 * crlf >= body.matches('\n').count() {
        "\r\n"
    } else {
        "\n"
    };
    let raw: Vec<&str> = body.split_inclusive('\n').collect();
    let old: Vec<&str> = plain.split_inclusive('\n').collect();
    let new: Vec<&str> = after.split_inclusive('\n').collect();
    let start = old.iter().zip(&new).take_while(|(a, b)| a == b).count();
    let rest = old.len().min(new.len()) - start;
    let ends = old.iter().rev().zip(new.iter().rev());
    let end = ends.take(rest).take_while(|(a, b)| a == b).count();
    let mut text = raw[..start].concat();
    for line in &new[start..new.len() - end] {
        text.push_str(&line.replace('\n', usual));
    }
    text.push_str(&raw[raw.len() - end..].concat());
    text
}

/// Adds an entry to a list of `[workspace]`, which is created if it is missing.
pub(super) fn add(document: &mut DocumentMut, key: &str, entry: &str, sorted: bool) -> Option<()> {
    let workspace = workspace(document)?;
    if workspace.get(key).is_none() {
        let list = Array::from_iter([entry]);
        workspace.insert(key, Item::Value(Value::Array(list)));
        return Some(());
    }
    let list = workspace.get_mut(key)?.as_array_mut()?;
    let names: Option<Vec<String>> = list
        .iter()
        .map(|name| Some(name.as_str()?.to_owned()))
        .collect();
    let names = names?;
    let at = match sorted && names.is_sorted() {
        true => names.partition_point(|name| name.as_str() < entry),
        false => names.len(),
    };
    match at == names.len() {
        true => push(list, entry),
        false => insert(list, at, entry),
    }
    Some(())
}

/// Removes the entries of a list of `[workspace]` that `is` finds.
pub(super) fn remove(
    document: &mut DocumentMut,
    key: &str,
    is: impl Fn(&str) -> bool,
) -> Option<()> {
    let list = workspace(document)?.get_mut(key)?.as_array_mut()?;
    let first = list.get(0).map(|value| value.decor().clone());
    let was_first = list.get(0).and_then(Value::as_str).is_some_and(&is);
    list.retain(|value| !value.as_str().is_some_and(&is));
    // The first entry of a list on one line has no space before it.
    if let (true, Some(decor), Some(value)) = (was_first, first, list.get_mut(0)) {
        let prefix = decor
            .prefix()
            .and_then(|prefix| prefix.as_str())
            .unwrap_or_default();
        value.decor_mut().set_prefix(prefix);
    }
    Some(())
}

fn workspace(document: &mut DocumentMut) -> Option<&mut dyn TableLike> {
    let item = document.get_mut("workspace")?;
    if let Item::Table(table) = item
        && !table.is_dotted()
    {
        // Only `[workspace.package]`, for example, was there.
        table.set_implicit(false);
    }
    item.as_table_like_mut()
}

/// Inserts an entry before another, on a line of its own if that has one.
fn insert(list: &mut Array, at: usize, entry: &str) {
    let decor = list.get(at).map(|value| value.decor().clone());
    list.insert(at, entry);
    let Some(decor) = decor else { return };
    let prefix = decor
        .prefix()
        .and_then(|prefix| prefix.as_str())
        .unwrap_or_default();
    let own_line = prefix.rfind('\n').map(|end| prefix[end..].to_owned());
    if let Some(value) = list.get_mut(at) {
        value.decor_mut().set_prefix(prefix);
    }
    if let Some(value) = list.get_mut(at + 1) {
        // Comments above stay above the new entry.
        value
            .decor_mut()
            .set_prefix(own_line.unwrap_or_else(|| " ".to_owned()));
    }
}

/// Appends an entry, on a line of its own if the last one has one. Comments stay at their lines.
fn push(list: &mut Array, entry: &str) {
    let trailing = list.trailing().as_str().unwrap_or_default().to_owned();
    let Some(last) = list.len().checked_sub(1) else {
        list.push(entry);
        if trailing.contains('\n') {
            let (above, below) = trailing.split_at(trailing.rfind('\n').unwrap_or(0));
            let prefix = format!("{above}\n    ");
            set(list, 0, &prefix, "");
            list.set_trailing(below.to_owned());
            list.set_trailing_comma(true);
        }
        return;
    };
    let value = list
        .get(last)
        .map(|value| value.decor().clone())
        .unwrap_or_default();
    let text = |raw: Option<&toml_edit::RawString>| {
        raw.and_then(|raw| raw.as_str())
            .unwrap_or_default()
            .to_owned()
    };
    let (prefix, suffix) = (text(value.prefix()), text(value.suffix()));
    let comma = list.trailing_comma();
    // The text after the last entry: after its comma, or else directly.
    let after = if comma {
        trailing
    } else {
        format!("{suffix}{trailing}")
    };
    let indent = prefix.rfind('\n').map(|end| prefix[end..].to_owned());
    list.push(entry);
    match (indent, after.rfind('\n')) {
        (Some(indent), Some(end)) => {
            let (above, below) = after.split_at(end);
            set(list, last, &prefix, if comma { &suffix } else { "" });
            set(list, last + 1, &format!("{above}{indent}"), "");
            list.set_trailing(below.to_owned());
        }
        (indent, _) => {
            set(list, last, &prefix, if comma { &suffix } else { "" });
            set(
                list,
                last + 1,
                &indent.unwrap_or_else(|| " ".to_owned()),
                "",
            );
            list.set_trailing(after);
        }
    }
    list.set_trailing_comma(comma);
}

fn set(list: &mut Array, at: usize, prefix: &str, suffix: &str) {
    if let Some(value) = list.get_mut(at) {
        value.decor_mut().set_prefix(prefix);
        value.decor_mut().set_suffix(suffix);
    }
}

/// The table at a path of keys, which is created if it is missing.
pub(super) fn table_at<'d>(
    document: &'d mut DocumentMut,
    keys: &[&str],
) -> Option<&'d mut dyn TableLike> {
    let mut table: &mut dyn TableLike = document.as_table_mut();
    for key in keys {
        let mut fresh = Table::new();
        fresh.set_implicit(true);
        table = table
            .entry(key)
            .or_insert(Item::Table(fresh))
            .as_table_like_mut()?;
    }
    Some(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(text: &str) -> String {
        edited(text, |document| add(document, "exclude", "m", false)).unwrap()
    }

    #[test]
    fn an_entry_is_added_in_the_layout_of_the_list() {
        for (before, after) in [
            ("[workspace]\n", "[workspace]\nexclude = [\"m\"]\n"),
            (
                "[workspace]\nmembers   = ['a'] # all\n\n[profile.dev]\n",
                "[workspace]\nmembers   = ['a'] # all\nexclude = [\"m\"]\n\n[profile.dev]\n",
            ),
            (
                "[workspace]\nexclude = []",
                "[workspace]\nexclude = [\"m\"]\n",
            ),
            (
                "[workspace]\nexclude=['a','b']\n",
                "[workspace]\nexclude=['a','b', \"m\"]\n",
            ),
            (
                "[workspace]\nexclude = [ 'a', ]\n",
                "[workspace]\nexclude = [ 'a', \"m\", ]\n",
            ),
            (
                "[workspace]\nexclude = [\n  # first\n  'a', # about a\n  # last\n]\n",
                "[workspace]\nexclude = [\n  # first\n  'a', # about a\n  # last\n  \"m\",\n]\n",
            ),
            (
                "[workspace]\nexclude = [\n\t'a' # about a\n]\n",
                "[workspace]\nexclude = [\n\t'a', # about a\n\t\"m\"\n]\n",
            ),
            (
                "[workspace]\nexclude = [\n  # none\n]\n",
                "[workspace]\nexclude = [\n  # none\n    \"m\",\n]\n",
            ),
            (
                "workspace = { members = ['a'] }\n",
                "workspace = { members = ['a'] , exclude = [\"m\"] }\n",
            ),
            (
                "# A.\nworkspace.members = ['a']\n",
                "# A.\nworkspace.members = ['a']\nworkspace.exclude = [\"m\"]\n",
            ),
        ] {
            assert_eq!(added(before), after, "{before}");
        }
    }

    #[test]
    fn an_implicit_table_becomes_one() {
        let text = added("[workspace.package]\nversion = '1'\n");
        let table: toml::Table = text.parse().unwrap();
        assert_eq!(
            table["workspace"]["exclude"][0].as_str(),
            Some("m"),
            "{text}"
        );
        assert_eq!(table["workspace"]["package"]["version"].as_str(), Some("1"));
    }

    #[test]
    fn line_ends_and_marks_stay() {
        let text = "\u{feff}[workspace]\r\nmembers = ['a']\r\n# mixed\n[profile.dev]\r\n";
        let after = "\u{feff}[workspace]\r\nmembers = ['a']\r\nexclude = [\"m\"]\r\n# mixed\n\
                     [profile.dev]\r\n";
        assert_eq!(added(text), after);
    }

    #[test]
    fn a_sorted_list_stays_sorted() {
        let put = |text: &str| edited(text, |d| add(d, "members", "m", true)).unwrap();
        assert_eq!(
            put("[workspace]\nmembers = [\"a\", \"z\"]\n"),
            "[workspace]\nmembers = [\"a\", \"m\", \"z\"]\n"
        );
        assert_eq!(
            put("[workspace]\nmembers = [\n  \"n\", # n\n]\n"),
            "[workspace]\nmembers = [\n  \"m\",\n  \"n\", # n\n]\n"
        );
        assert_eq!(
            put("[workspace]\nmembers = [\"z\", \"a\"]\n"),
            "[workspace]\nmembers = [\"z\", \"a\", \"m\"]\n"
        );
    }

    #[test]
    fn entries_are_removed() {
        let text = "[workspace]\nmembers = [\".\", \"c/*\"]\n";
        let after = edited(text, |document| {
            remove(document, "members", |entry| entry == ".")
        });
        assert_eq!(after.unwrap(), "[workspace]\nmembers = [\"c/*\"]\n");
    }
}
