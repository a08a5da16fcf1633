//! Patches of the examples, as they are stored.

use std::path::Path;

use similar::{Algorithm, ChangeTag, TextDiff};

/// Lines of context around a change.
const CONTEXT: usize = 1;
/// A file of which less than 1 / `SHARE` of the lines are the template's is stored whole.
const SHARE: usize = 5;
/// A file with fewer lines is stored whole.
const SHORT: usize = 10;

/// The patch from the template's file to an example's, if it is worth it: a file with few lines of
/// the template is easier to read as a whole.
pub fn create(path: &Path, base: &str, new: &str) -> Option<String> {
    let count = new.lines().count();
    if base == new || count < SHORT || SHARE * equal_lines(base, new) < count {
        return None;
    }
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    let path = parts.join("/");
    let patch = diff(base, new)
        .unified_diff()
        .context_radius(CONTEXT)
        .header(&format!("a/{path}"), &format!("b/{path}"))
        .to_string();
    // Editors remove spaces at the ends of lines.
    Some(patch.replace("\n \n", "\n\n").replace("\n \n", "\n\n"))
}

/// The number of lines of `new` that are those of `base`.
pub fn equal_lines(base: &str, new: &str) -> usize {
    let diff = diff(base, new);
    let changes = diff.iter_all_changes();
    changes
        .filter(|change| change.tag() == ChangeTag::Equal)
        .count()
}

/// Matches by rare lines: by the shortest script, unrelated functions would have braces in common.
fn diff<'t>(base: &'t str, new: &'t str) -> TextDiff<'t, 't, str> {
    TextDiff::configure()
        .algorithm(Algorithm::Histogram)
        .diff_lines(base, new)
}
