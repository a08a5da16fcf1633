//! Hooks: the Rhai scripts that cargo-generate runs before and after it renders a template. Kiln runs
//! none, as they can do anything; it says what they would do, and what does the same without a script.

use std::{collections::BTreeMap, fmt::Write as _};

use toml::Spanned;

use super::{
    TemplateFile,
    config::Config,
    scripts::{Call, calls},
};
use crate::{
    display::counted,
    document::{Document, Place},
    error::{Error, Result},
};

const PHASES: &[&str] = &["init", "pre", "post"];
/// The hook that is not a script: it formats the project.
const FMT: &str = "fmt";
/// Maximum number of calls that are listed for a hook.
const MOST_CALLS: usize = 12;

/// Replacements of functions of cargo-generate.
const INSTEAD: &[(&str, &str)] = &[
    (
        "variable::prompt",
        "an option in `[placeholders]`, or in `[conditional.'EXPRESSION'.placeholders]`",
    ),
    (
        "variable::set",
        "an option with a default, or a Liquid filter or `{% assign %}` where it is used",
    ),
    (
        "file::rename",
        "a path with placeholders, such as `src/{{crate_name}}.rs`",
    ),
    (
        "file::delete",
        "`ignore` with the path, under `[conditional.'EXPRESSION']`",
    ),
    (
        "file::write",
        "a file of the template, rendered with Liquid",
    ),
    ("file::listdir", "`ignore` with the paths, under conditions"),
    ("file::exists", "the condition on which the file is there"),
    (
        "system::command",
        "a line in the README: what the user is to run",
    ),
    (
        "system::date",
        "an option, or nothing: a project of today is not that of tomorrow",
    ),
    ("import", "nothing: what another script does is not known"),
    ("eval", "the code itself: what a text does is not known"),
    ("abort", "a `regex` or `choices` of the option"),
];

/// A script that cargo-generate would run.
#[derive(Debug)]
pub(crate) struct Hook {
    /// When it would run: `init`, `pre` or `post`.
    pub phase: &'static str,
    /// Its path in the template.
    pub path: Spanned<String>,
}

impl Hook {
    /// The path without `.` and empty parts.
    pub fn plain_path(&self) -> String {
        let parts = self.path.get_ref().split('/');
        let parts: Vec<_> = parts.filter(|part| !matches!(*part, "" | ".")).collect();
        parts.join("/")
    }

    /// Effects of the script.
    fn effects(&self, files: &BTreeMap<String, TemplateFile>) -> Option<Vec<Call>> {
        let file = files.get(&self.plain_path())?;
        let mut calls = calls(&String::from_utf8_lossy(&file.contents));
        calls.retain(|call| instead(&call.name).is_some());
        Some(calls)
    }

    /// Whether the hook changes no file and no variable, as one that only prints.
    pub fn is_harmless(&self, files: &BTreeMap<String, TemplateFile>) -> bool {
        self.effects(files).is_some_and(|calls| calls.is_empty())
    }

    /// An error that says what the hook would do.
    pub fn refusal(&self, config: &Config, files: &BTreeMap<String, TemplateFile>) -> Error {
        let (phase, path) = (self.phase, self.path.get_ref());
        let Some(calls) = self.effects(files) else {
            let message = format!("the `{phase}` hook `{path}` does not exist");
            let error = config.error_at(self.path.span(), message, "no file");
            return error.help("correct the path, or remove the hook");
        };
        let message = format!("the `{phase}` hook `{path}` is a script, and Kiln runs none");
        let error = config.error_at(self.path.span(), message, "not run");
        let mut help = "it would call".to_owned();
        for call in calls.iter().take(MOST_CALLS) {
            let _ = write!(help, "\n  `{}` in line {}", call.text, call.line);
        }
        if let Some(more @ 1..) = calls.len().checked_sub(MOST_CALLS) {
            let _ = write!(help, "\n  and {more} more");
        }
        for (name, instead) in INSTEAD {
            if calls.iter().any(|call| call.name == *name) {
                let _ = write!(help, "\ninstead of `{name}`: {instead}");
            }
        }
        help.push_str("\nto render without the hooks, as they are now, add `--skip-hooks`");
        error.help(help)
    }

    /// A warning that the hook is left out.
    pub fn skipped(&self, files: &BTreeMap<String, TemplateFile>) -> String {
        let (phase, path) = (self.phase, self.path.get_ref());
        let mut text = format!("the `{phase}` hook `{path}` is not run");
        let calls = self.effects(files).unwrap_or_default();
        if calls.is_empty() {
            text.push_str("; it changes no file and no variable");
            return text;
        }
        let shown = calls.iter().take(MOST_CALLS);
        let shown: Vec<_> = shown
            .map(|call| format!("`{}` (line {})", call.text, call.line))
            .collect();
        let _ = write!(text, "; it would call {}", shown.join(", "));
        if let Some(more @ 1..) = calls.len().checked_sub(MOST_CALLS) {
            let _ = write!(text, " and {}", counted(more, "other function"));
        }
        text
    }
}

fn instead(name: &str) -> Option<&'static str> {
    let mut all = INSTEAD.iter();
    all.find(|(one, _)| *one == name).map(|(_, text)| *text)
}

/// Reads `[hooks]`: the scripts, and whether the built-in hook `fmt` is among those of `post`, where
/// alone it has an effect.
///
/// # Errors
/// A key is unknown, or a value is not an array of strings.
pub(super) fn read(document: &Document<'_>, value: &Place<'_>) -> Result<(Vec<Hook>, bool)> {
    let mut hooks = Vec::new();
    let mut formats = false;
    for (key, value) in document.table("hooks", value)? {
        let given = key.get_ref().as_ref();
        let phase = PHASES.iter().find(|phase| **phase == given);
        let phase = phase.ok_or_else(|| document.unknown_key(key, PHASES))?;
        let paths = document.strings(phase, value)?;
        formats |= *phase == "post" && paths.iter().any(|path| path.get_ref() == FMT);
        let paths = paths.into_iter();
        let paths = paths.filter(|path| path.get_ref() != FMT);
        hooks.extend(paths.map(|path| Hook { phase, path }));
    }
    // In the order in which they would run.
    hooks.sort_by_key(|hook| PHASES.iter().position(|phase| *phase == hook.phase));
    Ok((hooks, formats))
}
