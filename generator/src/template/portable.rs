//! Portable file names: valid and distinct on Linux, macOS and Windows.

use std::{collections::BTreeMap, ops::Range};

use super::tags;
use crate::{
    error::{Error, Result},
    name::is_windows_device,
};

/// Characters that Windows forbids in file names, besides control characters and `/`.
const REFUSED: &[char] = &['<', '>', ':', '"', '|', '?', '*', '\\'];

/// Checks paths, each paired with its name for messages and with `/` as separator. Liquid tags in
/// the paths are skipped.
///
/// # Errors
/// A path is invalid on Windows (Microsoft, "Naming Files, Paths, and Namespaces").
pub(crate) fn check_each(paths: &[(&str, String)]) -> Result<()> {
    for (path, source) in paths {
        let mut at = 0;
        for part in path.split('/') {
            if let Some((span, why)) = refused(part) {
                let message = format!("`{}` is not a valid file name on Windows", plain(part));
                let shown = |end: usize| plain(&path[..at + end]).len();
                let span = shown(span.start)..shown(span.end);
                return Err(Error::template(message)
                    .at(&plain(source), &plain(path), span, why)
                    .help("rename the file: projects must be the same on every system"));
            }
            at += part.len() + 1;
        }
    }
    Ok(())
}

/// Checks that no two paths differ only in case. Folders must precede their contents.
///
/// # Errors
/// Two paths differ only in case.
pub(crate) fn check_together(paths: &[(&str, String)]) -> Result<()> {
    let mut folded = BTreeMap::new();
    for (path, source) in paths {
        if let Some(other) = folded.insert(fold(path), path) {
            let last = path.rfind('/').map_or(0, |slash| slash + 1);
            let message = format!("`{other}` and `{path}` are the same path on Windows and macOS");
            return Err(Error::template(message)
                .at(source, path, last..path.len(), "differs only in case")
                .help("rename one of the two"));
        }
    }
    Ok(())
}

/// `text` with its control characters escaped.
fn plain(text: &str) -> String {
    let shown = |c: char| match c.is_control() {
        true => c.escape_debug().to_string(),
        false => c.to_string(),
    };
    text.chars().map(shown).collect()
}

/// The span of an invalid part of a file name, and a label that says why.
fn refused(part: &str) -> Option<(Range<usize>, &'static str)> {
    let tags = tags::tags(part);
    let literal = |at: usize| !tags.iter().any(|tag| tag.span.contains(&at));
    let mut chars = part.char_indices();
    let wrong = |(at, c): &(usize, char)| literal(*at) && (REFUSED.contains(c) || c.is_control());
    if let Some((at, c)) = chars.find(wrong) {
        return Some((at..at + c.len_utf8(), "not allowed in a name"));
    }
    let last = part.len().saturating_sub(1);
    if part.ends_with(['.', ' ']) {
        return Some((last..part.len(), "not allowed at the end"));
    }
    let stem = part.split('.').next().unwrap_or(part).trim_end();
    is_windows_device(&stem.to_ascii_lowercase())
        .then_some((0..stem.len(), "a reserved device name"))
}

/// A path in lower case, except its Liquid tags.
fn fold(path: &str) -> String {
    let mut folded = String::new();
    let mut at = 0;
    for tag in tags::tags(path) {
        folded.push_str(&path[at..tag.span.start].to_lowercase());
        folded.push_str(&path[tag.span.clone()]);
        at = tag.span.end;
    }
    folded.push_str(&path[at..].to_lowercase());
    folded
}
