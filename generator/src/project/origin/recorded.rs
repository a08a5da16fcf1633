//! The record of the template in a project: the answers, which the template records,
//! and the repository, which Kiln adds.

use std::{
    borrow::Cow,
    fmt::Write as _,
    path::{Path, PathBuf},
};

use super::{GitSource, Origin, Revision, address, subfolder};
use crate::{
    document::{Document, Place},
    error::{Error, Result},
    project::record::{RECORD_FILE, Record, known_keys},
    render::{Rendered, RenderedFile},
    template::{
        Template,
        answers::Answers,
        option::{OptionKind, TemplateOption},
    },
};

const KEYS: &[&str] = &["git", "subfolder", "branch", "tag", "rev", "commit"];

/// Parses the table `source` of a record.
pub(crate) fn parse(document: &Document<'_>, value: &Place<'_>) -> Result<Origin> {
    let table = document.table("source", value)?;
    known_keys(document, table, KEYS)?;
    let text = |key| {
        let value = table.get(key);
        value.map(|value| document.string(key, value)).transpose()
    };
    let needed = |key| {
        text(key)?.ok_or_else(|| {
            let message = format!("the source of the template has no `{key}`");
            let error = document.error_at(value.span(), message, "this source");
            error.help("restore the file from version control; Kiln maintains it")
        })
    };
    // The record of a stranger's project must not make Git run anything either.
    let at = |key, error| match table.get(key) {
        Some(place) => document.relocate(error, place),
        None => error,
    };
    let url = needed("git")?;
    if !Path::new(&url).is_absolute() {
        address::check_url(&url).map_err(|error| at("git", error))?;
    }
    let commit = needed("commit")?;
    let is_hash = commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    if !is_hash {
        let error = Error::input(format!("`{commit}` is not the full hash of a commit"));
        let help = "restore the file from version control; Kiln maintains it";
        return Err(at("commit", error.help(help)));
    }
    let (branch, tag, rev) = (text("branch")?, text("tag")?, text("rev")?);
    let key = KEYS[2..5].iter().find(|key| table.contains_key(**key));
    let revision = Revision::of(branch.as_deref(), tag.as_deref(), rev.as_deref())
        .map_err(|error| at(key.unwrap_or(&"commit"), error))?;
    let folder = text("subfolder")?.map(|folder| subfolder(&folder));
    Ok(Origin {
        source: GitSource {
            url,
            subfolder: folder.transpose().map_err(|error| at("subfolder", error))?,
            revision,
        },
        commit,
    })
}

/// Adds the commit of the template to the record of a rendered project, or writes the record if the
/// template has none.
///
/// # Errors
/// The template writes a table `source` of its own.
pub(crate) fn stamp(rendered: &mut Rendered<'_>, answers: &Answers, origin: &Origin) -> Result<()> {
    let table = table(origin);
    let path = Path::new(RECORD_FILE);
    if let Some(file) = rendered.files.iter_mut().find(|file| file.path == path) {
        let mut text = String::from_utf8_lossy(&file.contents).into_owned();
        if Record::parse(RECORD_FILE, &text)?.origin.is_some() {
            let message = format!("the template's `{RECORD_FILE}` has a table `source`");
            return Err(Error::template(message).help("remove the table: Kiln writes it"));
        }
        if !text.ends_with('\n') {
            text.push('\n');
        }
        file.contents = Cow::Owned((text + "\n" + table.as_str()).into_bytes());
        return Ok(());
    }
    let text = format!("{}\n{table}", fresh(answers, origin));
    let file = RenderedFile {
        path: PathBuf::from(RECORD_FILE),
        contents: Cow::Owned(text.into_bytes()),
        executable: false,
    };
    let at = rendered
        .files
        .partition_point(|other| other.path < file.path);
    rendered.files.insert(at, file);
    Ok(())
}

/// A record of the answers, for a template that does not write one.
fn fresh(answers: &Answers, origin: &Origin) -> String {
    let url = origin.source.url.trim_end_matches('/');
    let name = url.rsplit(['/', ':']).next().unwrap_or(url);
    let mut text = format!(
        "# What this project was made from. Kiln reads and renews it.\n\
         kiln = {}\ntemplate = {}\nname = {}\n\n[options]\n",
        quoted(env!("CARGO_PKG_VERSION")),
        quoted(name.trim_end_matches(".git")),
        quoted(answers.name().package()),
    );
    for (key, value) in answers.values() {
        let key = toml_edit::Key::new(key);
        let _ = writeln!(
            text,
            "{} = {}",
            key.display_repr(),
            quoted(&value.to_string())
        );
    }
    text
}

fn table(origin: &Origin) -> String {
    let source = &origin.source;
    let mut text =
        "# `kiln update` merges later commits of this repository.\n[source]\n".to_owned();
    let url = address::without_password(&source.url);
    let _ = writeln!(text, "git = {}", quoted(&url));
    if let Some(folder) = &source.subfolder {
        let _ = writeln!(text, "subfolder = {}", quoted(folder));
    }
    if let Some((key, name)) = source.revision.named() {
        let _ = writeln!(text, "{key} = {}", quoted(name));
    }
    let _ = writeln!(text, "commit = {}", quoted(&origin.commit));
    text
}

fn quoted(text: &str) -> String {
    toml_edit::Value::from(text).to_string()
}

/// Checks that the record that a template renders has every answer. Otherwise an update would take
/// the defaults for the answers, and so miss changes or make them twice.
///
/// # Errors
/// The record is invalid, or does not have the answer of an option.
pub(crate) fn check(template: &Template, answers: &Answers, rendered: &Rendered<'_>) -> Result<()> {
    let Some(bytes) = rendered.get(RECORD_FILE) else {
        return Ok(());
    };
    let file = template
        .files()
        .iter()
        .find(|file| file.path == RECORD_FILE);
    let source = file.map_or(RECORD_FILE, |file| file.source.as_str());
    let text = String::from_utf8_lossy(bytes);
    let record = Record::parse(&format!("{source}, as rendered"), &text)?;
    let (values, others) = record.values_that_fit(template)?;
    for option in template.options() {
        let (name, answer) = (&option.name, answers.get(&option.name));
        let message = match values.get(name) {
            recorded if recorded == answer => continue,
            Some(recorded) => format!(
                "`{source}` records `{recorded}` for the option `{name}`, and not its answer"
            ),
            None if others.contains(name) => {
                format!("`{source}` records something else for the option `{name}` than its answer")
            }
            None => format!("`{source}` does not record the option `{name}`"),
        };
        let error = Error::template(message).help(format!(
            "`kiln update` reads the answers there: write `{}` below `[options]`",
            line(option)
        ));
        let text = file.and_then(|file| str::from_utf8(&file.contents).ok());
        return Err(match text {
            Some(text) => error.at(source, text, place(text, name), "here"),
            None => error,
        });
    }
    // Values of options that the template does not have would stop an update.
    record.values(template).map(drop)
}

/// The line that records an option, in Liquid.
fn line(option: &TemplateOption) -> String {
    let name = &option.name;
    match option.kind {
        OptionKind::Flag => format!("{name} = {{{{{name}}}}}"),
        OptionKind::List(_) => format!("{name} = \"{{{{{name} | join: \",\"}}}}\""),
        _ => format!("{name} = \"{{{{{name}}}}}\""),
    }
}

/// The place of an option in the text of a record: its line, or else the heading of the options.
fn place(text: &str, name: &str) -> std::ops::Range<usize> {
    let mut at = 0;
    let mut heading = 0..0;
    for line in text.split_inclusive('\n') {
        let trimmed = line.trim();
        let span = at..at + line.trim_end().len();
        at += line.len();
        if trimmed == "[options]" {
            heading = span;
        } else if trimmed
            .split('=')
            .next()
            .is_some_and(|key| key.trim() == name)
        {
            return span;
        }
    }
    heading
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{name::Name, render::render, template::option::Value};

    /// Kiln's own template is not checked when it is rendered.
    #[test]
    fn the_embedded_template_records_every_answer() {
        let template = Template::embedded().unwrap();
        assert!(template.is_own() && template.check().is_ok());
        let name = Name::parse("Some-name_2").unwrap();
        let defaults = Answers::defaults(&template, name).unwrap();
        for option in template.options() {
            let mut values: Vec<String> = option.values().iter().map(Value::to_string).collect();
            if let OptionKind::Text { .. } = option.kind {
                let texts = [
                    "",
                    " ",
                    "it's {{ name }} {% if %}",
                    "# [options] = é",
                    "'''",
                    "$x",
                ];
                values.extend(texts.map(str::to_owned));
                for wrong in ["\"", "\\", "a\nb", "\u{7f}"] {
                    assert!(option.parse(wrong).is_err(), "{}: {wrong:?}", option.name);
                }
            }
            assert!(values.len() > 1, "{}", option.name);
            for value in values {
                let answers = defaults.clone().with(&template, &option.name, &value);
                let answers = answers.unwrap();
                let rendered = render(&template, &answers).unwrap();
                let checked = check(&template, &answers, &rendered);
                assert!(checked.is_ok(), "{} = {value:?}: {checked:?}", option.name);
            }
        }
        let mut without = render(&template, &defaults).unwrap();
        for file in &mut without.files {
            if file.path == Path::new(RECORD_FILE) {
                let text = String::from_utf8_lossy(&file.contents);
                file.contents = Cow::Owned(text.replace("\nstrategy = ", "\n# ").into_bytes());
            }
        }
        assert!(check(&template, &defaults, &without).is_err());
    }
}
