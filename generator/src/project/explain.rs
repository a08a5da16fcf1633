//! What there is to know of a site: its list, its marker, the tests that guard it, the code that
//! stands there, and the code of the examples that changed it.
//!
//! All of it is read where it stands, so it cannot differ from what it tells about.

use std::{
    cell::OnceCell,
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Component, Path, PathBuf},
};

use serde::Serialize;

use super::{
    overlay::render_example,
    source::{self, Items},
    todo::{self, SITES_FILE, Scan, Site, Todo},
};
use crate::{
    error::{Error, Result, suggest},
    name::Name,
    render::Rendered,
    template::{
        Template,
        answers::Answers,
        example::{Example, names},
    },
};

/// Where the contract tests are, one file a module.
const CONTRACT: &str = "tests/contract";
/// How many lines an answer may have to be the first.
const LONG: usize = 60;
/// The name of the project that the template is rendered for.
const SAMPLE: &str = "my-model";

/// A site in a list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Its unique name.
    pub id: String,
    /// What is to be done.
    pub what: String,
    /// Whether its marker is still in the project, and where; `None` outside of a project.
    pub state: Option<State>,
}

/// How far a site is in a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "is")]
pub enum State {
    /// Its marker is gone.
    Done,
    /// Its marker is there.
    Left {
        /// The file, below the project's folder, with `/` between the parts.
        file: String,
        /// The line, from 1.
        line: usize,
    },
}

/// All about a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Explanation {
    /// Its unique name.
    pub id: String,
    /// The file that it was generated in.
    pub file: String,
    /// What is to be done.
    pub what: String,
    /// What stands there now, in words.
    pub now: Option<String>,
    /// The other notes of the marker, such as shapes, by their title.
    pub notes: BTreeMap<String, String>,
    /// Whether its marker is still in the project, and where; `None` outside of a project.
    pub state: Option<State>,
    /// The tests that guard it.
    pub tests: Vec<Guard>,
    /// The command that runs just these tests, in the project's folder.
    pub command: Option<String>,
    /// What the template has there.
    pub default: Option<Code>,
    /// What the project has there, where that can be found and differs from the template.
    pub current: Option<Code>,
    /// What the examples have there that changed it: first that with the most new lines, as it tells
    /// the most, but long ones last.
    pub answers: Vec<Answer>,
}

/// A test that guards a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Guard {
    /// Its name in the contract tests.
    pub name: String,
    /// Its file, below the project's folder.
    pub file: String,
    /// Its line, from 1; `None` where it is not there.
    pub line: Option<usize>,
    /// What it holds: its documentation, or else the sentence that is its name.
    pub says: String,
    /// What its checks say where they fail.
    pub messages: Vec<String>,
}

/// Code of a site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Code {
    /// The file.
    pub file: String,
    /// The line, from 1, that it starts at.
    pub line: usize,
    /// The items of the site, without its marker.
    pub code: String,
}

/// A worked answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer {
    /// The name of the example.
    pub example: String,
    /// What the example is, in a sentence.
    pub description: String,
    /// What it has at the site.
    #[serde(flatten)]
    pub code: Code,
}

/// Explains the sites of the template, or of a project.
pub struct Explainer<'t> {
    template: &'t Template,
    /// The template with its defaults.
    plain: Rendered<'t>,
    sites: Vec<Site>,
    project: Option<Project>,
    examples: OnceCell<Vec<Filled<'t>>>,
}

/// An example, and the template with its answers before and after it is laid over it.
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
    /// Explains the sites of a template of Kiln.
    ///
    /// # Errors
    /// The template is wrong.
    pub fn of_template(template: &'t Template) -> Result<Self> {
        let plain = rendered(template, None)?;
        let sites = text_in(&plain, SITES_FILE).unwrap_or_default();
        Ok(Self {
            template,
            plain,
            sites: todo::parse_sites(SITES_FILE, &sites)?,
            project: None,
            examples: OnceCell::new(),
        })
    }

    /// Explains the sites of the project in `root`, beside what `template` has there.
    ///
    /// # Errors
    /// `root` holds no project of Kiln, its `todos.toml` is wrong, or a file cannot be read.
    pub fn of_project(template: &'t Template, root: &Path) -> Result<Self> {
        Ok(Self {
            template,
            plain: rendered(template, None)?,
            sites: todo::read_sites(root)?,
            project: Some(Project {
                root: root.to_path_buf(),
                scan: todo::scan(root)?,
            }),
            examples: OnceCell::new(),
        })
    }

    /// The sites, in the order of their list; a project's own markers come last.
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

    /// All about the site `id`.
    ///
    /// # Errors
    /// There is no such site, an example is wrong, or a file cannot be read.
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
        let ids: Vec<_> = summaries.iter().map(|site| site.id.as_str()).collect();
        Error::input(format!("there is no site `{id}`"))
            .in_argument("TODO-ID", id, 0..id.len(), "no site")
            .help(suggest(id, ids, "the sites"))
    }

    /// The markers of the project that are not of the template.
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

    /// The notes of the marker: those of the project, or, where it is gone, of the template.
    fn notes(&self, id: &str, file: &str) -> BTreeMap<String, String> {
        if let Some(todo) = self.todo(id) {
            return todo.notes.clone();
        }
        let text = text_in(&self.plain, file).unwrap_or_default();
        marker(file, &text, id).map_or_else(BTreeMap::new, |(todo, _)| todo.notes)
    }

    /// Where the template has the site.
    fn place(&self, id: &str, file: &str) -> Option<SitePlace> {
        SitePlace::find(id, file, &text_in(&self.plain, file)?)
    }

    /// What the project has at the site: by its marker, or else by the names of the template's items.
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

    /// What the examples have that differs from the template with the same answers.
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

    /// The examples that are projects, which are rendered when the first site asks for them.
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

    /// What a contract test holds, from its source: that of the project where it has one.
    fn guard(&self, test: &str) -> Result<Guard> {
        let (module, name) = test.rsplit_once("::").unwrap_or(("main", test));
        let file = format!("{CONTRACT}/{}.rs", module.replace("::", "/"));
        let text = match &self.project {
            Some(project) => project.read(&file)?,
            None => text_in(&self.plain, &file),
        };
        let text = text.unwrap_or_default();
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
    /// The text of a file below the project's folder; `None` where there is none.
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

/// The items of a site, by their names, so that they are found without its marker as well.
struct SitePlace {
    id: String,
    file: String,
    /// The first is that which the marker is about.
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

    /// What a text has at the site; of a type with all that is implemented for it.
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

/// The items that follow one up to the next marker belong to it, but to a constant only constants. Those
/// that implement a type are found by its name.
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

/// The marker of a site in a text, and its byte.
fn marker(file: &str, text: &str, id: &str) -> Option<(Todo, usize)> {
    let mut scan = Scan::default();
    todo::scan_text(file, text, &mut scan);
    let todo = scan.todos.into_iter().find(|todo| todo.id == id)?;
    let before = text.split_inclusive('\n').take(todo.line - 1);
    let line: usize = before.map(str::len).sum();
    let indent = text[line..].len() - text[line..].trim_start().len();
    Some((todo, line + indent))
}

/// The whole lines of a span, moved to the left.
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

/// Whether two codes differ in comments at most.
fn is_same(one: &str, other: &str) -> bool {
    statements(one).eq(statements(other))
}

/// How many lines of `new` are not in `old`.
fn new_lines(old: &str, new: &str) -> usize {
    let old: BTreeSet<_> = statements(old).collect();
    statements(new).filter(|line| !old.contains(line)).count()
}

/// The lines of a code without its comments.
fn statements(code: &str) -> impl Iterator<Item = &str> {
    let lines = code.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("//"));
    lines.map(|line| line.split_once(" // ").map_or(line, |(line, _)| line))
}

/// The line of `fn name`, from 1.
fn line_of_function(text: &str, name: &str) -> usize {
    let head = format!("fn {name}(");
    let line = text.lines().position(|line| line.contains(&head));
    line.map_or(1, |line| line + 1)
}

/// The sentence that the name of a test is.
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

/// The template with its defaults, or with the answers of an example, and then with its files or
/// without.
fn rendered<'t>(template: &'t Template, example: Option<(&Example, bool)>) -> Result<Rendered<'t>> {
    let values = example.map(|(example, _)| example.values().clone());
    let name = Name::parse(SAMPLE)?;
    let answers = Answers::complete(template, name, values.unwrap_or_default())?;
    let example = example.and_then(|(example, filled)| filled.then_some(example));
    render_example(template, example, &answers, Path::new(SAMPLE))
}

/// The ids of the sites of the template, with what is to be done there.
///
/// # Errors
/// The template is wrong.
pub fn site_ids(template: &Template) -> Result<Vec<(String, String)>> {
    let sites = Explainer::of_template(template)?.sites.into_iter();
    Ok(sites.map(|site| (site.id, site.what)).collect())
}
