//! The summary of `kiln new` before anything is written.

use std::{fmt::Write as _, path::Path};

use super::{
    order::Order,
    quote::quote,
    report::{asides, next_steps, options_table},
};
use crate::{
    cli::{output::note, warnings},
    display::{files, size, slashed},
    error::Result,
    project::{Written, tree},
    render::Rendered,
    template::{answers::Answers, example::Example, option::Value},
};

/// Maximum number of replaced files in a summary.
const REPLACED_SHOWN: usize = 5;

/// The summary above the last prompt: the tree, the options, the next steps, and the equivalent command.
///
/// # Errors
/// The project cannot be created.
pub(crate) fn summary(order: &Order<'_>, answers: &Answers) -> Result<String> {
    let mut rendered = order.render(answers)?;
    let folder = order.folder(answers.name());
    let workspaces = order.workspaces(&rendered, &folder)?;
    workspaces.adapt(&mut rendered);
    let written = order.plan(&rendered, answers)?;
    let mut text = format!("\n{}\n", headline(&rendered, &folder, &written));
    text.push_str(&tree::folders(&rendered));
    for file in written.replaced.iter().take(REPLACED_SHOWN) {
        let _ = writeln!(text, "  replaces {}", slashed(file));
    }
    if let Some(more @ 1..) = written.replaced.len().checked_sub(REPLACED_SHOWN) {
        let _ = writeln!(text, "  replaces {} more", files(more));
    }
    text.push_str(&asides(&written, &order.notes(&workspaces)));
    for line in warnings::lines(&rendered.warnings) {
        let _ = writeln!(text, "  {line}");
    }
    for warning in written.warnings.iter().chain(&workspaces.warnings) {
        let _ = writeln!(text, "  warning: {warning}");
    }
    let options = options_table(answers, order.example);
    if !options.is_empty() {
        let _ = write!(text, "\n{options}");
    }
    let next = next_steps(order.example, &rendered, &folder, order.args.train);
    let again = command(order, answers);
    let _ = write!(text, "\n{next}\nThe same without prompts:\n  {again}\n\n");
    Ok(text)
}

/// The output of `kiln new --dry-run`.
///
/// # Errors
/// The project cannot be created.
pub(crate) fn dry_run(order: &Order<'_>, answers: &Answers) -> Result<String> {
    let mut rendered = order.render(answers)?;
    let folder = order.folder(answers.name());
    let workspaces = order.workspaces(&rendered, &folder)?;
    workspaces.adapt(&mut rendered);
    let written = order.plan(&rendered, answers)?;
    warnings::warn(&rendered.warnings);
    for warning in written.warnings.iter().chain(&workspaces.warnings) {
        note(&format!("warning: {warning}"));
    }
    let exists = folder.exists();
    Ok(format!(
        "{}\n{}\n{}\nDry run: nothing was written.\n",
        headline(&rendered, &folder, &written),
        asides(&written, &order.notes(&workspaces)),
        tree::list(&rendered, exists.then_some(&written)),
    ))
}

/// The number and size of files, and the folder.
fn headline(rendered: &Rendered<'_>, folder: &Path, written: &Written) -> String {
    let mut text = format!(
        "{}: {}, {}",
        folder.display(),
        files(rendered.files.len()),
        size(tree::total(rendered))
    );
    for (what, count) in [
        ("unchanged", written.unchanged.len()),
        ("replaced", written.replaced.len()),
    ] {
        if count > 0 {
            let _ = write!(text, ", {count} {what}");
        }
    }
    if written.repository {
        text.push_str(", and a git repository");
    }
    text
}

/// The equivalent command without prompts, which sets only options that differ from their defaults.
pub(crate) fn command(order: &Order<'_>, answers: &Answers) -> String {
    let args = order.args;
    let name = answers.name().given();
    // A path that was given in place of the name, or else the name.
    let given = args.name.as_deref().unwrap_or(name);
    let mut command = format!("kiln new {}", quote(given));
    if let Some(name) = args.named.as_ref().filter(|_| args.name.is_some()) {
        let _ = write!(command, " --name={}", quote(name));
    }
    if let Some(path) = &args.path {
        // `=` allows for a path that starts with a dash.
        let _ = write!(command, " --path={}", quote(&path.display().to_string()));
    }
    if let Some(example) = order.example {
        let _ = write!(command, " --example {}", quote(example.name()));
    }
    if let Some(template) = &args.template {
        let _ = write!(
            command,
            " --template={}",
            quote(&template.display().to_string())
        );
    }
    if args.strict {
        command.push_str(" --strict");
    }
    if args.skip_hooks {
        command.push_str(" --skip-hooks");
    }
    for (option, value) in args.version.list() {
        let _ = write!(command, " {option}={}", quote(value));
    }
    // A template is not rendered, so it has no options.
    for (key, value) in answers.values().filter(|_| !order.is_template()) {
        if default(order, key).as_ref() != Some(value) {
            let value = value.to_string();
            let _ = write!(command, " -d {}={}", quote(key), quote(&value));
        }
    }
    if args.force {
        command.push_str(" --force");
    }
    if let Some(vcs) = args.vcs {
        let _ = write!(command, " --vcs {}", vcs.name());
    }
    if let Some(workspace) = order.workspace.get() {
        let _ = write!(command, " --workspace {}", workspace.name());
    }
    if args.train {
        command.push_str(" --train");
    }
    command.push_str(" --yes");
    command
}

/// The value of an option that is not set on the command line.
fn default(order: &Order<'_>, key: &str) -> Option<Value> {
    let example = order.example.map(Example::values);
    let example = example.and_then(|values| values.get(key));
    let mut defaults = order
        .template
        .definitions(key)
        .map(|option| &option.default);
    // Several conditions may define the option with other defaults.
    let default = defaults
        .next()
        .filter(|first| defaults.all(|other| other == *first));
    example.or(default.and_then(Option::as_ref)).cloned()
}
