//! Worked examples: the template filled in for a real task, each as what differs from it.

use std::{collections::BTreeSet, path::PathBuf};

use toml_edit::{DocumentMut, Item, Table};

use super::{
    Template,
    answers::Values,
    embedded::{EXAMPLES, Files, example_hash},
    values,
};
use crate::{
    document::Document,
    error::{Error, Kind, Result, suggest},
};

/// What answers the template's questions and says what else differs.
pub(crate) const ANSWERS_FILE: &str = "answers.toml";
const MANIFEST: &str = "Cargo.toml";
/// What a manifest of an example is called: cargo packs no folder that has a `Cargo.toml`.
const PACKED_MANIFEST: &str = "Cargo.toml.in";
const KEYS: &[&str] = &["cargo", "done", "is_template", "values", "without"];

/// A worked example.
#[derive(Debug)]
pub struct Example {
    name: String,
    /// Of its files.
    pub(crate) hash: String,
    /// Whether it is a template that starts from Kiln's, and no project.
    is_template: bool,
    /// The options that it answers.
    values: Values,
    /// Sites whose default is right for it.
    pub(crate) done: Vec<String>,
    /// Files of the template that it has not, and folders.
    pub(crate) without: Vec<String>,
    /// What is added to the manifest.
    pub(crate) cargo: Table,
    /// The files that it has instead of those of the template, or beside them.
    files: Vec<ExampleFile>,
}

/// A file of an example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExampleFile {
    /// Its path below the project's folder.
    pub path: PathBuf,
    /// Its bytes.
    pub contents: &'static [u8],
    /// Whether it can be run.
    pub executable: bool,
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
    /// The example called `name` that is part of this binary.
    ///
    /// # Errors
    /// There is no such example, or its `answers.toml` is wrong.
    pub fn embedded(template: &Template, name: &str) -> Result<Self> {
        Self::find(EXAMPLES, template, name)
    }

    /// The example called `name` among the files of all.
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
                Some((folder, path)) if folder == name => files.push(ExampleFile {
                    path: PathBuf::from(match path {
                        PACKED_MANIFEST => MANIFEST,
                        path => path,
                    }),
                    contents,
                    executable: *executable,
                }),
                _ => {}
            }
        }
        let place = format!("examples/{name}/{ANSWERS_FILE}");
        let answers = answers.ok_or_else(|| Error::template(format!("there is no `{place}`")))?;
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
            .map_err(|error| Error::template(format!("`{place}` is wrong: {error}")))?;
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

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is a template that starts from Kiln's, and no project.
    pub fn is_template(&self) -> bool {
        self.is_template
    }

    /// The options that it answers; the others are open.
    pub fn values(&self) -> &Values {
        &self.values
    }

    /// The files that it has instead of those of the template, or beside them.
    pub fn files(&self) -> &[ExampleFile] {
        &self.files
    }

    /// One sentence.
    pub fn description(&self) -> String {
        self.values
            .get("description")
            .map(ToString::to_string)
            .unwrap_or_default()
    }
}
