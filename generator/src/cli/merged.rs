//! The outcome of `kiln update` and `kiln add`, as text and JSON.

use std::{fmt::Write as _, path::Path};

use serde_json::json;

use super::next::test_step;
use crate::{
    display::slashed,
    project::{
        merge::{Fate, MergedFile, Moved},
        pending,
    },
};

/// The outcome of a merge, to report.
pub(super) struct Outcome<'a> {
    pub merged: &'a [MergedFile],
    /// New TODO sites with their files.
    pub sites: &'a [(String, String)],
    pub project: &'a Path,
    pub dry_run: bool,
}

/// The outcome for a file, as a word and a sentence.
fn words(fate: Fate) -> (&'static str, String) {
    let sentence = |text: &str| text.to_owned();
    match fate {
        Fate::Added => ("added", String::new()),
        Fate::Replaced => ("replaced", String::new()),
        Fate::Merged => ("merged", sentence("your changes and the template's")),
        Fate::Conflict(1) => ("conflict", sentence("1 place, marked <<<<<<< and >>>>>>>")),
        Fate::Conflict(count) => (
            "conflict",
            format!("{count} places, marked <<<<<<< and >>>>>>>"),
        ),
        Fate::Removed => ("removed", String::new()),
        Fate::Binary => (
            "conflict",
            sentence("binary: your version is kept; the template's differs"),
        ),
        Fate::Orphan => (
            "kept",
            sentence("removed from the template, but you changed the file"),
        ),
        Fate::Absent => (
            "left out",
            sentence("changed in the template, but you removed the file"),
        ),
    }
}

/// Additions to the sentence: moves and the patch.
fn details(file: &MergedFile) -> String {
    let mut text = match &file.moved {
        Some(Moved::Elsewhere(path)) => format!("moved: `{}` in the template", slashed(path)),
        Some(Moved::From(old)) => format!("moved by the template from `{}`", slashed(old)),
        None => String::new(),
    };
    if let Some(patch) = &file.patch {
        let and = if text.is_empty() { "" } else { "; " };
        let _ = write!(text, "{and}kept in {}", slashed(patch));
    }
    text
}

/// The outcome as text.
pub(super) fn report(outcome: &Outcome<'_>) -> String {
    let Outcome {
        merged,
        sites,
        project,
        dry_run,
    } = *outcome;
    if merged.is_empty() {
        return "Nothing to change: the project is up to date.\n".to_owned();
    }
    let width = merged
        .iter()
        .map(|file| slashed(&file.path).chars().count());
    let width = width.max().unwrap_or(0);
    let mut text = String::new();
    for file in merged {
        let (word, mut sentence) = words(file.fate);
        if file.layout_only && file.fate == Fate::Merged {
            "the template's changes in your layout".clone_into(&mut sentence);
        }
        let details = details(file);
        if !sentence.is_empty() && !details.is_empty() {
            sentence.push_str("; ");
        }
        sentence.push_str(&details);
        let path = slashed(&file.path);
        let line = format!("  {word:8}  {path:width$}  {sentence}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if !sites.is_empty() {
        text.push_str("\nNew TODO sites:\n");
    }
    for (id, file) in sites {
        let _ = writeln!(text, "  {id}  {file}");
    }
    let conflicts = merged.iter().any(|file| file.fate.is_conflict());
    text.push('\n');
    if dry_run {
        text.push_str("Dry run: nothing was changed.\n");
    } else if conflicts {
        let _ = writeln!(
            text,
            "Next: choose a side at every <<<<<<< and delete the markers, then end it:\n  {}    \
             # checks that no markers are left\n  {}       # restores all files instead",
            pending::command(project, "--continue"),
            pending::command(project, "--abort"),
        );
    } else {
        let tests = tests(project);
        let _ = write!(text, "Next:\n{tests}  git diff      # what changed\n");
    }
    text
}

/// A line with the command that tests a project, if there is one.
pub(super) fn tests(project: &Path) -> String {
    let step = test_step(|path| project.join(path).is_file(), 14);
    step.map_or_else(String::new, |step| format!("  {step}\n"))
}

/// The outcome as JSON.
pub(super) fn json(merged: &[MergedFile], dry_run: bool) -> serde_json::Value {
    let files: Vec<_> = merged
        .iter()
        .map(|file| {
            json!({
                "path": slashed(&file.path),
                "template_path": slashed(file.template_path()),
                "layout_only": file.layout_only,
                "patch": file.patch.as_deref().map(slashed),
                "fate": match file.fate {
                    Fate::Conflict(_) => "conflict",
                    Fate::Binary => "binary",
                    fate => words(fate).0,
                },
                "conflicts": match file.fate {
                    Fate::Conflict(count) => count,
                    _ => 0,
                },
            })
        })
        .collect();
    json!({ "dry_run": dry_run, "files": files })
}
