//! Explanations of TODO sites: the entry in the list of sites, the marker, the tests, the current
//! code, and the code of the examples that change the site. Explanations of abilities: the entry in
//! the list of abilities, and the help of their options.
//!
//! Everything is read from the sources, so that it is always up to date.

use std::{
    cell::OnceCell,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Component, Path, PathBuf},
};

use serde::Serialize;

use super::{
    ability::{
        ABILITIES_FILE, Ability, OPTION_SOURCES, documentation, parse_abilities, read_abilities,
    },
    overlay::render_example,
    source::{self, Items},
    todo::{self, SITES_FILE, Scan, Site, Todo},
};
use crate::{
    error::{Error, Result, similar, suggest},
    name::Name,
    render::Rendered,
    template::{
        Template,
        answers::Answers,
        example::{Example, names},
    },
};

/// The folder of the contract tests, with one file per module.
const CONTRACT: &str = "tests/contract";
/// Maximum number of lines of an answer that may come first.
const LONG: usize = 60;
/// The project name for rendering the template.
const SAMPLE: &str = "my-model";

/// A TODO site in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Unique id.
    pub id: String,
    /// The task of the site, in one sentence.
    pub what: String,
    /// The state in the project; `None` outside a project.
    pub state: Option<State>,
}

/// The state of a TODO site in a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "is")]
pub enum State {
    /// The marker has been removed.
    Done,
    /// The marker is present.
    Left {
        /// File of the marker, relative to the project, with `/` as separator.
        file: String,
        /// Line of the marker, from 1.
        line: usize,
    },
}

/// The explanation of a TODO site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Unique id.
    pub id: String,
    /// File of the site in a new project.
    pub file: String,
    /// The task of the site, in one sentence.
    pub what: String,
    /// A description of the default code.
    pub now: Option<String>,
    /// Further notes of the marker, such as shapes, by title.
    pub notes: BTreeMap<String, String>,
    /// The state in the project; `None` outside a project.
    pub state: Option<State>,
    /// The tests of the site.
    pub tests: Vec<Guard>,
    /// The command that runs these tests in the project's folder.
    pub command: Option<String>,
    /// The template's code.
    pub default: Option<Code>,
    /// The project's code, if it is found and differs from the template's.
    pub current: Option<Code>,
    /// The code of the examples that change the site. The first has the most new lines, as it is
    /// the most instructive, but long answers come last.
    pub answers: Vec<Answer>,
}

/// The explanation of an ability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AbilityExplanation {
    /// The entry in the list of abilities.
    #[serde(flatten)]
    pub ability: Ability,
    /// The help of its options and commands.
    pub options: Vec<OptionHelp>,
}

/// An option or command of an ability.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OptionHelp {
    /// The name, such as `--ema` or `find-lr`.
    pub name: String,
    /// The help; `None` if the sources do not define it.
    pub help: Option<String>,
}

/// A test of a TODO site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Guard {
    /// Name of the test function, with its module.
    pub name: String,
    /// File of the test, relative to the project.
    pub file: String,
    /// Line of the test, from 1; `None` if the test is missing.
    pub line: Option<usize>,
    /// The subject of the test: its documentation, or its name as a sentence.
    pub says: String,
    /// The failure messages of its checks.
    pub messages: Vec<String>,
}

/// The code of a TODO site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Code {
    /// The file.
    pub file: String,
    /// The first line, counted from 1.
    pub line: usize,
    /// The items of the site, without its marker.
    pub code: String,
}

/// A worked answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// Name of the example.
    pub example: String,
    /// Description of the example, in one sentence.
    pub description: String,
    /// The example's code.
    #[serde(flatten)]
    pub code: Code,
}

/// Explains the TODO sites and abilities of the template or of a project.
pub struct Explainer<'t> {
    template: &'t Template,
    /// The template with its defaults.
    plain: Rendered<'t>,
    sites: Vec<Site>,
    abilities: Vec<Ability>,
    project: Option<Project>,
    examples: OnceCell<Vec<Filled<'t>>>,
}

/// An example, with the template rendered before and after its overlay.
struct Filled<'t> {
    example: Example,
    before: Rendered<'t>,
    after: Rendered<'t>,
}

struct Project {
    root: PathBuf,
    scan: Scan,
}

impl<'t> Explainer<'t> {
    /// Explains the TODO sites and abilities of a template.
    ///
    /// # Errors
    /// The template is invalid.
    pub fn of_template(template: &'t Template) -> Result<Self> {
        let plain = rendered(template, None)?;
        let sites = text_in(&plain, SITES_FILE).unwrap_or_default();
        let abilities = text_in(&plain, ABILITIES_FILE).unwrap_or_default();
        Ok(Self {
            template,
            plain,
            sites: todo::parse_sites(SITES_FILE, &sites)?,
            abilities: parse_abilities(ABILITIES_FILE, &abilities)?,
            project: None,
            examples: OnceCell::new(),
        })
    }

    /// Explains the TODO sites and abilities of the project in `root`, compared with `template`.
    ///
    /// # Errors
    /// `root` has no Kiln project, its `todos.toml` or `abilities.toml` is invalid, or a file cannot be
    /// read.
    pub fn of_project(template: &'t Template, root: &Path) -> Result<Self> {
        Ok(Self {
            template,
            plain: rendered(template, None)?,
            sites: todo::read_sites(root)?,
            abilities: read_abilities(root)?,
            project: Some(Project {
                root: root.to_path_buf(),
                scan: todo::scan(root)?,
            }),
            examples: OnceCell::new(),
        })
    }

    /// The TODO sites in the order of their list, followed by markers that the template does not define.
    pub fn summaries(&self) -> Vec<Summary> {
        let listed = self.sites.iter().map(|site| Summary {
            id: site.id.clone(),
            what: site.what.clone(),
            state: self.state(&site.id),
        });
        let own = self.own().map(|todo| Summary {
            id: todo.id.clone(),
            what: todo.what.clone(),
            state: self.state(&todo.id),
        });
        listed.chain(own).collect()
    }

    /// The abilities in the order of their list.
    pub fn abilities(&self) -> &[Ability] {
        &self.abilities
    }

    /// The explanation of the ability with the id, option or command `id`; `None` if there is none, or a
    /// site has the id.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn explain_ability(&self, id: &str) -> Result<Option<AbilityExplanation>> {
        let is_site = self.summaries().iter().any(|site| site.id == id);
        let by_id = self.abilities.iter().find(|ability| ability.id == id);
        let mut by_use = self.abilities.iter().filter(|ability| ability.has(id));
        let ability = by_id.or_else(|| by_use.next());
        let Some(ability) = ability.filter(|_| !is_site) else {
            return Ok(None);
        };
        let mut sources = Vec::new();
        for file in OPTION_SOURCES {
            sources.extend(self.text(file)?);
        }
        let options = ability.uses.iter().map(|name| OptionHelp {
            name: name.clone(),
            help: sources
                .iter()
                .find_map(|source| documentation(source, name)),
        });
        Ok(Some(AbilityExplanation {
            ability: ability.clone(),
            options: options.collect(),
        }))
    }

    /// The text of a file of the project or else of the template.
    fn text(&self, file: &str) -> Result<Option<String>> {
        match &self.project {
            Some(project) => project.read(file),
            None => Ok(text_in(&self.plain, file)),
        }
    }

    /// The explanation of the site `id`.
    ///
    /// # Errors
    /// The site does not exist, an example is invalid, or a file cannot be read.
    pub fn explain(&self, id: &str) -> Result<Explanation> {
        let site = self.sites.iter().find(|site| site.id == id);
        let own = self.own().find(|todo| todo.id == id);
        let (file, what, now, tests) = match (site, own) {
            (Some(site), _) => (&site.file, &site.what, Some(&site.now), &*site.tests),
            (None, Some(todo)) => (&todo.file, &todo.what, todo.now.as_ref(), &[][..]),
            (None, None) => return Err(self.unknown(id)),
        };
        let place = self.place(id, file);
        let default = place.as_ref().and_then(|place| place.code(&self.plain));
        let current = self.current(id, file, place.as_ref())?;
        let same = |code: &Code| {
            let default = default.as_ref();
            default.is_some_and(|default| is_same(&default.code, &code.code))
        };
        Ok(Explanation {
            id: id.to_owned(),
            file: file.clone(),
            what: what.clone(),
            now: now.cloned(),
            notes: self.notes(id, file),
            state: self.state(id),
            tests: tests
                .iter()
                .map(|test| self.guard(test))
                .collect::<Result<_>>()?,
            command: (!tests.is_empty())
                .then(|| format!("cargo test --test contract -- --exact {}", tests.join(" "))),
            current: current.filter(|code| !same(code)),
            answers: self.answers(place.as_ref())?,
            default,
        })
    }

    fn unknown(&self, id: &str) -> Error {
        let summaries = self.summaries();
        let sites = summaries.iter().map(|site| site.id.as_str());
        let error = |one| {
            Error::input(format!("there is no {one} `{id}`")).in_argument(
                "ID",
                id,
                0..id.len(),
                &format!("no {one}"),
            )
        };
        if self.abilities.is_empty() {
            return error("site").help(suggest(id, sites.collect::<Vec<_>>(), "the sites"));
        }
        let abilities = self.abilities.iter().map(|ability| ability.id.as_str());
        let near = similar(id, sites.chain(abilities).collect::<Vec<_>>());
        let near = near.map_or(String::new(), |near| format!("did you mean `{near}`? "));
        let all = "`kiln explain` lists the sites and abilities";
        error("site or ability").help(format!("{near}{all}"))
    }

    /// The markers of the project that the template does not define.
    fn own(&self) -> impl Iterator<Item = &Todo> {
        let todos = self.project.iter().flat_map(|project| &project.scan.todos);
        todos.filter(|todo| todo.custom)
    }

    fn todo(&self, id: &str) -> Option<&Todo> {
        let todos = &self.project.as_ref()?.scan.todos;
        todos.iter().find(|todo| todo.id == id)
    }

    fn state(&self, id: &str) -> Option<State> {
        self.project.as_ref()?;
        Some(self.todo(id).map_or(State::Done, |todo| State::Left {
            file: todo.file.clone(),
            line: todo.line,
        }))
    }

    /// The notes of the project's marker or, if that was removed, of the template's.
    fn notes(&self, id: &str, file: &str) -> BTreeMap<String, String> {
        if let Some(todo) = self.todo(id) {
            return todo.notes.clone();
        }
        let text = text_in(&self.plain, file).unwrap_or_default();
        marker(file, &text, id).map_or_else(BTreeMap::new, |(todo, _)| todo.notes)
    }

    /// The location of the site in the template.
    fn place(&self, id: &str, file: &str) -> Option<SitePlace> {
        SitePlace::find(id, file, &text_in(&self.plain, file)?)
    }

    /// The project's code of the site, found by its marker or by the names of the template's items.
    fn current(&self, id: &str, file: &str, place: Option<&SitePlace>) -> Result<Option<Code>> {
        let Some(project) = &self.project else {
            return Ok(None);
        };
        let file = self.todo(id).map_or(file, |todo| &todo.file);
        let Some(text) = project.read(file)? else {
            return Ok(None);
        };
        let marked = SitePlace::find(id, file, &text);
        let place = marked.as_ref().or(place);
        Ok(place.and_then(|place| place.code_in(&text)))
    }

    /// The code of each example that differs from the template with the same answers.
    fn answers(&self, place: Option<&SitePlace>) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        let Some(place) = place else {
            return Ok(Vec::new());
        };
        for filled in self.examples()? {
            let example = &filled.example;
            let (before, after) = (place.code(&filled.before), place.code(&filled.after));
            if let (Some(before), Some(code)) = (before, after)
                && !is_same(&before.code, &code.code)
            {
                let new = new_lines(&before.code, &code.code);
                let answer = Answer {
                    example: example.name().to_owned(),
                    description: example.description(),
                    code,
                };
                answers.push((new, answer));
            }
        }
        answers.sort_by_key(|(new, answer)| {
            let long = answer.code.code.lines().count() > LONG;
            (long, Reverse(*new))
        });
        Ok(answers.into_iter().map(|(_, answer)| answer).collect())
    }

    /// The examples that are projects, rendered on first use.
    fn examples(&self) -> Result<&[Filled<'t>]> {
        if let Some(examples) = self.examples.get() {
            return Ok(examples);
        }
        let mut examples = Vec::new();
        for name in names() {
            let example = Example::embedded(self.template, name)?;
            if !example.is_template() {
                examples.push(Filled {
                    before: rendered(self.template, Some((&example, false)))?,
                    after: rendered(self.template, Some((&example, true)))?,
                    example,
                });
            }
        }
        Ok(self.examples.get_or_init(|| examples))
    }

    /// The description of a contract test, from its source in the project or else in the template.
    fn guard(&self, test: &str) -> Result<Guard> {
        let (module, name) = test.rsplit_once("::").unwrap_or(("main", test));
        let file = format!("{CONTRACT}/{}.rs", module.replace("::", "/"));
        let text = self.text(&file)?.unwrap_or_default();
        let items = Items::parse(&text).unwrap_or_default();
        let function = items.function(name);
        let doc = function.map(|function| function.doc.join(" "));
        Ok(Guard {
            name: test.to_owned(),
            line: function.map(|_| line_of_function(&text, name)),
            file,
            says: doc
                .map(|doc| doc.trim().to_owned())
                .filter(|doc| !doc.is_empty())
                .unwrap_or_else(|| sentence(name)),
            messages: items.messages(name),
        })
    }
}

impl Project {
    /// The text of a file of the project; `None` if it is missing.
    fn read(&self, file: &str) -> Result<Option<String>> {
        let inside = |part| matches!(part, Component::Normal(_));
        if !Path::new(file).components().all(inside) {
            return Ok(None);
        }
        let path = self.root.join(file);
        match fs::read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(cause)
                if matches!(
                    cause.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) =>
            {
                Ok(None)
            }
            Err(cause) => Err(Error::io("read", &path, cause)),
        }
    }
}

/// The items of a site by name, which identify the site without its marker.
struct SitePlace {
    id: String,
    file: String,
    /// The first item is the one below the marker.
    items: Vec<source::Path>,
}

impl SitePlace {
    fn find(id: &str, file: &str, text: &str) -> Option<Self> {
        let (_, at) = marker(file, text, id)?;
        let items = Items::parse(text)?;
        let first = items.about(at)?;
        let around = items.get(&first)?.span.contains(&at);
        let mut paths = vec![first];
        if !around {
            paths.extend(siblings(&items, text, &paths[0]));
        }
        Some(Self {
            id: id.to_owned(),
            file: file.to_owned(),
            items: paths,
        })
    }

    fn code(&self, rendered: &Rendered<'_>) -> Option<Code> {
        self.code_in(&text_in(rendered, &self.file)?)
    }

    /// The code of the site in a text; for a type, including its `impl` blocks.
    fn code_in(&self, text: &str) -> Option<Code> {
        let items = Items::parse(text)?;
        let found = self.items.iter().filter_map(|path| items.get(path));
        let mut spans: Vec<_> = found.map(|item| item.span.clone()).collect();
        for path in &self.items {
            if let [("struct" | "enum", name)] = &path[..] {
                let implementations = items.0.iter().filter(|item| item.implements(name));
                spans.extend(implementations.map(|item| item.span.clone()));
            }
        }
        spans.sort_by_key(|span| span.start);
        spans.dedup();
        let code = spans.iter().map(|span| lines(text, span));
        let code = code.collect::<Vec<_>>().join("\n\n");
        Some(Code {
            file: self.file.clone(),
            line: text[..spans.first()?.start].matches('\n').count() + 1,
            code: todo::without_marker(&self.file, &code, &self.id).unwrap_or(code),
        })
    }
}

/// The items that belong to the same marker: those up to the next marker, but after a constant only
/// constants. The `impl` blocks of a type are found by its name.
fn siblings(items: &Items, text: &str, path: &source::Path) -> Vec<source::Path> {
    let [(keyword, name)] = &path[..] else {
        return Vec::new();
    };
    let is_first = |item: &source::Item| item.keyword == *keyword && item.name == *name;
    let Some(first) = items.0.iter().position(is_first) else {
        return Vec::new();
    };
    let pairs = items.0[first..].windows(2);
    let follows = pairs.take_while(|pair| {
        let until = &text[pair[0].span.end..pair[1].span.end];
        let belongs = *keyword != "const" || pair[1].keyword == "const";
        belongs && !until.contains("TODO(")
    });
    follows
        .filter(|pair| pair[1].keyword != "impl")
        .map(|pair| vec![(pair[1].keyword, pair[1].name.clone())])
        .collect()
}

/// The marker of a site in a text, and its byte offset.
fn marker(file: &str, text: &str, id: &str) -> Option<(Todo, usize)> {
    let mut scan = Scan::default();
    todo::scan_text(file, text, &mut scan);
    let todo = scan.todos.into_iter().find(|todo| todo.id == id)?;
    let before = text.split_inclusive('\n').take(todo.line - 1);
    let line: usize = before.map(str::len).sum();
    let indent = text[line..].len() - text[line..].trim_start().len();
    Some((todo, line + indent))
}

/// The whole lines of a span, with common indentation removed.
fn lines(text: &str, span: &std::ops::Range<usize>) -> String {
    let start = text[..span.start].rfind('\n').map_or(0, |at| at + 1);
    let lines: Vec<_> = text[start..span.end].lines().collect();
    let indents = lines.iter().filter(|line| !line.trim().is_empty());
    let indent = indents
        .map(|line| line.len() - line.trim_start_matches(' ').len())
        .min();
    let moved = lines.iter().map(|line| {
        let line = line.get(indent.unwrap_or(0)..).unwrap_or("");
        line.trim_end()
    });
    moved.collect::<Vec<_>>().join("\n")
}

/// Whether two pieces of code are equal except for comments.
fn is_same(one: &str, other: &str) -> bool {
    statements(one).eq(statements(other))
}

/// The number of lines of `new` that are not in `old`.
fn new_lines(old: &str, new: &str) -> usize {
    let old: BTreeSet<_> = statements(old).collect();
    statements(new).filter(|line| !old.contains(line)).count()
}

/// The lines of code without comments.
fn statements(code: &str) -> impl Iterator<Item = &str> {
    let lines = code.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.map(|line| line.split_once(" // ").map_or(line, |(line, _)| line))
}

/// The line of `fn name`, counted from 1.
fn line_of_function(text: &str, name: &str) -> usize {
    let head = format!("fn {name}(");
    let line = text.lines().position(|line| line.contains(&head));
    line.map_or(1, |line| line + 1)
}

/// The name of a test as a sentence.
fn sentence(name: &str) -> String {
    let words = name.replace('_', " ");
    let mut rest = words.chars();
    let first: String = rest
        .next()
        .into_iter()
        .flat_map(char::to_uppercase)
        .collect();
    format!("{first}{}.", rest.as_str())
}

fn text_in(rendered: &Rendered<'_>, file: &str) -> Option<String> {
    let bytes = rendered.get(file)?;
    Some(String::from_utf8_lossy(bytes).into_owned())
}

/// The template with its defaults, or with the answers of an example and optionally its files.
fn rendered<'t>(template: &'t Template, example: Option<(&Example, bool)>) -> Result<Rendered<'t>> {
    let values = example.map(|(example, _)| example.values().clone());
    let name = Name::parse(SAMPLE)?;
    let answers = Answers::complete(template, name, values.unwrap_or_default())?;
    let example = example.and_then(|(example, filled)| filled.then_some(example));
    render_example(template, example, &answers, Path::new(SAMPLE))
}

/// The ids of the template's abilities, and what they do.
///
/// # Errors
/// The template is invalid.
pub fn ability_ids(template: &Template) -> Result<Vec<(String, String)>> {
    let abilities = Explainer::of_template(template)?.abilities.into_iter();
    let ids = abilities.map(|ability| (ability.id, ability.what));
    Ok(ids.collect())
}

/// The ids and tasks of the template's TODO sites.
///
/// # Errors
/// The template is invalid.
pub fn site_ids(template: &Template) -> Result<Vec<(String, String)>> {
    let sites = Explainer::of_template(template)?.sites.into_iter();
    Ok(sites.map(|site| (site.id, site.what)).collect())
}
