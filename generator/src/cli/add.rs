//! `kiln add`: merges further options into a project.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;

use super::{
    output::{Format, print},
    renew::{Project, RenewArgs, Source, renew},
};
use crate::{
    error::{Error, Result, suggest},
    project::{merge::Labels, record::Record},
    template::{
        Template,
        answers::{Answers, Values},
        option::{OptionKind, TemplateOption, Value},
        values,
    },
};

/// Alternative names of choices.
const ALIASES: [(&str, &str); 1] = [("mpi", "multi-worker-mirrored")];

/// Arguments of `kiln add`.
#[derive(Debug, Args)]
pub struct AddArgs {
    /// An option as KEY=VALUE; a value that belongs to a single option, such as `slurm`; or an
    /// option with a single other value, such as `tensorboard`.
    #[arg(required = true, value_name = "OPTION")]
    pub options: Vec<String>,
    /// Folder of the project.
    #[arg(long, default_value = ".", value_name = "FOLDER", value_parser = super::folder::PathParser)]
    pub path: PathBuf,
    /// Folder of your own template, as it was when the project was generated.
    #[arg(long, value_name = "FOLDER", value_parser = super::folder::PathParser)]
    pub from: Option<PathBuf>,
    #[command(flatten)]
    pub renew: RenewArgs,
}

/// Runs `kiln add`.
///
/// # Errors
/// The folder has no Kiln project, or its template is unknown; an option is invalid; or an error of
/// [`renew`].
pub(crate) fn run(args: &AddArgs) -> Result<ExitCode> {
    let mut project = Project::open(&args.path, &args.renew)?;
    let record = Record::read(&args.path)?;
    // The template that the project was generated from; `kiln update` merges the current one.
    let source = Source::of_record(&record, args.from.as_deref(), args.renew.skip_hooks)?;
    record.check_complete(&source.template)?;
    let values = record.values(&source.template)?;
    let (was, left) = Answers::fitting(&source.template, record.name.clone(), values.clone())?;
    let added = resolve_all(&source.template, &was, &args.options)?;
    let mut wanted = values;
    wanted.retain(|key, _| !left.contains(key));
    wanted.extend(added.clone());
    let is = Answers::renewed(&source.template, record.name.clone(), wanted, &added)?;
    if args.renew.format == Format::Text {
        let name = record.name.package();
        print(&format!("Adding {} to `{name}`\n", list(&added)))?;
        for removed in removed(&was, &added) {
            print(&format!("  {removed}\n"))?;
        }
    }
    let added = list(&added);
    let labels = Labels {
        mine: "yours",
        base: &source.label,
        new: &added,
    };
    let example = record.example.as_ref().map(|(name, _)| name.as_str());
    renew(
        &mut project,
        &record,
        (
            &source.render(example, &was, &args.path)?,
            &source.render(example, &is, &args.path)?,
        ),
        labels,
        format!("kiln add {added}"),
        &args.renew,
    )
}

fn list(values: &Values) -> String {
    let values = values.iter().map(|(key, value)| format!("{key}={value}"));
    values.collect::<Vec<_>>().join(" ")
}

/// The options and values that `given` denotes.
///
/// # Errors
/// One denotes none, or two give an option different values.
fn resolve_all(template: &Template, answers: &Answers, given: &[String]) -> Result<Values> {
    let mut values = Values::new();
    for (at, one) in given.iter().enumerate() {
        let (key, value) = resolve(template, answers, one)?;
        if values.get(&key).is_some_and(|other| *other != value) {
            let mut before = given[..at].iter();
            let is_key = |other: &&String| {
                resolve(template, answers, other).is_ok_and(|(other, _)| other == key)
            };
            let other = before.find(is_key).map_or("", String::as_str);
            return Err(values::two_values(&key, other, one));
        }
        values.insert(key, value);
    }
    Ok(values)
}

/// A line for each value that the new ones replace, unless it switched its option off.
fn removed(was: &Answers, added: &Values) -> Vec<String> {
    let replaced = added.iter().filter_map(|(key, value)| {
        let old = was.get(key).filter(|old| *old != value && !is_off(old))?;
        Some(format!("removes {key}={old}, which {key}={value} replaces"))
    });
    replaced.collect()
}

/// The option and value that `given` denotes.
fn resolve(template: &Template, answers: &Answers, given: &str) -> Result<(String, Value)> {
    if given.contains('=') {
        return values::pair(template, "OPTION", given);
    }
    if let Some(option) = template.option(given) {
        return Ok((given.to_owned(), only_other(option, answers)?));
    }
    let alias = ALIASES.iter().find(|(alias, _)| *alias == given);
    let value = alias.map_or(given, |(_, value)| value);
    let mut takers = choices(template).filter(|(_, choice)| *choice == value);
    match (takers.next(), takers.next()) {
        (Some((key, _)), None) => Ok((key.to_owned(), Value::Text(value.to_owned()))),
        (Some((a, _)), Some((b, _))) => {
            let error = Error::input(format!("more than one option has the value `{value}`"));
            Err(error.help(format!("write `{a}={value}` or `{b}={value}`")))
        }
        (None, _) => {
            let names = template.options().iter().map(|option| option.name.as_str());
            let all: Vec<_> = names
                .chain(choices(template).map(|(_, value)| value))
                .collect();
            let error = Error::input(format!("there is no option or value `{given}` to add"));
            Err(error.help(suggest(given, all, "the options and values")))
        }
    }
}

/// The words that can stand for `KEY=VALUE`, each with its meaning: options with a single other
/// value, values of a single option, and aliases.
pub(super) fn words(template: &Template) -> Vec<(String, String)> {
    let has_one_other = |option: &&TemplateOption| {
        let values = option.values();
        let others = values.iter().map(|now| others(option, Some(now)).len());
        others.max() == Some(1)
    };
    let options = template.options().iter().filter(has_one_other);
    let mut words: Vec<_> = options
        .map(|option| (option.name.clone(), option.prompt.clone()))
        .collect();
    let count = |value: &str| {
        choices(template)
            .filter(|(_, other)| *other == value)
            .count()
    };
    let is_word = |value: &str| count(value) == 1 && template.option(value).is_none();
    let values = choices(template).filter(|(_, value)| is_word(value));
    words.extend(values.map(|(key, value)| (value.to_owned(), format!("{key}={value}"))));
    let aliases = ALIASES.iter().filter(|(_, value)| is_word(value));
    words.extend(aliases.map(|(alias, value)| ((*alias).to_owned(), (*value).to_owned())));
    words
}

/// All values of choices, each with its option.
fn choices(template: &Template) -> impl Iterator<Item = (&str, &str)> {
    template.options().iter().flat_map(|option| {
        let choices = match &option.kind {
            OptionKind::Choice(choices) => choices.as_slice(),
            _ => &[],
        };
        let values = choices.iter().map(|choice| choice.value.as_str());
        values.map(|value| (option.name.as_str(), value))
    })
}

/// The only other value of an option that does not switch it off.
fn only_other(option: &TemplateOption, answers: &Answers) -> Result<Value> {
    let now = answers.get(&option.name);
    match (others(option, now).as_slice(), now) {
        ([value], _) => Ok(value.clone()),
        ([], Some(now))
            if !matches!(option.kind, OptionKind::Text { .. } | OptionKind::List(_)) =>
        {
            Ok(now.clone())
        }
        (others, _) => {
            let message = format!("the option `{}` needs a value", option.name);
            let ways = others
                .iter()
                .map(|value| format!("`{}={value}`", option.name));
            let ways: Vec<_> = ways.collect();
            Err(Error::input(message).help(match ways.as_slice() {
                [] => format!("write `{}=VALUE`", option.name),
                ways => format!("write {}", ways.join(" or ")),
            }))
        }
    }
}

/// The values of an option except the current one and those that switch it off.
fn others(option: &TemplateOption, now: Option<&Value>) -> Vec<Value> {
    let mut others = match option.kind {
        OptionKind::Choice(_) | OptionKind::Flag => option.values(),
        OptionKind::Text { .. } | OptionKind::List(_) => Vec::new(),
    };
    others.retain(|value| Some(value) != now && !is_off(value));
    others
}

/// Whether a value switches its option off.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Text(text) => ["no", "none", "off"].contains(&text.as_str()),
        Value::Flag(flag) => !flag,
        Value::List(list) => list.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;

    #[test]
    fn every_word_can_be_added() {
        let template = Template::embedded().unwrap();
        let answers = Answers::defaults(&template, Name::parse("a").unwrap()).unwrap();
        let words = words(&template);
        for (word, _) in &words {
            let added = resolve(&template, &answers, word);
            assert!(added.is_ok(), "{word}: {added:?}");
        }
        let has = |word: &str| words.iter().any(|(one, _)| one == word);
        assert!(["slurm", "tensorboard", "mpi"].into_iter().all(has));
        assert!(!["none", "hardware", "description"].into_iter().any(has));
    }
}
