//! Rendering of worked examples: the template's project with the overlay of the example.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use toml_edit::{Array, DocumentMut, Item, TableLike};

use super::{
    origin::recorded,
    record::{RECORD_FILE, example_line},
    todo::{self, SITES_FILE},
};
use crate::{
    error::{Error, Result},
    render::{Rendered, RenderedFile, render_at},
    template::{
        Template,
        answers::Answers,
        embedded::TEMPLATE,
        example::{ANSWERS_FILE, Example},
    },
};

const MANIFEST: &str = "Cargo.toml";
/// The folder of Kiln's template in an example that is a template.
const TEMPLATE_FOLDER: &str = "template";

/// Renders a project, including an example's overlay. An example that is a template is not rendered.
///
/// # Errors
/// The template is invalid, or the example does not fit the template.
pub fn render_example<'t>(
    template: &'t Template,
    example: Option<&Example>,
    answers: &Answers,
    destination: &Path,
) -> Result<Rendered<'t>> {
    match example {
        None => render_recorded(template, answers, destination),
        Some(example) if example.is_template() => lay_over(example, unrendered()),
        Some(example) => lay_over(example, render_recorded(template, answers, destination)?),
    }
}

/// Renders a project whose record has all answers.
fn render_recorded<'t>(
    template: &'t Template,
    answers: &Answers,
    destination: &Path,
) -> Result<Rendered<'t>> {
    let rendered = render_at(template, answers, destination)?;
    if !template.is_own() {
        recorded::check(template, answers, &rendered)?;
    }
    Ok(rendered)
}

/// Kiln's unrendered template, in a folder.
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
        warnings: Vec::new(),
    }
}

/// Applies the overlay of an example to a rendered template or, if the example [is a
/// template](Example::is_template), to an unrendered one.
///
/// # Errors
/// The example does not fit the template.
fn lay_over<'t>(example: &Example, rendered: Rendered<'t>) -> Result<Rendered<'t>> {
    let warnings = rendered.warnings;
    let files = rendered.files.into_iter();
    let mut files: BTreeMap<PathBuf, RenderedFile<'t>> =
        files.map(|file| (file.path.clone(), file)).collect();
    for path in &example.without {
        let before = files.len();
        files.retain(|file, _| !file.starts_with(path));
        if files.len() == before {
            let what = format!("removes `{path}`, which the template does not have");
            return Err(unfit(example, &what));
        }
    }
    strip_markers(example, &mut files)?;
    if !example.cargo.is_empty() {
        let manifest = files.get_mut(Path::new(MANIFEST));
        let manifest = manifest.ok_or_else(|| {
            unfit(
                example,
                "extends a manifest that the template does not have",
            )
        })?;
        manifest.contents = Cow::Owned(extended(example, &manifest.contents)?.into_bytes());
    }
    if let Some(record) = files.get_mut(Path::new(RECORD_FILE)) {
        let text = String::from_utf8_lossy(&record.contents);
        let line = example_line(example.name(), &example.hash);
        let recorded = text.replacen("\nname = ", &format!("\n{line}name = "), 1);
        record.contents = Cow::Owned(recorded.into_bytes());
    }
    for file in example.files() {
        let laid = RenderedFile {
            path: file.path.clone(),
            contents: Cow::Borrowed(file.contents),
            executable: file.executable,
        };
        files.insert(file.path.clone(), laid);
    }
    let folders = files.keys().flat_map(|file| file.ancestors().skip(1));
    let folders: BTreeSet<PathBuf> = folders.map(Path::to_path_buf).collect();
    Ok(Rendered {
        folders: folders
            .into_iter()
            .filter(|folder| !folder.as_os_str().is_empty())
            .collect(),
        files: files.into_values().collect(),
        warnings,
    })
}

/// Removes the markers of sites whose default is the answer of the example.
fn strip_markers(example: &Example, files: &mut BTreeMap<PathBuf, RenderedFile<'_>>) -> Result<()> {
    let sites = files.get(Path::new(SITES_FILE)).map(|file| &*file.contents);
    let sites = String::from_utf8_lossy(sites.unwrap_or_default()).into_owned();
    let sites = todo::parse_sites(SITES_FILE, &sites)?;
    for id in &example.done {
        let site = sites.iter().find(|site| site.id == *id);
        let file = site.and_then(|site| files.get_mut(Path::new(&site.file)));
        let stripped = file.and_then(|file| {
            let text = String::from_utf8_lossy(&file.contents);
            let text = todo::without_marker(&file.path.to_string_lossy(), &text, id)?;
            file.contents = Cow::Owned(text.into_bytes());
            Some(())
        });
        stripped.ok_or_else(|| {
            unfit(
                example,
                &format!("lists `{id}` as done, which is not a TODO site of the template"),
            )
        })?;
    }
    Ok(())
}

/// The manifest with the entries of the example.
fn extended(example: &Example, manifest: &[u8]) -> Result<String> {
    let text = String::from_utf8_lossy(manifest);
    let mut manifest: DocumentMut = text.parse().map_err(|error| {
        unfit(
            example,
            &format!("extends a manifest that is not valid TOML: {error}"),
        )
    })?;
    merge(manifest.as_table_mut(), &example.cargo);
    for name in ["dependencies", "dev-dependencies"] {
        if let Some(table) = manifest.get_mut(name).and_then(Item::as_table_mut) {
            table.sort_values();
        }
    }
    Ok(manifest.to_string())
}

fn unfit(example: &Example, what: &str) -> Error {
    let name = example.name();
    Error::template(format!("the example `{name}` {what}"))
        .help(format!("correct `examples/{name}/{ANSWERS_FILE}`"))
}

/// Merges a table into another: tables are merged, and arrays are appended.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::Kind, name::Name, render::render};

    fn laid_over(answers: &str) -> Result<(String, String)> {
        let template = Template::embedded()?;
        let example = Example::parse(&template, "try", "try/answers.toml", answers, Vec::new())?;
        let defaults = Answers::defaults(&template, Name::parse("my-model")?)?;
        let rendered = lay_over(&example, render(&template, &defaults)?)?;
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
            "comments are kept"
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
            ("done = [\"model.splat\"]", "`model.splat` as done"),
            ("without = [\"data/no.gz\"]", "removes `data/no.gz`"),
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
