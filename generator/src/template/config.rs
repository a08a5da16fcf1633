//! Parsing of `cargo-generate.toml`: the options, and the rules that select files to render, copy or ignore.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::Range,
    path::Path,
};

use ignore::gitignore::{Gitignore, GitignoreBuilder};
use semver::{Version, VersionReq};
use toml::{Spanned, de::DeTable};

use super::{
    hooks::{self, Hook},
    option::{BUILT_IN, Choice, OptionKind, TemplateOption, Value},
};
use crate::{
    document::{Document, Place},
    error::{Error, Kind, Result, suggest},
};

/// The configuration file of a template.
pub const CONFIG_FILE: &str = "cargo-generate.toml";

const SECTIONS: &[&str] = &["template", "placeholders", "conditional", "hooks"];
const TEMPLATE_KEYS: &[&str] = &[
    "cargo_generate_version",
    "include",
    "exclude",
    "ignore",
    "fmt",
    "vcs",
    "init",
    "sub_templates",
];
const RULE_KEYS: &[&str] = &["include", "exclude", "ignore", "placeholders"];
const OPTION_KEYS: &[&str] = &["type", "prompt", "default", "choices", "regex", "help"];
const VCS: &[&str] = &["None", "Git"];
/// The version of cargo-generate whose rules Kiln implements.
const CARGO_GENERATE: Version = Version::new(0, 26, 0);
const CHOICE_KEYS: &[&str] = &["value", "label"];

/// File patterns with their spans.
type Patterns = Vec<Spanned<String>>;

/// The version control of a new project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vcs {
    /// `git init`, unless the project lies in a repository already.
    Git,
    /// No version control.
    None,
}

/// The patterns of files to render, to copy and to ignore.
#[derive(Debug, Clone, Default)]
pub(crate) struct Rules {
    pub include: Option<Patterns>,
    pub exclude: Option<Patterns>,
    pub ignore: Patterns,
}

impl Rules {
    /// Appends other rules.
    pub fn merge(&mut self, more: &Rules) {
        for (mine, theirs) in [
            (&mut self.include, &more.include),
            (&mut self.exclude, &more.exclude),
        ] {
            if let Some(theirs) = theirs {
                mine.get_or_insert_default().extend(theirs.iter().cloned());
            }
        }
        self.ignore.extend(more.ignore.iter().cloned());
    }
}

/// Rules and options that apply if a Rhai expression is true.
#[derive(Debug)]
pub(crate) struct Conditional {
    pub expression: Spanned<String>,
    pub rules: Rules,
    pub options: Vec<TemplateOption>,
}

/// A parsed `cargo-generate.toml`.
#[derive(Debug)]
pub(crate) struct Config {
    pub options: Vec<TemplateOption>,
    pub rules: Rules,
    pub conditionals: Vec<Conditional>,
    /// The version control of new projects.
    pub vcs: Option<Vcs>,
    /// Whether Rust files are formatted, which is cargo-generate's default.
    pub formats: bool,
    /// The scripts that cargo-generate would run.
    pub hooks: Vec<Hook>,
    /// Why the template is refused, as far as this file tells.
    pub faults: Vec<Error>,
    /// Whether all options and conditions are valid, so that files can be checked against them.
    pub whole: bool,
    /// The name of the file in messages.
    pub name: String,
    text: String,
}

impl Config {
    /// Parses the configuration `text`, which messages call `name`.
    pub fn parse(name: &str, text: &str) -> Result<Self> {
        let document = Document::new(name, text, Kind::Template);
        let reader = Reader {
            document,
            faults: RefCell::default(),
            whole: Cell::new(true),
        };
        let table = document.parse()?;
        let mut config = Self {
            options: Vec::new(),
            rules: Rules::default(),
            conditionals: Vec::new(),
            vcs: None,
            formats: true,
            hooks: Vec::new(),
            faults: Vec::new(),
            whole: true,
            name: name.to_owned(),
            text: text.to_owned(),
        };
        let mut formats_anyway = false;
        for (key, value) in &table {
            match key.get_ref().as_ref() {
                "template" => {
                    let read = reader.template(value, &mut config);
                    reader.keep(read);
                }
                "placeholders" => {
                    config.options = reader.all(reader.options(value));
                }
                "conditional" => {
                    config.conditionals = reader.all(reader.conditionals(value));
                }
                "hooks" => {
                    let read = hooks::read(&document, value);
                    (config.hooks, formats_anyway) = reader.keep(read).unwrap_or_default();
                }
                _ => reader.fault(document.unknown_key(key, SECTIONS)),
            }
        }
        config.formats |= formats_anyway;
        config.faults = reader.faults.take();
        config.whole = reader.whole.get();
        Ok(config)
    }

    /// Every option, also those that only apply under a condition.
    pub fn all_options(&self) -> impl Iterator<Item = &TemplateOption> {
        let conditional = self.conditionals.iter().flat_map(|one| &one.options);
        self.options.iter().chain(conditional)
    }

    /// The options that only apply under a condition, each with its condition.
    pub fn conditional_options(&self) -> impl Iterator<Item = (&str, &TemplateOption)> {
        self.conditionals.iter().flat_map(|one| {
            let expression = one.expression.get_ref().as_str();
            one.options.iter().map(move |option| (expression, option))
        })
    }

    /// An error that points at `span` in the file.
    pub fn error_at(&self, span: Range<usize>, message: String, label: &str) -> Error {
        Error::template(message).at(&self.name, &self.text, span, label)
    }

    /// The span in the file of `expression[at..]`, as precisely as escapes allow.
    pub fn inside(&self, expression: &Spanned<String>, at: usize) -> Range<usize> {
        inside(&self.text, expression.get_ref(), expression.span(), at)
    }

    /// Errors of the regular expressions. Embedded templates skip this check, as it would
    /// take a large part of the time of `kiln new`.
    pub fn wrong_regexes(&self) -> impl Iterator<Item = Error> {
        self.all_options()
            .filter_map(|option| self.wrong_regex(option))
    }

    /// Error of the regular expression of an option.
    pub fn wrong_regex(&self, option: &TemplateOption) -> Option<Error> {
        let OptionKind::Text { regex: Some(regex) } = &option.kind else {
            return None;
        };
        let error = regex_syntax::parse(regex).err()?;
        let (why, at) = match &error {
            regex_syntax::Error::Parse(error) => {
                (error.kind().to_string(), error.span().start.offset)
            }
            regex_syntax::Error::Translate(error) => {
                (error.kind().to_string(), error.span().start.offset)
            }
            other => (other.to_string(), 0),
        };
        let span = option.regex_span.clone().unwrap_or(option.span.clone());
        let span = inside(&self.text, regex, span, at);
        let message = format!("the regex of `{}` is invalid", option.name);
        let error = self.error_at(span, message, &why);
        Some(error.help("use the syntax of the crate `regex`: https://docs.rs/regex"))
    }

    /// A matcher of the files to render.
    pub fn matcher(&self, rules: &Rules) -> Result<Matcher> {
        Ok(match (&rules.include, &rules.exclude) {
            (Some(patterns), _) => Matcher::Include(self.gitignore(patterns)?.into()),
            (None, Some(patterns)) => Matcher::Exclude(self.gitignore(patterns)?.into()),
            (None, None) => Matcher::All,
        })
    }

    /// The prefix of template paths in messages.
    pub fn root(&self) -> &str {
        self.name.strip_suffix(CONFIG_FILE).unwrap_or("")
    }

    /// The path that an entry of `ignore` refers to, with `/` as separator.
    pub fn ignored_path(&self, entry: &Spanned<String>) -> Result<String> {
        let mut parts = Vec::new();
        for part in entry.get_ref().split('/') {
            match part {
                "" | "." => {}
                ".." => parts.push(".."),
                part => parts.push(part),
            }
        }
        let escapes =
            Path::new(entry.get_ref()).is_absolute() || parts.is_empty() || parts.contains(&"..");
        if escapes {
            return Err(self
                .error_at(
                    entry.span(),
                    format!(
                        "`ignore` refers to a path outside the template: `{}`",
                        entry.get_ref()
                    ),
                    "outside the template's folder",
                )
                .help("give a path inside the template's folder"));
        }
        Ok(parts.join("/"))
    }

    /// The unconditional rules, followed by those of each condition.
    pub fn all_rules(&self) -> impl Iterator<Item = &Rules> {
        let conditional = self.conditionals.iter().map(|one| &one.rules);
        std::iter::once(&self.rules).chain(conditional)
    }

    /// A matcher of `.gitignore` patterns.
    pub fn gitignore(&self, patterns: &[Spanned<String>]) -> Result<Gitignore> {
        // No relative path starts with this root.
        let mut builder = GitignoreBuilder::new("/template");
        let bad = |pattern: &Spanned<String>, error: ignore::Error| {
            self.error_at(
                pattern.span(),
                format!("`{}` is not a valid pattern: {error}", pattern.get_ref()),
                "here",
            )
            .help("use the pattern syntax of `.gitignore`")
        };
        for pattern in patterns {
            builder
                .add_line(None, pattern.get_ref())
                .map_err(|error| bad(pattern, error))?;
        }
        builder.build().map_err(|error| bad(&patterns[0], error))
    }
}

/// Decides which files are rendered.
pub(crate) enum Matcher {
    All,
    Include(FilePatterns),
    Exclude(FilePatterns),
}

impl Matcher {
    /// Whether the file at `path` is rendered; otherwise it is copied.
    pub fn renders(&self, path: &str) -> bool {
        match self {
            Matcher::All => true,
            Matcher::Include(patterns) => patterns.match_file(path),
            Matcher::Exclude(patterns) => !patterns.match_file(path),
        }
    }
}

/// Patterns, and the folders that they are known to match or not: files of a folder share the answer.
pub(crate) struct FilePatterns {
    patterns: Gitignore,
    folders: RefCell<BTreeMap<String, bool>>,
}

impl From<Gitignore> for FilePatterns {
    fn from(patterns: Gitignore) -> Self {
        Self {
            patterns,
            folders: RefCell::default(),
        }
    }
}

impl FilePatterns {
    /// As [`matches`].
    fn match_file(&self, path: &str) -> bool {
        let found = self.patterns.matched(path, false);
        if !found.is_none() {
            return found.is_ignore();
        }
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        if let Some(known) = self.folders.borrow().get(folder) {
            return *known;
        }
        let found = self.patterns.matched_path_or_any_parents(folder, true);
        let mut folders = self.folders.borrow_mut();
        folders.insert(folder.to_owned(), found.is_ignore());
        found.is_ignore()
    }
}

/// True if `patterns` match the file at `path` or one of its parent folders.
pub(crate) fn matches(patterns: &Gitignore, path: &str) -> bool {
    patterns
        .matched_path_or_any_parents(path, false)
        .is_ignore()
}

/// True if `path` is in `ignored` or below an ignored folder.
pub(crate) fn is_ignored(path: &str, ignored: &[String]) -> bool {
    ignored.iter().any(|one| one == path)
        || parents(path).any(|parent| ignored.iter().any(|one| one == parent))
}

/// The parent folders of `path`, innermost first.
pub(crate) fn parents(path: &str) -> impl Iterator<Item = &str> {
    path.rmatch_indices('/').map(|(at, _)| &path[..at])
}

/// The span of `value[at..]` in a text that has `value` at `span`, if it is written without escapes.
fn inside(text: &str, value: &str, span: Range<usize>, at: usize) -> Range<usize> {
    let raw = &text[span.clone()];
    match raw.find(value) {
        Some(quote) if raw.is_char_boundary(quote + at) => {
            let start = span.start + quote + at;
            start..span.end.saturating_sub(quote).max(start)
        }
        _ => span,
    }
}

struct Reader<'a> {
    document: Document<'a>,
    /// The errors so far: all are reported at once.
    faults: RefCell<Vec<Error>>,
    /// True if no option or condition is left out because of an error.
    whole: Cell<bool>,
}

impl Reader<'_> {
    fn fault(&self, error: Error) {
        self.faults.borrow_mut().push(error);
    }

    /// The value of a result, whose error is kept.
    fn keep<T>(&self, result: Result<T>) -> Option<T> {
        result.map_err(|error| self.fault(error)).ok()
    }

    /// The values of results, whose errors are kept.
    fn all<T>(&self, results: Result<Vec<Result<T>>>) -> Vec<T> {
        let results = self.keep(results);
        let before = self.faults.borrow().len();
        let failed = results.is_none();
        let values = results.into_iter().flatten();
        let values: Vec<T> = values.filter_map(|one| self.keep(one)).collect();
        if failed || self.faults.borrow().len() > before {
            self.whole.set(false);
        }
        values
    }

    fn unsupported(&self, key: &Spanned<impl AsRef<str>>, message: &str) -> Error {
        self.document
            .error_at(key.span(), message, "not supported")
            .help("use options, `include`, `exclude`, `ignore` and `[conditional]` rules")
    }

    /// Reads `[template]`.
    fn template(&self, value: &Place<'_>, config: &mut Config) -> Result<()> {
        for (key, value) in self.document.table("template", value)? {
            let read = self.template_key(key, value, config);
            self.keep(read);
        }
        Ok(())
    }

    /// Reads a key of `[template]`.
    fn template_key(
        &self,
        key: &Spanned<impl AsRef<str>>,
        value: &Place<'_>,
        config: &mut Config,
    ) -> Result<()> {
        let name = key.get_ref().as_ref();
        let rules = &mut config.rules;
        match name {
            "include" => rules.include = Some(self.document.strings(name, value)?),
            "exclude" => rules.exclude = Some(self.document.strings(name, value)?),
            "ignore" => rules.ignore = self.document.strings(name, value)?,
            "fmt" => config.formats = self.document.boolean(name, value)?,
            "cargo_generate_version" => self.check_version(name, value)?,
            "vcs" => config.vcs = Some(self.vcs(name, value)?),
            "init" if !self.document.boolean(name, value)? => {}
            "init" => return Err(self.unsupported(key, "Kiln always creates a new folder")),
            // They are chosen before this file is read; a chosen one may inherit it.
            "sub_templates" => drop(self.document.strings(name, value)?),
            _ => return Err(self.document.unknown_key(key, TEMPLATE_KEYS)),
        }
        Ok(())
    }

    /// Refuses templates that need another version of cargo-generate.
    fn check_version(&self, key: &str, value: &Place<'_>) -> Result<()> {
        let wanted = self.document.string(key, value)?;
        let error = |message| self.document.error_at(value.span(), message, "here");
        let parsed = VersionReq::parse(&wanted)
            .map_err(|why| error(format!("`{wanted}` is not a version requirement: {why}")))?;
        if parsed.matches(&CARGO_GENERATE) {
            return Ok(());
        }
        Err(error(format!(
            "the template requires cargo-generate {wanted}; Kiln implements the rules of {CARGO_GENERATE}"
        ))
        .help("widen the requirement if the template renders correctly"))
    }

    fn vcs(&self, key: &str, value: &Place<'_>) -> Result<Vcs> {
        let given = self.document.string(key, value)?;
        match given.as_str() {
            "None" => Ok(Vcs::None),
            "Git" => Ok(Vcs::Git),
            _ => Err(self
                .document
                .error_at(
                    value.span(),
                    format!("{given:?} is not a version control system"),
                    "here",
                )
                .help(suggest(&given, VCS.iter().copied(), "they"))),
        }
    }

    fn conditionals(&self, value: &Place<'_>) -> Result<Vec<Result<Conditional>>> {
        let table = self.document.table("conditional", value)?;
        let read = table.iter().map(|(key, value)| {
            let expression = Spanned::new(key.span(), key.get_ref().to_string());
            let table = self.document.table(expression.get_ref(), value)?;
            let (rules, options) = self.rules(table);
            Ok(Conditional {
                expression,
                rules,
                options,
            })
        });
        Ok(read.collect())
    }

    /// The rules and options of a condition; errors are kept.
    fn rules(&self, table: &DeTable<'_>) -> (Rules, Vec<TemplateOption>) {
        let mut rules = Rules::default();
        let mut options = Vec::new();
        for (key, value) in table {
            let name = key.get_ref().as_ref();
            let strings = || self.keep(self.document.strings(name, value));
            match name {
                "include" => rules.include = strings(),
                "exclude" => rules.exclude = strings(),
                "ignore" => rules.ignore = strings().unwrap_or_default(),
                "placeholders" => options = self.all(self.options(value)),
                _ => self.fault(self.document.unknown_key(key, RULE_KEYS)),
            }
        }
        (rules, options)
    }

    fn options(&self, value: &Place<'_>) -> Result<Vec<Result<TemplateOption>>> {
        let table = self.document.table("placeholders", value)?;
        let read = table.iter().map(|(key, value)| {
            let name = key.get_ref().as_ref();
            if BUILT_IN.contains(&name) {
                let message = format!("`{name}` is a built-in variable and cannot be an option");
                let error = self.document.error_at(key.span(), message, "built in");
                return Err(error.help("give the option another name"));
            }
            self.option(key, self.document.table(name, value)?)
        });
        Ok(read.collect())
    }

    fn option(
        &self,
        name: &Spanned<impl AsRef<str>>,
        table: &DeTable<'_>,
    ) -> Result<TemplateOption> {
        for key in table.keys() {
            if !OPTION_KEYS.contains(&key.get_ref().as_ref()) {
                return Err(self.document.unknown_key(key, OPTION_KEYS));
            }
        }
        let text = |key| {
            let value = table.get(key);
            value
                .map(|value| self.document.string(key, value))
                .transpose()
        };
        let prompt = text("prompt")?.ok_or_else(|| {
            let message = format!("the option `{}` has no prompt", name.get_ref().as_ref());
            let error = self.document.error_at(name.span(), message, "this option");
            error.help("add `prompt = \"your question\"`")
        })?;
        let kind = self.kind(name, table, text("type")?, text("regex")?)?;
        let default = table.get("default");
        let default = default
            .map(|value| self.default(&kind, value))
            .transpose()?;
        let mut kind = kind;
        let help = match table.get("help") {
            Some(help) => self.help(help, &mut kind)?,
            None => None,
        };
        Ok(TemplateOption {
            name: name.get_ref().as_ref().to_owned(),
            prompt,
            kind,
            help,
            default,
            span: name.span(),
            regex_span: table.get("regex").map(Place::span),
        })
    }

    fn kind(
        &self,
        name: &Spanned<impl AsRef<str>>,
        table: &DeTable<'_>,
        kind: Option<String>,
        regex: Option<String>,
    ) -> Result<OptionKind> {
        let choices = table.get("choices");
        let choices = choices.map(|value| self.choices(value)).transpose()?;
        let is_text = !matches!(kind.as_deref(), Some("bool" | "array")) && choices.is_none();
        if let Some(place) = table.get("regex").filter(|_| !is_text) {
            let message = "only a string without choices can have a `regex`";
            let error = self.document.error_at(place.span(), message, "here");
            return Err(error.help("remove `regex`, or make the option a string without choices"));
        }
        match (kind.as_deref().unwrap_or("string"), choices) {
            ("string", Some(choices)) => Ok(OptionKind::Choice(choices)),
            ("string" | "text" | "editor", None) => Ok(OptionKind::Text { regex }),
            ("array", Some(choices)) => Ok(OptionKind::List(choices)),
            ("bool", None) => Ok(OptionKind::Flag),
            (kind, choices) => {
                let with = if choices.is_some() { "with" } else { "without" };
                Err(self
                    .document
                    .error_at(
                        name.span(),
                        format!("an option cannot be of type `{kind}` {with} choices"),
                        "this option",
                    )
                    .help(
                        "there are `string`, also with choices; `text` and `editor`; `array` with \
                     choices; and `bool`",
                    ))
            }
        }
    }

    /// Reads `help`: a line about the option, or a table with a line for each choice. cargo-generate
    /// ignores it.
    fn help(&self, value: &Place<'_>, kind: &mut OptionKind) -> Result<Option<String>> {
        let Some(table) = value.get_ref().as_table() else {
            return self.document.string("help", value).map(Some);
        };
        let choices = match kind {
            OptionKind::Choice(choices) | OptionKind::List(choices) => choices.as_mut_slice(),
            OptionKind::Text { .. } | OptionKind::Flag => &mut [],
        };
        for (key, line) in table {
            let name = key.get_ref().as_ref();
            let line = self.document.string(name, line)?;
            let Some(choice) = choices.iter_mut().find(|one| one.value == name) else {
                let message = format!("`{name}` is not a choice of the option");
                let error = self.document.error_at(key.span(), message, "no choice");
                let values = choices.iter().map(|one| one.value.as_str());
                let values: Vec<_> = values.collect();
                return Err(error.help(suggest(name, values, "its choices")));
            };
            choice.help = Some(line);
        }
        Ok(None)
    }

    fn choices(&self, value: &Place<'_>) -> Result<Vec<Choice>> {
        let array = value.get_ref().as_array();
        let array = array.ok_or_else(|| self.document.wrong_type("choices", value, "an array"))?;
        if array.is_empty() {
            let message = "`choices` is empty";
            let error = self
                .document
                .error_at(value.span(), message, "nothing here");
            return Err(error.help("add the values to choose from, or remove `choices`"));
        }
        array.iter().map(|one| self.choice(one)).collect()
    }

    fn choice(&self, value: &Place<'_>) -> Result<Choice> {
        let Some(table) = value.get_ref().as_table() else {
            let value = self.document.string("choices", value)?;
            let label = value.clone();
            return Ok(Choice {
                value,
                label,
                help: None,
            });
        };
        for key in table.keys() {
            if !CHOICE_KEYS.contains(&key.get_ref().as_ref()) {
                return Err(self.document.unknown_key(key, CHOICE_KEYS));
            }
        }
        let inner = table.get("value");
        let inner = inner.ok_or_else(|| {
            self.document
                .error_at(value.span(), "a choice has no `value`", "this choice")
                .help("add `value = \"the value in the template\"`")
        })?;
        let value = self.document.string("value", inner)?;
        let label = table.get("label");
        let label = label
            .map(|label| self.document.string("label", label))
            .transpose()?;
        Ok(Choice {
            label: label.unwrap_or_else(|| value.clone()),
            value,
            help: None,
        })
    }

    fn default(&self, kind: &OptionKind, value: &Place<'_>) -> Result<Value> {
        Ok(match kind {
            OptionKind::Flag => Value::Flag(self.document.boolean("default", value)?),
            OptionKind::List(_) => Value::List(
                self.document
                    .strings("default", value)?
                    .into_iter()
                    .map(Spanned::into_inner)
                    .collect(),
            ),
            OptionKind::Text { .. } | OptionKind::Choice(_) => {
                Value::Text(self.document.string("default", value)?)
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_matched_once_and_as_before() {
        let paths = [
            "a", "b.rs", "x/a", "x/b.rs", "x/y/a", "x/y/b.rs", "x/y/z/a", "y/a", "y/c", "x/c/d",
            "x/c/e",
        ];
        for lines in [
            &["/a"][..],
            &["a"],
            &["x/"],
            &["x/*"],
            &["y/"],
            &["*.rs", "!x/y/*.rs"],
            &["x", "!x/y"],
            &["x/**/a", "!z/"],
            &["*", "!/x/c/d"],
            &["*", "!*.rs", "!c"],
            &[],
        ] {
            let mut builder = GitignoreBuilder::new("/template");
            for line in lines {
                builder.add_line(None, line).unwrap();
            }
            let patterns = builder.build().unwrap();
            let of_files = FilePatterns::from(patterns.clone());
            for path in paths.iter().chain(paths.iter().rev()) {
                let expected = matches(&patterns, path);
                assert_eq!(of_files.match_file(path), expected, "{lines:?} {path}");
            }
        }
    }
}
