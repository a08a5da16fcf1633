//! `kiln explain`: the purpose of a TODO site, its tests, and a worked answer; the options of an ability.

use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;
use serde::Serialize;

use super::output::{Format, print};
use crate::{
    error::{Error, Result, suggest},
    project::{
        ability::Ability,
        explain::{
            AbilityExplanation, Answer, Code, Explainer, Explanation, Guard, State, Summary,
        },
        record::RECORD_FILE,
        todo::SITES_FILE,
    },
    template::Template,
};

/// Maximum number of messages shown for a test.
const MESSAGES: usize = 4;

/// Arguments of `kiln explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Id of a TODO site, such as `model.architecture`, or of an ability, such as `precision`; if missing,
    /// all are listed
    #[arg(value_name = "ID")]
    pub id: Option<String>,
    /// Folder of the project [default: the current folder if it is a project; otherwise the template]
    #[arg(long, value_name = "PROJECT", value_parser = super::folder::PathParser)]
    pub path: Option<PathBuf>,
    /// Show the answer of this example at a site [default: the most instructive one]
    #[arg(long, value_name = "EXAMPLE", requires = "id")]
    pub example: Option<String>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    pub format: Format,
}

/// Runs `kiln explain`.
///
/// # Errors
/// The site, its answer or the ability does not exist, the folder has no project, or a file cannot be read.
pub(crate) fn run(args: &ExplainArgs) -> Result<ExitCode> {
    let template = Template::embedded()?;
    let here = Path::new(".");
    let project = match &args.path {
        Some(path) => Some(path.as_path()),
        None => Some(here).filter(|here| {
            let files = [SITES_FILE, RECORD_FILE];
            files.iter().any(|file| here.join(file).exists())
        }),
    };
    let explainer = match project {
        Some(root) => Explainer::of_project(&template, root)?,
        None => Explainer::of_template(&template)?,
    };
    let Some(id) = &args.id else {
        let (sites, abilities) = (explainer.summaries(), explainer.abilities());
        match args.format {
            Format::Text => print(&list(&sites, abilities))?,
            Format::Json => print(&json(&entries(&sites, abilities))?)?,
        }
        return Ok(ExitCode::SUCCESS);
    };
    if let Some(ability) = explainer.explain_ability(id)? {
        if let Some(example) = &args.example {
            let error = Error::input(format!("`{id}` is an ability, not a site"));
            let error = error.in_argument("--example", example, 0..example.len(), "not for it");
            return Err(error.help("leave out --example, which chooses an answer at a site"));
        }
        match args.format {
            Format::Text => print(&ability_text(&ability))?,
            Format::Json => print(&json(&Entry::<Summary, _>::Ability(&ability))?)?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut explanation = explainer.explain(id)?;
    if let Some(example) = &args.example {
        put_first(&mut explanation, example)?;
    }
    match args.format {
        Format::Text => print(&text(&explanation))?,
        Format::Json => print(&json(&Entry::<_, Ability>::Site(&explanation))?)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Moves the answer of an example to the front.
fn put_first(explanation: &mut Explanation, example: &str) -> Result<()> {
    let answers = &mut explanation.answers;
    let found = answers.iter().position(|answer| answer.example == example);
    let Some(at) = found else {
        let id = &explanation.id;
        let error = Error::input(format!("no example `{example}` changes `{id}`"));
        let error = error.in_argument("--example", example, 0..example.len(), "has no answer");
        let names: Vec<_> = answers.iter().map(|answer| &*answer.example).collect();
        return Err(match &names[..] {
            [] => error.help("no example changes this site: the default is right for all of them"),
            _ => error.help(suggest(example, names, "examples that change it")),
        });
    };
    answers[..=at].rotate_right(1);
    Ok(())
}

fn json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string_pretty(value)
        .map(|text| text + "\n")
        .map_err(|error| Error::system(format!("cannot write JSON: {error}")))
}

/// A site or an ability, in JSON.
#[derive(Serialize)]
#[serde(rename_all = "lowercase", tag = "kind")]
enum Entry<'e, S, A> {
    Site(&'e S),
    Ability(&'e A),
}

fn entries<'e>(sites: &'e [Summary], abilities: &'e [Ability]) -> Vec<Entry<'e, Summary, Ability>> {
    let sites = sites.iter().map(Entry::Site);
    sites.chain(abilities.iter().map(Entry::Ability)).collect()
}

fn list(sites: &[Summary], abilities: &[Ability]) -> String {
    let ids = sites.iter().map(|site| &site.id);
    let ids = ids.chain(abilities.iter().map(|ability| &ability.id));
    let width = ids.map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    if sites.is_empty() {
        text.push_str("The project's template has no TODO sites.\n");
    }
    for site in sites {
        let state = match &site.state {
            None => "",
            Some(State::Done) => "done  ",
            Some(State::Left { .. }) => "open  ",
        };
        let _ = writeln!(text, "{:width$}  {state}{}", site.id, site.what);
    }
    if !abilities.is_empty() {
        text.push_str("\nAbilities, by options and commands:\n");
    }
    for ability in abilities {
        let _ = writeln!(text, "{:width$}  {}", ability.id, ability.what);
    }
    text.push_str(match (sites, abilities) {
        ([], []) => "",
        (_, []) => "\nDetails of a site: `kiln explain ID`.\n",
        _ => "\nDetails of a site or an ability: `kiln explain ID`.\n",
    });
    text
}

fn ability_text(explanation: &AbilityExplanation) -> String {
    let ability = &explanation.ability;
    let mut text = format!("{}  {}\n  {}\n", ability.id, ability.name, ability.what);
    if !explanation.options.is_empty() {
        text.push_str("\nOptions and commands:\n");
    }
    for option in &explanation.options {
        let _ = writeln!(text, "  {}", option.name);
        let help = option.help.as_deref();
        let help = help.unwrap_or("The sources of this project do not define it.");
        let _ = writeln!(text, "    {help}");
    }
    if !ability.tries.is_empty() {
        text.push_str("\nTry it in a new project:\n");
    }
    for command in &ability.tries {
        let _ = writeln!(text, "  {command}");
    }
    let more = [&ability.site, &ability.example, &ability.guide];
    if more.iter().any(|part| part.is_some()) {
        text.push('\n');
    }
    if let Some(site) = &ability.site {
        let _ = writeln!(text, "In the code: `kiln explain {site}`");
    }
    if let Some(example) = &ability.example {
        let _ = writeln!(
            text,
            "In an example: README.md after `kiln new {example} --example {example}`"
        );
    }
    if let Some(guide) = &ability.guide {
        let _ = writeln!(text, "More: docs/features.md of Kiln, under \"{guide}\"");
    }
    text
}

fn text(explanation: &Explanation) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}  {}", explanation.id, explanation.file);
    let _ = writeln!(text, "  {}", explanation.what);
    if let Some(now) = &explanation.now {
        // The description of the default does not apply to code that replaced it.
        let is_replaced = explanation.state == Some(State::Done) || explanation.current.is_some();
        let title = if is_replaced {
            "In the template"
        } else {
            "Now"
        };
        let _ = writeln!(text, "  {title}: {now}");
    }
    for (title, note) in &explanation.notes {
        let _ = writeln!(text, "  {title}: {note}");
    }
    match &explanation.state {
        None => {}
        Some(State::Done) => text.push_str("  Done: the marker is gone.\n"),
        Some(State::Left { file, line }) => {
            let _ = writeln!(text, "  Open: the marker is at {file}:{line}.");
        }
    }
    if let Some(command) = &explanation.command {
        text.push_str("\nGuarded by:\n");
        for guard in &explanation.tests {
            write_guard(&mut text, guard);
        }
        let _ = writeln!(text, "Run these tests: {command}");
    }
    if let Some(code) = &explanation.default {
        write_code(&mut text, "The template has", code);
    }
    if let Some(code) = &explanation.current {
        write_code(&mut text, "This project has", code);
    }
    write_answers(&mut text, explanation);
    text
}

fn write_guard(text: &mut String, guard: &Guard) {
    let line = guard.line.map_or(String::new(), |line| format!(":{line}"));
    let _ = writeln!(text, "  {}  {}{line}", guard.name, guard.file);
    if guard.line.is_none() {
        text.push_str("    The test is missing: this project deleted or renamed it.\n");
        return;
    }
    let _ = writeln!(text, "    {}", guard.says);
    for message in guard.messages.iter().take(MESSAGES) {
        let _ = writeln!(text, "    - fails with: {message}");
    }
    let more = guard.messages.len().saturating_sub(MESSAGES);
    if more > 0 {
        let _ = writeln!(text, "    - and {more} more");
    }
}

fn write_code(text: &mut String, title: &str, code: &Code) {
    let _ = writeln!(text, "\n{title}, at {}:{}:\n", code.file, code.line);
    for line in code.code.lines() {
        let _ = writeln!(text, "{}", format!("    {line}").trim_end());
    }
}

fn write_answers(text: &mut String, explanation: &Explanation) {
    let Some((first, others)) = explanation.answers.split_first() else {
        if explanation.default.is_some() {
            text.push_str(
                "\nNo example changes this site: the default is right for all of them.\n",
            );
        }
        return;
    };
    let Answer {
        example,
        description,
        code,
    } = first;
    let _ = writeln!(text, "\nA worked answer, from the example `{example}`:");
    let _ = write!(text, "{description}.");
    write_code(text, "It has", code);
    if !others.is_empty() {
        let names: Vec<_> = others.iter().map(|answer| &*answer.example).collect();
        let _ = writeln!(
            text,
            "\nOther answers, with `--example`: {}",
            names.join(", ")
        );
    }
}
