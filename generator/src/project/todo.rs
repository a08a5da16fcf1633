//! The open TODO sites of a project: its `TODO(id)` markers, compared with the list of all sites.

use std::{collections::BTreeMap, fs, ops::Range, path::Path};

use ignore::WalkBuilder;
use serde::Serialize;

use super::{patches, pending, record::Record};
use crate::{
    display::slashed,
    document::{Document, Place},
    error::{Error, Kind, Result},
};

/// The file of a project that lists its TODO sites.
pub const SITES_FILE: &str = "todos.toml";
/// The start of a marker.
const MARKER: &str = "TODO(";
/// Folders in a project that have no sources.
const SKIPPED: [&str; 5] = [".git", "target", "runs", patches::FOLDER, pending::FOLDER];
const SITE_KEYS: &[&str] = &["id", "file", "what", "now", "test"];

/// A TODO site: a place that a new task may have to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Unique id.
    pub id: String,
    /// File of the site in a new project.
    pub file: String,
    /// The task of the site, in one sentence.
    pub what: String,
    /// A description of the default code.
    pub now: String,
    /// The tests of the site.
    pub tests: Vec<String>,
}

/// A marker of an open TODO site.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Todo {
    /// Id of the site.
    pub id: String,
    /// File, relative to the project, with `/` as separator.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// The task of the site, in one sentence.
    pub what: String,
    /// A description of the current code.
    pub now: Option<String>,
    /// Further notes, such as shapes, by title.
    pub notes: BTreeMap<String, String>,
    /// The tests of the site.
    pub tests: Vec<String>,
    /// Whether the template does not define this site.
    pub custom: bool,
}

/// A problem with a marker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// File, relative to the project.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Description of the problem.
    pub message: String,
}

/// The result of a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Scan {
    /// The number of TODO sites of the template.
    pub sites: usize,
    /// The open sites in the order of their list, followed by those that the template does not define.
    pub todos: Vec<Todo>,
    /// Problems with markers.
    pub warnings: Vec<Warning>,
}

impl Scan {
    /// Whether no site is open and no marker has a problem.
    pub fn is_done(&self) -> bool {
        self.todos.is_empty() && self.warnings.is_empty()
    }
}

/// Scans the text files of the project in `root`.
///
/// # Errors
/// `root` has no Kiln project, its `todos.toml` is invalid, or a file cannot be read.
pub fn scan(root: &Path) -> Result<Scan> {
    let sites = read_sites(root)?;
    let mut scan = Scan {
        sites: sites.len(),
        ..Scan::default()
    };
    for (path, file) in files_of(root)? {
        let bytes = fs::read(&path).map_err(|cause| Error::io("read", &path, cause))?;
        if is_text(&bytes) {
            scan_text(&file, &String::from_utf8_lossy(&bytes), &mut scan);
        }
    }
    for todo in &mut scan.todos {
        match sites.iter().find(|site| site.id == todo.id) {
            Some(site) => todo.complete(site),
            None => todo.custom = true,
        }
    }
    let rank = |todo: &Todo| sites.iter().position(|site| site.id == todo.id);
    scan.todos
        .sort_by_key(|todo| rank(todo).unwrap_or(usize::MAX));
    warn_of_duplicates(&mut scan);
    Ok(scan)
}

impl Todo {
    fn complete(&mut self, site: &Site) {
        if self.what.is_empty() {
            self.what.clone_from(&site.what);
        }
        self.now.get_or_insert_with(|| site.now.clone());
        self.tests.clone_from(&site.tests);
    }
}

fn warn_of_duplicates(scan: &mut Scan) {
    let mut first: BTreeMap<&str, &Todo> = BTreeMap::new();
    for todo in &scan.todos {
        if let Some(other) = first.get(todo.id.as_str()) {
            scan.warnings.push(Warning {
                file: todo.file.clone(),
                line: todo.line,
                message: format!(
                    "duplicate marker `{}`, also at {}:{}",
                    todo.id, other.file, other.line
                ),
            });
        } else {
            first.insert(&todo.id, todo);
        }
    }
}

/// Reads the list of TODO sites of the project in `root`.
///
/// # Errors
/// The list is missing, so this is not a Kiln project, or the list is invalid. A project of a
/// template in a Git repository may have no list.
pub fn read_sites(root: &Path) -> Result<Vec<Site>> {
    let path = root.join(SITES_FILE);
    // A template of another kind may have no sites.
    if !path.exists() && Record::read(root).is_ok_and(|record| record.origin.is_some()) {
        return Ok(Vec::new());
    }
    let text = fs::read_to_string(&path).map_err(|cause| match cause.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Error::input(format!(
            "`{}` is not a Kiln project: it has no `{SITES_FILE}`",
            root.display()
        ))
        .help("give the folder of a project that `kiln new` created"),
        _ => Error::io("read", &path, cause),
    })?;
    parse_sites(&path.display().to_string(), &text)
}

/// Parses a list of TODO sites, which messages call `name`.
///
/// # Errors
/// The text is not TOML or not a list of sites.
pub fn parse_sites(name: &str, text: &str) -> Result<Vec<Site>> {
    let document = Document::new(name, text, Kind::Input);
    document.items("site", parse_site, |site| &site.id)
}

fn parse_site(document: &Document<'_>, value: &Place<'_>) -> Result<Site> {
    let table = document.table("site", value)?;
    for key in table.keys() {
        if !SITE_KEYS.contains(&key.get_ref().as_ref()) {
            return Err(document.unknown_key(key, SITE_KEYS));
        }
    }
    let field = |key| {
        table.get(key).ok_or_else(|| {
            let message = format!("a site has no `{key}`");
            let error = document.error_at(value.span(), message, "this site");
            error.help(format!("a site has `{}`", SITE_KEYS.join("`, `")))
        })
    };
    let text = |key| document.string(key, field(key)?);
    Ok(Site {
        id: text("id")?,
        file: text("file")?,
        what: text("what")?,
        now: text("now")?,
        tests: document
            .strings("test", field("test")?)?
            .into_iter()
            .map(toml::Spanned::into_inner)
            .collect(),
    })
}

/// The files of a project, ordered by path, except those that its `.gitignore` excludes.
pub(crate) fn files_of(root: &Path) -> Result<Vec<(std::path::PathBuf, String)>> {
    let walk = WalkBuilder::new(root)
        .hidden(false)
        .parents(false)
        .ignore(false)
        .git_global(false)
        .git_exclude(false)
        .require_git(false)
        .sort_by_file_name(Ord::cmp)
        .filter_entry(|entry| {
            let skipped = SKIPPED.iter().any(|name| entry.file_name() == *name);
            !(skipped && entry.depth() == 1)
        })
        .build();
    let mut files = Vec::new();
    for entry in walk {
        let entry = entry
            .map_err(|error| Error::system(format!("cannot read `{}`: {error}", root.display())))?;
        if entry.file_type().is_some_and(|kind| kind.is_file()) {
            let path = entry.path().strip_prefix(root).unwrap_or(entry.path());
            let file = slashed(path);
            files.push((entry.into_path(), file));
        }
    }
    Ok(files)
}

/// Whether a file is text: it has no zero byte near its start.
fn is_text(bytes: &[u8]) -> bool {
    !bytes[..bytes.len().min(8192)].contains(&0)
}

/// The comment delimiters in a file of this name.
fn leaders(file: &str) -> &'static [&'static str] {
    match file.rsplit(['.', '/']).next().unwrap_or(file) {
        "rs" | "c" | "cpp" | "h" | "js" | "ts" | "json" | "wgsl" | "cu" => &["//"],
        "toml" | "yml" | "yaml" | "sh" | "py" | "gitignore" | "gitattributes" => &["#"],
        "md" | "html" | "svg" | "xml" => &["<!--"],
        "sql" | "lua" => &["--"],
        "ini" | "asm" | "lisp" => &[";"],
        _ => &["//", "#", "<!--", "--", ";"],
    }
}

/// Adds the markers in the text of a file to a scan.
pub fn scan_text(file: &str, text: &str, scan: &mut Scan) {
    if !text.contains(MARKER) {
        return;
    }
    let lines: Vec<_> = text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        if !line.contains(MARKER) {
            continue;
        }
        let found = leaders(file)
            .iter()
            .find_map(|leader| Some((*leader, marker(line, leader)?)));
        let Some((leader, rest)) = found else {
            continue;
        };
        match parse_marker(leader, rest, &lines[at + 1..]) {
            Ok(todo) => scan.todos.push(Todo {
                file: file.to_owned(),
                line: at + 1,
                ..todo
            }),
            Err(message) => scan.warnings.push(Warning {
                file: file.to_owned(),
                line: at + 1,
                message,
            }),
        }
    }
}

/// The text of a file without the marker of site `id` and its notes; `None` if it has no such marker.
pub fn without_marker(file: &str, text: &str, id: &str) -> Option<String> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let marked = marked_lines(file, &lines, id)?;
    Some(
        [&lines[..marked.start], &lines[marked.end..]]
            .concat()
            .concat(),
    )
}

/// The lines of the marker of site `id` and its notes.
pub(crate) fn marked_lines(file: &str, lines: &[&str], id: &str) -> Option<Range<usize>> {
    let (at, leader) = lines.iter().enumerate().find_map(|(at, line)| {
        let leader = leaders(file).iter().find(|leader| {
            let rest = marker(line, leader).and_then(|rest| rest.split_once(')'));
            rest.is_some_and(|(found, _)| found == id)
        })?;
        Some((at, leader))
    })?;
    let notes = lines[at + 1..].iter();
    let notes = notes.take_while(|line| continuation(leader, line).is_some());
    Some(at..at + 1 + notes.count())
}

/// The ids of the markers in a text, in order.
pub(crate) fn marked_sites(file: &str, text: &str) -> Vec<String> {
    let leaders = leaders(file);
    let id = |line: &str| {
        let rest = leaders.iter().find_map(|leader| marker(line, leader))?;
        Some(rest.split_once(')')?.0.to_owned())
    };
    text.lines().filter_map(id).collect()
}

/// The text after `TODO(`, if a comment starts with it.
fn marker<'t>(line: &'t str, leader: &str) -> Option<&'t str> {
    line.match_indices(leader).find_map(|(at, _)| {
        let before = &line[..at];
        let starts = before.is_empty() || before.ends_with(char::is_whitespace);
        let quoted = before.matches('"').count() - before.matches("\\\"").count();
        if !starts || quoted % 2 == 1 {
            return None;
        }
        let comment = comment_text(&line[at..], leader);
        let trimmed = comment.trim_start();
        (trimmed.len() < comment.len()).then(|| trimmed.strip_prefix(MARKER))?
    })
}

/// The text of a comment without its delimiter, such as `//`, `///` or `//!`.
fn comment_text<'t>(comment: &'t str, leader: &str) -> &'t str {
    let text = &comment[leader.len()..];
    if leader == "//" {
        text.strip_prefix(['/', '!']).unwrap_or(text)
    } else {
        text
    }
}

fn parse_marker(leader: &str, rest: &str, following: &[&str]) -> std::result::Result<Todo, String> {
    let (id, text) = rest
        .split_once(')')
        .ok_or_else(|| format!("`{MARKER}` without `)` on the same line"))?;
    let wrong = |c: char| !(c.is_alphanumeric() || matches!(c, '.' | '-' | '_'));
    if id.is_empty() {
        return Err(format!("`{MARKER})` has no id"));
    }
    if let Some(c) = id.chars().find(|c| wrong(*c)) {
        return Err(format!("the id `{id}` contains {c:?}"));
    }
    let text = text.strip_prefix(':').unwrap_or(text);
    let (text, closed) = without_end(leader, text);
    let mut todo = Todo {
        id: id.to_owned(),
        file: String::new(),
        line: 0,
        what: text.trim().to_owned(),
        now: None,
        notes: BTreeMap::new(),
        tests: Vec::new(),
        custom: false,
    };
    if !closed {
        add_notes(leader, following, &mut todo);
    }
    Ok(todo)
}

/// Adds the following lines with deeper indentation to a marker.
fn add_notes(leader: &str, following: &[&str], todo: &mut Todo) {
    let mut title: Option<String> = None;
    for line in following {
        let Some(comment) = continuation(leader, line) else {
            break;
        };
        let (text, closed) = without_end(leader, comment);
        let text = text.trim();
        let (start, text) = match titled(text) {
            Some((new, text)) => {
                title = Some(new.to_owned());
                (true, text)
            }
            None => (false, text),
        };
        let note = match title.as_deref() {
            None => &mut todo.what,
            Some("Now") => todo.now.get_or_insert_default(),
            Some(other) => todo.notes.entry(other.to_owned()).or_default(),
        };
        if !start && !note.is_empty() && !text.is_empty() {
            note.push(' ');
        }
        note.push_str(text);
        if closed {
            break;
        }
    }
}

/// The text of a line that continues a marker.
fn continuation<'t>(leader: &str, line: &'t str) -> Option<&'t str> {
    let line = line.trim_start();
    if leader == "<!--" {
        return Some(line);
    }
    let text = comment_text(line.strip_prefix(leader).map(|_| line)?, leader);
    let deeper = text.len() - text.trim_start().len() >= 2;
    (deeper && !text.trim_start().starts_with(MARKER)).then_some(text)
}

fn without_end<'t>(leader: &str, text: &'t str) -> (&'t str, bool) {
    match (leader == "<!--").then(|| text.split_once("-->")).flatten() {
        Some((text, _)) => (text, true),
        None => (text, false),
    }
}

/// A note `Title: text` whose title is one capitalised word.
fn titled(text: &str) -> Option<(&str, &str)> {
    let (title, rest) = text.split_once(':')?;
    let word = title.chars().all(char::is_alphabetic);
    let capital = title.starts_with(char::is_uppercase);
    (word && capital && (rest.is_empty() || rest.starts_with(' ')))
        .then_some((title, rest.trim_start()))
}
