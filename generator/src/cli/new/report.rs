//! The report of `kiln new`: the written files, the options, and the next steps.

use std::{fmt::Write as _, path::Path};

use super::quote::quote;
use crate::{
    cli::next::test_step,
    display::{files, slashed},
    project::{Written, todo::SITES_FILE},
    render::Rendered,
    template::{answers::Answers, example::Example},
};

/// The step that trains a project with TODO sites.
const TRAIN: &str = "cargo run              # train, then test";

/// The written files and the options.
pub(super) fn report(
    answers: &Answers,
    example: Option<&Example>,
    path: &Path,
    written: &Written,
    workspaces: &[String],
) -> String {
    let mut text = String::new();
    let name = answers.name();
    if name.given() != name.package() {
        let _ = writeln!(
            text,
            "Package name: `{}` becomes `{}`.",
            name.given(),
            name.package()
        );
    }
    let _ = write!(
        text,
        "Created `{}` in {}: {}",
        name.package(),
        path.display(),
        files(written.created.len())
    );
    if !written.unchanged.is_empty() {
        let _ = write!(text, ", {} unchanged", written.unchanged.len());
    }
    if !written.replaced.is_empty() {
        let _ = write!(text, ", {} replaced", written.replaced.len());
    }
    text.push_str(if written.repository {
        ", and a git repository.\n"
    } else {
        ".\n"
    });
    for file in &written.replaced {
        let _ = writeln!(text, "  replaced {}", slashed(file));
    }
    text.push_str(&asides(written, workspaces));
    text.push('\n');
    if let Some(example) = example {
        let _ = writeln!(
            text,
            "The example `{}`: {}\n",
            example.name(),
            example.description()
        );
    }
    let options = options_table(answers, example);
    if !options.is_empty() {
        let _ = writeln!(text, "{options}");
    }
    text
}

/// Lines about files that were kept, the repository, and the Cargo workspaces above.
pub(super) fn asides(written: &Written, workspaces: &[String]) -> String {
    let mut text = String::new();
    for file in &written.kept {
        let _ = writeln!(text, "  kept {} as it is", slashed(file));
    }
    for file in &written.extended {
        let _ = writeln!(text, "  added the template's lines to {}", slashed(file));
    }
    for line in written.notes.iter().chain(workspaces) {
        let _ = writeln!(text, "  {line}");
    }
    text
}

/// A line for each option; empty for a template.
pub(super) fn options_table(answers: &Answers, example: Option<&Example>) -> String {
    let mut text = String::new();
    if !example.is_some_and(Example::is_template) {
        let width = answers.values().map(|(key, _)| key.len()).max();
        for (key, value) in answers.values() {
            let _ = writeln!(text, "  {key:width$}  {value}", width = width.unwrap_or(0));
        }
    }
    text
}

/// The next steps.
pub(super) fn next_steps(
    example: Option<&Example>,
    rendered: &Rendered<'_>,
    path: &Path,
    train: bool,
) -> String {
    let path = path.display().to_string();
    let quoted = quote(&path);
    if train {
        return format!("Training: cargo run, in {quoted}\n");
    }
    let steps = match example {
        None => steps_of(rendered),
        Some(example) if example.is_template() => vec![
            "less README.md         # the changes to Kiln's template, and why".to_owned(),
            "cargo test             # the snapshots of rendered projects".to_owned(),
        ],
        Some(_) => vec![
            "less README.md         # the changes to the template, and why".to_owned(),
            TRAIN.to_owned(),
            "cargo test             # the contract tests, and those of the example".to_owned(),
        ],
    };
    let steps: String = steps.iter().map(|step| format!("  {step}\n")).collect();
    let enter = match path == "." {
        true => String::new(),
        false => format!("  cd {quoted}\n"),
    };
    format!("Next:\n{enter}{steps}")
}

/// The commands to run in a project, which may be of a team's template.
fn steps_of(rendered: &Rendered<'_>) -> Vec<String> {
    let has = |path: &str| rendered.get(path).is_some();
    let sites = has(SITES_FILE);
    let mut steps = Vec::new();
    if has("Cargo.toml") && has("src/main.rs") {
        let step = if sites { TRAIN } else { "cargo run" };
        steps.push(step.to_owned());
    }
    steps.extend(test_step(has, 23));
    if sites {
        steps.push("kiln todos             # the sites to change for your task".to_owned());
    }
    if steps.is_empty() && has("README.md") {
        steps.push("less README.md".to_owned());
    }
    steps
}
