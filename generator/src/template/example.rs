//! Worked examples: the template filled in for a real task, stored as overlays of the template.

use std::{collections::BTreeSet, path::PathBuf};

use toml_edit::{DocumentMut, Item, Table};

use super::{
    Template,
    answers::Values,
    embedded::{EXAMPLES, Files, example_hash},
    values,
};
use crate::{
    display::slashed,
    document::Document,
    error::{Error, Kind, Result, suggest},
};

/// The manifest of an example: answers, and further differences from the template.
pub(crate) const ANSWERS_FILE: &str = "answers.toml";
const MANIFEST: &str = "Cargo.toml";
/// The file name of an example's `Cargo.toml`: cargo does not package folders that have one.
const PACKED_MANIFEST: &str = "Cargo.toml.in";
/// The ending of a patch: `FILE.patch` changes the template's `FILE`.
const PATCH: &str = ".patch";
/// The ending of a file of an example whose name ends in `.patch` in the project.
const PACKED_PATCH: &str = ".patch.in";
const KEYS: &[&str] = &["cargo", "done", "is_template", "values", "without"];

/// A worked example.
#[derive(Debug)]
pub struct Example {
    name: String,
    /// The hash of the example's files.
    pub(crate) hash: String,
    /// Whether the example is a template derived from Kiln's, rather than a project.
    is_template: bool,
    /// Answers to options of the template.
    values: Values,
    /// TODO sites whose default is the answer of the example.
    pub(crate) done: Vec<String>,
    /// Files and folders of the template that the example removes.
    pub(crate) without: Vec<String>,
    /// Entries that the example adds to `Cargo.toml`.
    pub(crate) cargo: Table,
    /// Files that the example adds to the template, replaces or changes.
    files: Vec<ExampleFile>,
}

/// A file of an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExampleFile {
    /// Path in the project.
    pub path: PathBuf,
    /// Contents, or the patch.
    pub contents: &'static [u8],
    /// Whether the contents are a patch of the template's file.
    pub is_patch: bool,
    /// Whether the file is executable; a file that is changed by a patch keeps its mode.
    pub executable: bool,
}

impl ExampleFile {
    /// The file in the repository of Kiln, for messages.
    pub(crate) fn source(&self, example: &str) -> String {
        let ending = if self.is_patch { PATCH } else { "" };
        format!("examples/{example}/{}{ending}", slashed(&self.path))
    }
}

/// The path in the project of a file in the folder of an example, and whether it is a patch.
pub(crate) fn unpacked(path: &str) -> (PathBuf, bool) {
    if path == PACKED_MANIFEST {
        return (PathBuf::from(MANIFEST), false);
    }
    if let Some(file) = path.strip_suffix(PACKED_PATCH) {
        return (PathBuf::from(format!("{file}{PATCH}")), false);
    }
    match path.strip_suffix(PATCH) {
        Some(file) => (PathBuf::from(file), true),
        None => (PathBuf::from(path), false),
    }
}

/// The names of all examples.
pub fn names() -> BTreeSet<&'static str> {
    names_in(EXAMPLES)
}

fn names_in(examples: Files) -> BTreeSet<&'static str> {
    let folders = examples.iter().map(|(path, ..)| path.split_once('/'));
    folders.flatten().map(|(name, _)| name).collect()
}

impl Example {
    /// The embedded example called `name`.
    ///
    /// # Errors
    /// The example does not exist, or its `answers.toml` is invalid.
    pub fn embedded(template: &Template, name: &str) -> Result<Self> {
        Self::find(EXAMPLES, template, name)
    }

    /// The example called `name` among the files of all examples.
    pub(crate) fn find(examples: Files, template: &Template, name: &str) -> Result<Self> {
        let names = names_in(examples);
        if !names.contains(name) {
            let error = Error::input(format!("there is no example `{name}`"));
            let error = error.in_argument("--example", name, 0..name.len(), "no example");
            return Err(error.help(suggest(name, names, "the examples")));
        }
        let mut files = Vec::new();
        let mut answers = None;
        for (path, contents, executable) in examples {
            match path.split_once('/') {
                Some((folder, ANSWERS_FILE)) if folder == name => answers = Some(*contents),
                Some((folder, path)) if folder == name => {
                    let (path, is_patch) = unpacked(path);
                    files.push(ExampleFile {
                        path,
                        contents,
                        is_patch,
                        executable: *executable,
                    });
                }
                _ => {}
            }
        }
        let place = format!("examples/{name}/{ANSWERS_FILE}");
        let answers = answers.ok_or_else(|| Error::template(format!("`{place}` is missing")))?;
        let text = str::from_utf8(answers)
            .map_err(|_| Error::template(format!("`{place}` is not UTF-8")))?;
        let hash = example_hash(examples, name);
        Ok(Self {
            hash,
            ..Self::parse(template, name, &place, text, files)?
        })
    }

    pub(crate) fn parse(
        template: &Template,
        name: &str,
        place: &str,
        text: &str,
        files: Vec<ExampleFile>,
    ) -> Result<Self> {
        let document = Document::new(place, text, Kind::Template);
        let table = document.parse()?;
        for key in table.keys() {
            if !KEYS.contains(&key.get_ref().as_ref()) {
                return Err(document.unknown_key(key, KEYS));
            }
        }
        let strings = |key: &str| -> Result<Vec<String>> {
            let Some(value) = table.get(key) else {
                return Ok(Vec::new());
            };
            let strings = document.strings(key, value)?.into_iter();
            Ok(strings.map(toml::Spanned::into_inner).collect())
        };
        let values = match table.get("values") {
            Some(table) => {
                values::read_table(template, &document, document.table("values", table)?)?
            }
            None => Values::new(),
        };
        if let Some(cargo) = table.get("cargo") {
            document.table("cargo", cargo)?;
        }
        let mut editable: DocumentMut = text
            .parse()
            .map_err(|error| Error::template(format!("`{place}` is invalid: {error}")))?;
        let cargo = editable.remove("cargo").map(Item::into_table);
        Ok(Self {
            name: name.to_owned(),
            hash: String::new(),
            is_template: match table.get("is_template") {
                Some(value) => document.boolean("is_template", value)?,
                None => false,
            },
            values,
            done: strings("done")?,
            without: strings("without")?,
            cargo: cargo.and_then(std::result::Result::ok).unwrap_or_default(),
            files,
        })
    }

    /// The name of the example.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the example is a template derived from Kiln's, rather than a project.
    pub fn is_template(&self) -> bool {
        self.is_template
    }

    /// Answers to options of the template; the other options remain open.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// Files that the example adds to the template, replaces, or changes by a patch.
    pub fn files(&self) -> &[ExampleFile] {
        &self.files
    }

    /// A description in one sentence.
    pub fn description(&self) -> String {
        self.values
            .get("description")
            .map(ToString::to_string)
            .unwrap_or_default()
    }
}
