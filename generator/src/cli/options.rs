//! `kiln options`: the options of a template and the effect of each value.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use super::{
    diff::{Change, changes},
    output::print,
    source::{VersionArgs, choose},
};
use crate::{
    display::slashed,
    error::Result,
    name::Name,
    project::record::RECORD_FILE,
    render::{Rendered, render},
    template::{
        Reading, Template,
        answers::{Answers, Values},
        applicable::Applicable,
        option::{OptionKind, TemplateOption, Value},
    },
};

/// Arguments of `kiln options`.
#[derive(Debug, Args)]
pub struct OptionsArgs {
    /// List the options of this template instead of Kiln's own: a folder, a URL, or a favourite.
    #[arg(long, value_name = "TEMPLATE", value_parser = super::folder::PathParser)]
    pub template: Option<PathBuf>,
    /// Leave out the hooks of the template: the scripts that cargo-generate would run
    #[arg(long, requires = "template")]
    pub skip_hooks: bool,
    #[command(flatten)]
    pub version: VersionArgs,
}

/// Runs `kiln options`.
///
/// # Errors
/// The template is invalid.
pub(crate) fn run(args: &OptionsArgs) -> Result<ExitCode> {
    let reading = Reading::lenient(args.skip_hooks);
    let template = choose(args.template.as_deref(), &args.version, reading)?.template;
    print(&describe(&template)?)?;
    Ok(ExitCode::SUCCESS)
}

/// A description of every option and the effect of its values, which is found by rendering.
pub(crate) fn describe(template: &Template) -> Result<String> {
    if template.options().is_empty() && template.conditional_options().next().is_none() {
        return Ok("The template has no options.\n".to_owned());
    }
    let base = base(template)?;
    let rendered = match &base {
        Ok(answers) => Some((answers, render(template, answers)?)),
        Err(_) => None,
    };
    let mut text = String::new();
    for option in template.options() {
        if !text.is_empty() {
            text.push('\n');
        }
        let _ = writeln!(text, "{}: {}", option.name, option.prompt);
        for value in samples(option) {
            let default = Some(&value) == option.default.as_ref();
            let help = help(option, &value).map_or(String::new(), |help| format!(": {help}"));
            let _ = writeln!(text, "  {}{}{help}", shown(option, &value), mark(default));
            let Some((answers, rendered)) = &rendered else {
                continue;
            };
            if answers.get(&option.name) != Some(&value) {
                let answers = (*answers).clone();
                // A value may call for options without default.
                let answers = answers.with(template, &option.name, &value.to_string());
                if let Ok(answers) = answers {
                    write_changes(&mut text, rendered, &render(template, &answers)?);
                }
            }
        }
        if option.default.is_none() {
            text.push_str("  no default\n");
        }
        if let OptionKind::Text { regex: Some(regex) } = &option.kind {
            let _ = writeln!(text, "  {}", option.form(regex));
        }
    }
    for (condition, option) in template.conditional_options() {
        let _ = write!(
            text,
            "\n{}: {}\n  only if {condition}\n",
            option.name, option.prompt
        );
        for value in samples(option) {
            let default = Some(&value) == option.default.as_ref();
            let _ = writeln!(text, "  {}{}", shown(option, &value), mark(default));
        }
        if option.default.is_none() {
            text.push_str("  no default\n");
        }
    }
    if let Err(option) = base {
        let _ = writeln!(
            text,
            "\nThe effect of values is not shown: `{option}` has neither default nor known values."
        );
    }
    text.push_str("\nSet them with --define KEY=VALUE or in a --values file.\n");
    Ok(text)
}

/// Answers to compare with: the defaults, and a valid value of each option without default. If no
/// valid value is known, the name of that option.
fn base(template: &Template) -> Result<std::result::Result<Answers, &str>> {
    let mut values = Values::new();
    for option in template.options() {
        if option.default.is_none() {
            let Some(value) = samples(option).into_iter().next() else {
                return Ok(Err(&option.name));
            };
            values.insert(option.name.clone(), value);
        }
    }
    let name = Name::parse("my-model")?;
    let lacking = Applicable::of(template, &name, &values, true)?.lacking;
    match lacking.first() {
        Some(option) => Ok(Err(&option.name)),
        None => Answers::complete(template, name, values).map(Ok),
    }
}

/// The values to try: all of them; of a string, the default and another value.
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
    match &option.default {
        None if text => return "any text".to_owned(),
        Some(default) if text && value != default => return "any other text".to_owned(),
        _ => {}
    }
    match value {
        Value::Text(text) if text.contains(' ') || text.is_empty() => format!("{text:?}"),
        Value::List(list) if list.is_empty() => "(none)".to_owned(),
        value => value.to_string(),
    }
}

/// The line that explains a value.
fn help<'o>(option: &'o TemplateOption, value: &Value) -> Option<&'o str> {
    let (OptionKind::Choice(choices), Value::Text(value)) = (&option.kind, value) else {
        return None;
    };
    let choice = choices.iter().find(|choice| choice.value == *value)?;
    choice.help.as_deref()
}

fn mark(default: bool) -> &'static str {
    if default { " (default)" } else { "" }
}

fn write_changes(text: &mut String, before: &Rendered<'_>, after: &Rendered<'_>) {
    let mut any = false;
    let changes = changes(before, after);
    // The record contains every answer, so its changes are not shown.
    for change in changes.filter(|change| change.path() != Path::new(RECORD_FILE)) {
        let verb = match change {
            Change::Added(_) => "adds",
            Change::Removed(_) => "removes",
            Change::Changed(..) => "changes",
        };
        any = true;
        let _ = writeln!(text, "    {verb} {}", slashed(change.path()));
    }
    if !any {
        text.push_str("    changes nothing\n");
    }
}
