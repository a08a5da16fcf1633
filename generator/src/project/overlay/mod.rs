//! Rendering of worked examples: the template's project with the overlay of the example.

pub mod patch;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use toml_edit::{Array, DocumentMut, Item, TableLike};

use self::patch::FilePatch;
use super::{
    origin::recorded,
    record::{RECORD_FILE, example_line},
    todo::{self, SITES_FILE},
};
use crate::{
    display::slashed,
    error::{Error, Result},
    render::{Rendered, RenderedFile, render_at},
    template::{
        Template,
        answers::Answers,
        embedded::TEMPLATE,
        example::{ANSWERS_FILE, Example, ExampleFile},
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
        Some(example) => {
            let base = render_base(template, example, answers, destination)?;
            lay_over(example, base)
        }
    }
}

/// Renders the base of an example: the template's project with the changes of
/// `answers.toml`, or Kiln's unrendered template.
///
/// # Errors
/// The template is invalid, or `answers.toml` does not fit the template.
pub fn render_base<'t>(
    template: &'t Template,
    example: &Example,
    answers: &Answers,
    destination: &Path,
) -> Result<Rendered<'t>> {
    match example.is_template() {
        true => base(example, unrendered()),
        false => base(example, render_recorded(template, answers, destination)?),
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

/// Applies the changes of an example's `answers.toml`.
///
/// # Errors
/// The example does not fit the template.
fn base<'t>(example: &Example, rendered: Rendered<'t>) -> Result<Rendered<'t>> {
    let mut files = by_path(rendered.files);
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
    Ok(Rendered {
        files: files.into_values().collect(),
        ..rendered
    })
}

/// Adds the files of an example to its base; its patches change files of the base.
///
/// # Errors
/// A patch does not fit.
fn lay_over<'t>(example: &Example, base: Rendered<'t>) -> Result<Rendered<'t>> {
    let mut files = by_path(base.files);
    let mut laid = BTreeSet::new();
    for file in example.files() {
        if !laid.insert(&file.path) {
            return Err(ambiguous(example, file));
        }
        let made = match file.is_patch {
            true => patched(example, file, files.get(&file.path))?,
            false => RenderedFile {
                path: file.path.clone(),
                contents: Cow::Borrowed(file.contents),
                executable: file.executable,
            },
        };
        files.insert(file.path.clone(), made);
    }
    let folders = files.keys().flat_map(|file| file.ancestors().skip(1));
    let folders: BTreeSet<PathBuf> = folders.map(Path::to_path_buf).collect();
    Ok(Rendered {
        folders: folders
            .into_iter()
            .filter(|folder| !folder.as_os_str().is_empty())
            .collect(),
        files: files.into_values().collect(),
        warnings: base.warnings,
    })
}

fn by_path(files: Vec<RenderedFile<'_>>) -> BTreeMap<PathBuf, RenderedFile<'_>> {
    let files = files.into_iter();
    files.map(|file| (file.path.clone(), file)).collect()
}

/// The template's file with the patch of an example; it keeps its mode.
fn patched<'t>(
    example: &Example,
    file: &ExampleFile,
    base: Option<&RenderedFile<'t>>,
) -> Result<RenderedFile<'t>> {
    let name = file.source(example.name());
    let patch = FilePatch::parse(&name, file.contents)?;
    let path = slashed(&file.path);
    let base = base.ok_or_else(|| {
        let error = format!("`{name}` changes `{path}`, which the template does not have");
        Error::template(error).help(format!(
            "a file in an example is a patch if it ends in `.patch`: put the whole `{path}` in its \
             place, correct `without` in `{ANSWERS_FILE}`, or, to add a file called \
             `{path}.patch`, rename it to `{path}.patch.in`"
        ))
    })?;
    let text = str::from_utf8(&base.contents).map_err(|_| {
        let error = format!("`{name}` changes `{path}`, which is not UTF-8 in the template");
        Error::template(error).help(format!("put the whole `{path}` in its place"))
    })?;
    Ok(RenderedFile {
        contents: Cow::Owned(patch.apply(text)?.into_bytes()),
        ..base.clone()
    })
}

/// The error that an example has `file` twice, for example whole and as a patch.
fn ambiguous(example: &Example, file: &ExampleFile) -> Error {
    let same = example.files().iter().filter(|one| one.path == file.path);
    let names: Vec<_> = same
        .map(|one| format!("`{}`", one.source(example.name())))
        .collect();
    Error::template(format!(
        "the example `{}` has {}, which are one file",
        example.name(),
        names.join(" and ")
    ))
    .help(format!(
        "`{}` makes the patch anew from the whole file and deletes the file; or delete one",
        patch::RENEWAL
    ))
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
    use crate::{error::Kind, name::Name, render::render, template::example::unpacked};

    fn with<'t>(template: &'t Template, example: &Example) -> Result<Rendered<'t>> {
        let defaults = Answers::defaults(template, Name::parse("my-model")?)?;
        lay_over(example, base(example, render(template, &defaults)?)?)
    }

    /// A project from an example that has these files, as they are called in its folder.
    fn with_files(answers: &str, files: &[(&str, &'static str)]) -> Result<String> {
        let template = Template::embedded()?;
        let files = files.iter().map(|(path, text)| {
            let (path, is_patch) = unpacked(path);
            ExampleFile {
                path,
                contents: text.as_bytes(),
                is_patch,
                executable: false,
            }
        });
        let place = "try/answers.toml";
        let example = Example::parse(&template, "try", place, answers, files.collect())?;
        let rendered = with(&template, &example)?;
        let made = rendered.files.iter().filter(|file| {
            let path = file.path.to_string_lossy();
            path.starts_with("src/lib") || path.contains(".patch")
        });
        let made = made.map(|file| {
            let text = String::from_utf8_lossy(&file.contents);
            format!("{}\n{text}", file.path.display())
        });
        Ok(made.collect())
    }

    fn laid_over(answers: &str) -> Result<(String, String)> {
        let template = Template::embedded()?;
        let example = Example::parse(&template, "try", "try/answers.toml", answers, Vec::new())?;
        let rendered = with(&template, &example)?;
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
        assert!(parsed["profile"]["dev"]["package"]["gemm-f32"].is_table());
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

    /// Changes the first line of `src/lib.rs`.
    const PATCH: &str = "@@ -1 +1 @@\n-FIRST\n+//! changed\n";

    /// `PATCH` for the template's `src/lib.rs`.
    fn patch() -> &'static str {
        let lib = with_files("", &[]).unwrap();
        let first = lib.lines().nth(1).unwrap();
        PATCH.replace("FIRST", first).leak()
    }

    #[test]
    fn a_patch_changes_the_file_of_the_template() {
        let before = with_files("", &[]).unwrap();
        let after = with_files("", &[("src/lib.rs.patch", patch())]).unwrap();
        assert!(after.starts_with("src/lib.rs\n//! changed\n"), "{after}");
        let rest = |text: &str| text.splitn(3, '\n').nth(2).unwrap().to_owned();
        assert_eq!(rest(&before), rest(&after));
    }

    /// `kiln update` renders the example of the earlier release and that of this one.
    #[test]
    fn releases_may_store_a_file_whole_or_as_a_patch() {
        let template = Template::embedded().unwrap();
        let lib = with_files("", &[("src/lib.rs.patch", patch())]).unwrap();
        let whole = lib.split_once('\n').unwrap().1.to_owned().leak();
        let laid = |path: &'static str, text: &'static str| {
            let files: Vec<(&str, &[u8], bool)> = vec![
                ("try/answers.toml", b"", false),
                (path, text.as_bytes(), false),
            ];
            let example = Example::find(files.leak(), &template, "try").unwrap();
            with(&template, &example).unwrap()
        };
        let old = laid("try/src/lib.rs", whole);
        let new = laid("try/src/lib.rs.patch", patch());
        let pairs = old.files.iter().zip(&new.files);
        let differing = pairs.filter(|(old, new)| old != new);
        let differing: Vec<_> = differing.map(|(old, _)| old.path.as_path()).collect();
        assert_eq!(old.files.len(), new.files.len());
        assert_eq!(differing, [Path::new(RECORD_FILE)]);
    }

    #[test]
    fn a_file_that_is_called_a_patch_is_added() {
        let made = with_files("", &[("fix.patch.in", "text\n")]).unwrap();
        assert!(made.starts_with("fix.patch\ntext\n"), "{made}");
    }

    #[test]
    fn a_patch_that_does_not_fit_is_told() {
        let whole = ("src/lib.rs", "//! whole\n");
        let fitting = ("src/lib.rs.patch", patch());
        let cases = [
            (
                "",
                vec![whole, fitting],
                "has `examples/try/src/lib.rs` and `examples/try/src/lib.rs.patch`",
            ),
            (
                "",
                vec![("src/lob.rs.patch", patch())],
                "`examples/try/src/lob.rs.patch` changes `src/lob.rs`, which the template does not",
            ),
            (
                "without = [\"src/lib.rs\"]",
                vec![fitting],
                "changes `src/lib.rs`, which the template does not have",
            ),
            (
                "",
                vec![("data/train-images-idx3-ubyte.gz.patch", patch())],
                "which is not UTF-8 in the template",
            ),
            (
                "",
                vec![("src/lib.rs.patch", PATCH)],
                "`examples/try/src/lib.rs.patch` does not fit the template: hunk 1",
            ),
            (
                "",
                vec![("src/lib.rs.patch", "@@ -1 +1 @@\n")],
                "`examples/try/src/lib.rs.patch` is not a unified diff",
            ),
        ];
        for (answers, files, told) in cases {
            let error = with_files(answers, &files).unwrap_err();
            assert_eq!(error.kind(), Kind::Template);
            assert!(error.to_string().contains(told), "{error}");
            assert!(error.help_text().is_some(), "{error}");
        }
    }
}
