//! Worked examples: the template filled in for a real task, each as what differs from it.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use toml_edit::{Array, DocumentMut, Item, Table, TableLike};

use crate::{
    document::Document,
    embedded::{EXAMPLES, Files, TEMPLATE},
    error::{Error, Kind, Result, suggest},
    history::example_hash,
    option::{Answers, Values},
    record::{RECORD_FILE, example_line},
    render::{Rendered, RenderedFile, render_at},
    template::Template,
    todo::{self, SITES_FILE},
    values,
};

/// What answers the template's questions and says what else differs.
const ANSWERS_FILE: &str = "answers.toml";
const MANIFEST: &str = "Cargo.toml";
/// What a manifest of an example is called: cargo packs no folder that has a `Cargo.toml`.
const PACKED_MANIFEST: &str = "Cargo.toml.in";
const KEYS: &[&str] = &["cargo", "done", "is_template", "values", "without"];
/// Where an example that is a template has the files of Kiln's.
const TEMPLATE_FOLDER: &str = "template";

/// A worked example.
#[derive(Debug)]
pub struct Example {
    name: String,
    /// Of its files.
    hash: String,
    /// Whether it is a template that starts from Kiln's, and no project.
    is_template: bool,
    /// The options that it answers.
    values: Values,
    /// Sites whose default is right for it.
    done: Vec<String>,
    /// Files of the template that it has not, and folders.
    without: Vec<String>,
    /// What is added to the manifest.
    cargo: Table,
    /// The files that it has instead of those of the template, or beside them.
    files: Vec<RenderedFile<'static>>,
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
                Some((folder, path)) if folder == name => files.push(RenderedFile {
                    path: PathBuf::from(match path {
                        PACKED_MANIFEST => MANIFEST,
                        path => path,
                    }),
                    contents: Cow::Borrowed(*contents),
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
        files: Vec<RenderedFile<'static>>,
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
    pub fn files(&self) -> &[RenderedFile<'static>] {
        &self.files
    }

    /// One sentence.
    pub fn description(&self) -> String {
        self.values
            .get("description")
            .map(ToString::to_string)
            .unwrap_or_default()
    }

    /// Makes the example of a rendered template, or of one that is not rendered where it
    /// [is a template](Self::is_template).
    ///
    /// # Errors
    /// The example does not fit the template.
    pub fn lay_over<'t>(&self, rendered: Rendered<'t>) -> Result<Rendered<'t>> {
        let files = rendered.files.into_iter();
        let mut files: BTreeMap<PathBuf, RenderedFile<'t>> =
            files.map(|file| (file.path.clone(), file)).collect();
        for path in &self.without {
            let before = files.len();
            files.retain(|file, _| !file.starts_with(path));
            if files.len() == before {
                return Err(self.error(format!("leaves out `{path}`, which the template has not")));
            }
        }
        self.strip_markers(&mut files)?;
        if !self.cargo.is_empty() {
            let manifest = files.get_mut(Path::new(MANIFEST));
            let manifest = manifest.ok_or_else(|| self.error("adds to no manifest".to_owned()))?;
            manifest.contents = Cow::Owned(self.extended(&manifest.contents)?.into_bytes());
        }
        if let Some(record) = files.get_mut(Path::new(RECORD_FILE)) {
            let text = String::from_utf8_lossy(&record.contents);
            let line = example_line(&self.name, &self.hash);
            let recorded = text.replacen("\nname = ", &format!("\n{line}name = "), 1);
            record.contents = Cow::Owned(recorded.into_bytes());
        }
        for file in &self.files {
            files.insert(file.path.clone(), file.clone());
        }
        let folders = files.keys().flat_map(|file| file.ancestors().skip(1));
        let folders: BTreeSet<PathBuf> = folders.map(Path::to_path_buf).collect();
        Ok(Rendered {
            folders: folders
                .into_iter()
                .filter(|folder| !folder.as_os_str().is_empty())
                .collect(),
            files: files.into_values().collect(),
        })
    }

    /// Takes the markers of the sites out whose default is right.
    fn strip_markers(&self, files: &mut BTreeMap<PathBuf, RenderedFile<'_>>) -> Result<()> {
        let sites = files.get(Path::new(SITES_FILE)).map(|file| &*file.contents);
        let sites = String::from_utf8_lossy(sites.unwrap_or_default()).into_owned();
        let sites = todo::parse_sites(SITES_FILE, &sites)?;
        for id in &self.done {
            let site = sites.iter().find(|site| site.id == *id);
            let file = site.and_then(|site| files.get_mut(Path::new(&site.file)));
            let stripped = file.and_then(|file| {
                let text = String::from_utf8_lossy(&file.contents);
                let text = todo::without_marker(&file.path.to_string_lossy(), &text, id)?;
                file.contents = Cow::Owned(text.into_bytes());
                Some(())
            });
            stripped
                .ok_or_else(|| self.error(format!("has done `{id}`, which is no site here")))?;
        }
        Ok(())
    }

    /// The manifest with what this example adds.
    fn extended(&self, manifest: &[u8]) -> Result<String> {
        let text = String::from_utf8_lossy(manifest);
        let mut manifest: DocumentMut = text
            .parse()
            .map_err(|error| self.error(format!("adds to a manifest that is not TOML: {error}")))?;
        merge(manifest.as_table_mut(), &self.cargo);
        for name in ["dependencies", "dev-dependencies"] {
            if let Some(table) = manifest.get_mut(name).and_then(Item::as_table_mut) {
                table.sort_values();
            }
        }
        Ok(manifest.to_string())
    }

    fn error(&self, what: String) -> Error {
        Error::template(format!("the example `{}` {what}", self.name))
            .help(format!("correct `examples/{}/{ANSWERS_FILE}`", self.name))
    }
}

/// Adds the entries of a table to another: tables into tables, arrays behind arrays.
fn merge(into: &mut dyn TableLike, from: &dyn TableLike) {
    for (key, item) in from.iter() {
        let Some(old) = into.get_mut(key) else {
            into.insert(key, item.clone());
            continue;
        };
        match (old.as_table_like_mut(), item.as_table_like()) {
            (Some(old), Some(new)) => merge(old, new),
            _ => match (old.as_array_mut(), item.as_array()) {
                (Some(old), Some(new)) => append(old, new),
                _ => *old = item.clone(),
            },
        }
    }
}

fn append(into: &mut Array, from: &Array) {
    for value in from {
        let mut value = value.clone();
        value.decor_mut().clear();
        into.push(value);
    }
}

/// Renders a project, that of an example where there is one. An example that is a template is not
/// rendered.
///
/// # Errors
/// The template is wrong, or the example does not fit it.
pub fn render_example<'t>(
    template: &'t Template,
    example: Option<&Example>,
    answers: &Answers,
    destination: &Path,
) -> Result<Rendered<'t>> {
    match example {
        None => render_at(template, answers, destination),
        Some(example) if example.is_template => example.lay_over(unrendered()),
        Some(example) => example.lay_over(render_at(template, answers, destination)?),
    }
}

/// Kiln's template as it is, in a folder.
fn unrendered() -> Rendered<'static> {
    let file = |(path, contents, executable): &(&str, &'static [u8], bool)| RenderedFile {
        path: Path::new(TEMPLATE_FOLDER).join(path),
        contents: Cow::Borrowed(*contents),
        executable: *executable,
    };
    let files = TEMPLATE.iter().map(file);
    Rendered {
        files: files.collect(),
        folders: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{name::Name, render::render};

    fn laid_over(answers: &str) -> Result<(String, String)> {
        let template = Template::embedded()?;
        let example = Example::parse(&template, "try", "try/answers.toml", answers, Vec::new())?;
        let defaults = Answers::defaults(&template, Name::parse("my-model")?)?;
        let rendered = example.lay_over(render(&template, &defaults)?)?;
        let text = |path: &str| {
            let bytes = rendered.get(path).unwrap_or_default();
            String::from_utf8_lossy(bytes).into_owned()
        };
        Ok((text("Cargo.toml"), text("src/model.rs")))
    }

    #[test]
    fn tables_are_joined_and_dependencies_sorted() {
        let (manifest, _) = laid_over(
            "[cargo.dependencies]\n\
             tokenizers = { version = \"0.22\", default-features = false }\n\
             half = \"2\"\n\
             [cargo.features]\ndefault = [\"remote\"]\n\
             [cargo.profile.release]\nlto = true\n",
        )
        .unwrap();
        assert!(manifest.contains(r#"default = ["flex", "cpu-layers", "tensorboard", "remote"]"#));
        assert!(
            manifest.contains("\ntokenizers = { version = \"0.22\", default-features = false }\n")
        );
        let at = |text| manifest.find(text).unwrap();
        assert!(
            at("\nclap") < at("\nhalf") && at("\nhalf") < at("\nindexmap"),
            "{manifest}"
        );
        let parsed: toml::Table = manifest.parse().unwrap();
        assert_eq!(parsed["profile"]["release"]["lto"], true.into());
        assert!(parsed["profile"]["dev"]["package"]["burn-flex"].is_table());
        assert!(
            manifest.contains("# Each is one of the engine"),
            "comments stay"
        );
    }

    #[test]
    fn a_site_that_is_done_loses_its_marker_and_nothing_else() {
        let (_, before) = laid_over("").unwrap();
        let (_, after) = laid_over("done = [\"model.split\"]").unwrap();
        let gone: Vec<_> = before
            .lines()
            .filter(|line| !after.lines().any(|other| other == *line))
            .collect();
        assert_eq!(gone.len(), 4, "{gone:?}");
        assert!(gone[0].starts_with("// TODO(model.split):"), "{gone:?}");
        assert_eq!(before.lines().count() - after.lines().count(), 4);
    }

    #[test]
    fn what_does_not_fit_is_told() {
        let cases = [
            ("dune = []", "unknown key `dune`"),
            ("done = [\"model.splat\"]", "done `model.splat`"),
            ("without = [\"data/no.gz\"]", "leaves out `data/no.gz`"),
            ("cargo = 3", "`cargo` should be a table"),
            (
                "[values]\nstrategie = \"mirrored\"",
                "no option `strategie`",
            ),
        ];
        for (answers, message) in cases {
            let error = laid_over(answers).unwrap_err();
            assert_eq!(error.kind(), Kind::Template);
            assert!(error.to_string().contains(message), "{error}");
        }
    }
}
