//! `kiln options`: what a template asks, and what each answer changes.

use std::{fmt::Write as _, process::ExitCode};

use super::diff::{Change, changes};
use crate::{
    error::Result,
    name::Name,
    option::{Answers, OptionKind, TemplateOption, Value},
    render::{Rendered, render},
    template::Template,
};

/// Runs `kiln options`.
///
/// # Errors
/// The template is wrong.
pub(crate) fn run() -> Result<ExitCode> {
    print!("{}", describe(&Template::embedded()?)?);
    Ok(ExitCode::SUCCESS)
}

/// Every option, with what it changes: found by rendering, so it is true.
pub(crate) fn describe(template: &Template) -> Result<String> {
    let defaults = Answers::defaults(template, Name::parse("my-model")?)?;
    let rendered = render(template, &defaults)?;
    let mut text = String::new();
    for option in template.options() {
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}: {}", option.name, option.prompt);
        for value in samples(option) {
            let default = Some(&value) == option.default.as_ref();
            let _ = writeln!(text, "  {}{}", shown(option, &value), mark(default));
            if !default {
                let answers = defaults
                    .clone()
                    .with(template, &option.name, &value.to_string())?;
                write_changes(&mut text, &rendered, &render(template, &answers)?);
            }
        }
        if let OptionKind::Text { regex: Some(regex) } = &option.kind {
            let _ = writeln!(text, "  it must match the regex {regex}");
        }
    }
    text.push_str("\nSet them with --define KEY=VALUE or in a --values file.\n");
    Ok(text)
}

/// The values to try. Of a text: the default, and one that is not the default.
fn samples(option: &TemplateOption) -> Vec<Value> {
    let mut values = option.values();
    if let OptionKind::Text { .. } = option.kind {
        let other = ["another text", "another-text", "another", "a", "1", ""]
            .iter()
            .filter_map(|text| option.parse(text).ok())
            .find(|value| Some(value) != option.default.as_ref());
        values.extend(other);
    }
    values
}

fn shown(option: &TemplateOption, value: &Value) -> String {
    let text = matches!(option.kind, OptionKind::Text { .. });
    if text && Some(value) != option.default.as_ref() {
        return "any other text".to_owned();
    }
    match value {
        Value::Text(text) if text.contains(' ') || text.is_empty() => format!("{text:?}"),
        Value::List(list) if list.is_empty() => "(none)".to_owned(),
        value => value.to_string(),
    }
}

fn mark(default: bool) -> &'static str {
    if default { " (default)" } else { "" }
}

fn write_changes(text: &mut String, before: &Rendered<'_>, after: &Rendered<'_>) {
    let mut any = false;
    for change in changes(before, after) {
        let verb = match change {
            Change::Added(_) => "adds",
            Change::Removed(_) => "removes",
            Change::Changed(..) => "changes",
        };
        any = true;
        let _ = writeln!(text, "    {verb} {}", change.path().display());
    }
    if !any {
        text.push_str("    changes nothing\n");
    }
}
