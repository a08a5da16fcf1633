//! Parsing of option values from the command line and values files.

use std::{fs, path::Path};

use toml::de::{DeTable, DeValue};

use super::{
    Template,
    answers::{Values, unknown_option},
    option::{OptionKind, TemplateOption, Value},
};
use crate::{
    document::{Document, Place},
    error::{Error, Kind, Result, suggest},
};

/// Reads the values file, if given, and the definitions, which take precedence.
pub(crate) fn read(template: &Template, file: Option<&Path>, defines: &[String]) -> Result<Values> {
    let mut values = match file {
        Some(path) => read_file(template, path)?,
        None => Values::new(),
    };
    let mut defined: Vec<(String, &String)> = Vec::new();
    for define in defines {
        let (key, value) = pair(template, "--define", define)?;
        let before = defined.iter().find(|(other, _)| *other == key);
        if let Some((_, before)) = before
            && values.get(&key) != Some(&value)
        {
            return Err(two_values(&key, before, define));
        }
        defined.push((key.clone(), define));
        values.insert(key, value);
    }
    Ok(values)
}

/// An error for two arguments that give an option different values.
pub(crate) fn two_values(key: &str, one: &str, other: &str) -> Error {
    let message = format!("the option `{key}` has two values: `{one}` and `{other}`");
    Error::input(message).help("remove one of the two")
}

/// Reads `KEY=VALUE` in the argument that messages call `argument`.
///
/// # Errors
/// There is no such option, or it does not have the value.
pub(crate) fn pair(template: &Template, argument: &str, define: &str) -> Result<(String, Value)> {
    let here = |error: Error, part: &str, label: &str| {
        let start = part.as_ptr() as usize - define.as_ptr() as usize;
        error.in_argument(argument, define, start..start + part.len(), label)
    };
    let (key, value) = define.split_once('=').ok_or_else(|| {
        let error = Error::input(format!("`--define {define}` has no `=`"));
        let key = if define.is_empty() { "KEY" } else { define };
        here(error, define, "no `=`").help(format!("write `--define {key}=VALUE`"))
    })?;
    let (key, value) = (key.trim(), value.trim_start());
    let parsed = parse(template, key, value)
        .ok_or_else(|| here(unknown_option(template, key), key, "no option"))?;
    let value = parsed.map_err(|error| here(error, value, "this value"))?;
    Ok((key.to_owned(), value))
}

/// Parses a value of the option `key`; `None` if there is none. If several conditions define the
/// option, one that accepts the value decides; the answers are checked against the one that applies.
pub(crate) fn parse(template: &Template, key: &str, value: &str) -> Option<Result<Value>> {
    let mut parsed = template.definitions(key).map(|option| option.parse(value));
    let first = parsed.next()?;
    Some(first.or_else(|error| parsed.find_map(Result::ok).ok_or(error)))
}

fn read_file(template: &Template, path: &Path) -> Result<Values> {
    let bytes = fs::read(path)
        .map_err(|cause| Error::io("read the values file", path, cause).into_input())?;
    let name = path.display().to_string();
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::input(format!("the values file `{name}` is not UTF-8 (byte {at})"))
            .at_wrong_byte(&name, error.as_bytes())
            .help("save the file as UTF-8; a values file is TOML")
    })?;
    parse_file(template, &name, &text)
}

/// Parses a values file: options at the top level or, as `cargo generate` requires, under `[values]`.
pub(crate) fn parse_file(template: &Template, name: &str, text: &str) -> Result<Values> {
    let document = Document::new(name, text, Kind::Input);
    let table = document.parse()?;
    let Some(values) = table.get("values") else {
        return read_table(template, &document, &table);
    };
    if let Some(other) = table.keys().find(|key| key.get_ref() != "values") {
        let message = "a values file has either all options under `[values]` or none";
        let error = document.error_at(other.span(), message, "not under `[values]`");
        return Err(error.help("move the key below `[values]`"));
    }
    read_table(template, &document, document.table("values", values)?)
}

/// Reads a table of options.
pub(crate) fn read_table(
    template: &Template,
    document: &Document<'_>,
    table: &DeTable<'_>,
) -> Result<Values> {
    let mut values = Values::new();
    for (key, place) in table {
        let name = key.get_ref().as_ref();
        if template.option(name).is_none() {
            let names: Vec<_> = template.config().all_options().collect();
            let names = names.iter().map(|option| option.name.as_str());
            let message = format!("there is no option `{name}`");
            return Err(document
                .error_at(key.span(), message, "no option")
                .help(suggest(name, names, "the options")));
        }
        values.insert(name.to_owned(), read_any(document, template, name, place)?);
    }
    Ok(values)
}

/// Reads the value of the option called `name`, which several conditions may define.
fn read_any(
    document: &Document<'_>,
    template: &Template,
    name: &str,
    place: &Place<'_>,
) -> Result<Value> {
    let mut read = template
        .definitions(name)
        .map(|option| read_value(document, option, place));
    let first = read
        .next()
        .unwrap_or_else(|| Err(unknown_option(template, name)));
    first.or_else(|error| read.find_map(Result::ok).ok_or(error))
}

/// Reads the value of one option.
pub(crate) fn read_value(
    document: &Document<'_>,
    option: &TemplateOption,
    place: &Place<'_>,
) -> Result<Value> {
    let text = match (&option.kind, place.get_ref()) {
        (OptionKind::List(_), DeValue::Array(_)) => document
            .strings(&option.name, place)?
            .into_iter()
            .map(toml::Spanned::into_inner)
            .collect::<Vec<_>>()
            .join(","),
        (_, DeValue::String(text)) => text.to_string(),
        (_, DeValue::Boolean(flag)) => flag.to_string(),
        (_, DeValue::Integer(number)) => number.to_string(),
        (OptionKind::List(_), _) => {
            return Err(document.wrong_type(&option.name, place, "an array of strings"));
        }
        _ => return Err(document.wrong_type(&option.name, place, "a string")),
    };
    option
        .parse(&text)
        .map_err(|error| document.relocate(error, place))
}
