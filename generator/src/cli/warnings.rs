//! Warnings about a template: a line for each file, and a line about how to make each kind right.

use std::collections::BTreeSet;

use super::output::note;
use crate::render::Warning;

/// Maximum number of warnings that are shown.
const SHOWN: usize = 10;

/// Prints warnings about a template to standard error.
pub(crate) fn warn(warnings: &[Warning]) {
    for line in lines(warnings) {
        note(&line);
    }
}

/// The lines of [`warn`].
pub(crate) fn lines(warnings: &[Warning]) -> Vec<String> {
    let shown = warnings.iter().take(SHOWN);
    let mut lines: Vec<String> = shown.map(|one| format!("warning: {one}")).collect();
    if let Some(more @ 1..) = warnings.len().checked_sub(SHOWN) {
        lines.push(format!("warning: and {more} more of this kind"));
    }
    let helps: BTreeSet<&str> = warnings.iter().map(Warning::help).collect();
    lines.extend(helps.into_iter().map(|help| format!("help: {help}")));
    lines
}
