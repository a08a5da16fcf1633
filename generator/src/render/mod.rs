//! Rendering of a template into memory, byte for byte as cargo-generate does.

mod check;
mod filters;
mod formatting;
mod lenient;
mod liquid;
mod literals;
mod scripts;
mod warning;

use std::{
    borrow::Cow,
    collections::BTreeMap,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

pub use self::warning::Warning;
use self::{
    liquid::{Liquid, word_span},
    scripts::Scripts,
};
use crate::{
    error::{Error, Result},
    template::{
        Template, TemplateFile,
        answers::Answers,
        conditions,
        config::{Matcher, is_ignored},
        not_utf8,
        tags::has_liquid,
        variables::Variables,
    },
};

/// A rendered file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedFile<'t> {
    /// Path in the project.
    pub path: PathBuf,
    /// Contents.
    pub contents: Cow<'t, [u8]>,
    /// Whether the file is executable.
    pub executable: bool,
}

/// A project in memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered<'t> {
    /// The files, ordered by path.
    pub files: Vec<RenderedFile<'t>>,
    /// All folders in order, including empty ones.
    pub folders: Vec<PathBuf>,
    /// Mistakes of the template, at most one for each file.
    pub warnings: Vec<Warning>,
}

impl Rendered<'_> {
    /// The contents of the file at `path`.
    pub fn get(&self, path: impl AsRef<Path>) -> Option<&[u8]> {
        self.file(path.as_ref()).map(|file| &*file.contents)
    }

    /// The file at `path`.
    pub(crate) fn file(&self, path: &Path) -> Option<&RenderedFile<'_>> {
        let at = self.files.binary_search_by(|file| (*file.path).cmp(path));
        Some(&self.files[at.ok()?])
    }
}

/// Renders a project for a folder of its name in the current folder.
///
/// # Errors
/// The template is invalid: the error names file, line, column and expression.
pub fn render<'t>(template: &'t Template, answers: &Answers) -> Result<Rendered<'t>> {
    render_at(template, answers, Path::new(answers.name().package()))
}

/// Renders a project for the folder `destination`.
///
/// # Errors
/// The template is invalid: the error names file, line, column and expression.
pub fn render_at<'t>(
    template: &'t Template,
    answers: &Answers,
    destination: &Path,
) -> Result<Rendered<'t>> {
    render_with(template, Variables::new(answers, absolute(destination)?))
}

/// Renders a template with a fixed author, independent of the machine.
///
/// # Errors
/// The template is invalid: the error names file, line, column and expression.
#[cfg(feature = "snapshot")]
pub(crate) fn render_by<'t>(
    template: &'t Template,
    answers: &Answers,
    destination: &Path,
    author: [&str; 2],
) -> Result<Rendered<'t>> {
    let variables = Variables::new(answers, absolute(destination)?);
    render_with(template, variables.by(author))
}

fn absolute(destination: &Path) -> Result<PathBuf> {
    std::path::absolute(destination)
        .map_err(|cause| Error::io("find the folder", destination, cause))
}

fn render_with(template: &Template, variables: Variables) -> Result<Rendered<'_>> {
    let destination = variables.destination().to_owned();
    let (renderer, ignored) = Renderer::new(template, variables)?;
    let mut rendered = renderer.project(template, &ignored)?;
    if template.config().formats {
        formatting::format(&mut rendered, &destination)?;
    }
    Ok(rendered)
}

struct Renderer {
    matcher: Matcher,
    liquid: Liquid,
    /// The scripts that a filter may run.
    scripts: Option<Arc<Scripts>>,
}

impl Renderer {
    /// A renderer of a template, and the paths that the template ignores.
    fn new(template: &Template, variables: Variables) -> Result<(Self, Vec<String>)> {
        let variables =
            Rc::new(variables.without(template.conditional_options().map(|(_, option)| option)));
        let rules = conditions::rules(template.config(), &variables)?;
        let ignored = rules
            .ignore
            .iter()
            .map(|entry| template.config().ignored_path(entry))
            .collect::<Result<Vec<_>>>()?;
        let scripts = template
            .has_scripts()
            .then(|| Scripts::new(texts(template, &ignored), &variables));
        let renderer = Self {
            matcher: template.config().matcher(&rules)?,
            liquid: Liquid::new(variables, template.is_strict(), scripts.clone()),
            scripts,
        };
        Ok((renderer, ignored))
    }

    fn project<'t>(&self, template: &'t Template, ignored: &[String]) -> Result<Rendered<'t>> {
        let kept = template.files().iter();
        let mut kept: Vec<_> = kept
            .filter(|file| !is_ignored(&file.path, ignored))
            .collect();
        if !template.is_strict() {
            // As cargo-generate walks folders: an unknown variable of one file is an empty one of the next.
            kept.sort_by(|one, other| one.path.split('/').cmp(other.path.split('/')));
        }
        let mut files = Vec::new();
        let mut mistakes = Vec::new();
        for file in kept {
            match self.file(file) {
                Ok(rendered) => files.push((file, rendered)),
                Err(error) => mistakes.push((file, error)),
            }
        }
        // As in cargo-generate, scripts that ran are not part of the project.
        if let Some(scripts) = &self.scripts {
            let used = scripts.used();
            files.retain(|(file, _)| !used.contains(&file.path));
            mistakes.retain(|(file, _)| !used.contains(&file.path));
        }
        let mistakes = mistakes.into_iter().map(|(_, error)| error);
        Error::of_reasons(template.label(), mistakes.collect())?;
        files.sort_by_cached_key(|(_, file)| order(&file.path));
        for pair in files.windows(2) {
            let [(one, first), (other, second)] = pair else {
                continue;
            };
            if first.path == second.path {
                return Err(Error::template(format!(
                    "`{}` and `{}` render to the same path",
                    one.source, other.source
                ))
                .help("rename one of them, or ignore one with a `[conditional]` rule"));
            }
        }
        let files: Vec<_> = files.into_iter().map(|(_, file)| file).collect();
        let mut warnings = template.notices();
        warnings.extend(self.liquid.take_warnings());
        Ok(Rendered {
            folders: self.folders(template, ignored, files.iter().map(|file| &file.path))?,
            files,
            warnings,
        })
    }

    fn file<'t>(&self, file: &'t TemplateFile) -> Result<RenderedFile<'t>> {
        let rendered = self.matcher.renders(&file.path);
        let contents = if rendered {
            self.contents(file)?
        } else {
            Cow::Borrowed(&*file.contents)
        };
        let path = self.path(&file.path, &file.source)?;
        let moved = path != Path::new(&file.path);
        Ok(RenderedFile {
            // cargo-generate rewrites a rendered file that moves, and so drops its executable bit.
            executable: file.executable && !(rendered && moved),
            path,
            contents,
        })
    }

    fn contents<'t>(&self, file: &'t TemplateFile) -> Result<Cow<'t, [u8]>> {
        let text = str::from_utf8(&file.contents).map_err(|_| not_utf8(file))?;
        if !has_liquid(text.as_bytes()) {
            return Ok(Cow::Borrowed(text.as_bytes()));
        }
        let rendered = self.liquid.text(&file.source, text)?;
        Ok(Cow::Owned(rendered.into_bytes()))
    }

    /// Renders each part of a path and removes characters that file systems forbid.
    fn path(&self, path: &str, source: &str) -> Result<PathBuf> {
        if path.split('/').all(is_plain) {
            return Ok(path.into());
        }
        path.split('/')
            .map(|part| {
                let rendered = if has_liquid(part.as_bytes()) {
                    self.liquid.text(source, part)?
                } else {
                    part.to_owned()
                };
                let clean = sanitize(&rendered);
                if clean.is_empty() {
                    return Err(Error::template(format!(
                        "the part `{part}` of the path `{source}` renders to an empty name"
                    ))
                    .at(source, path, word_span(path, part), "empty")
                    .help("ignore the file with a `[conditional]` rule, or give the part a name"));
                }
                Ok(clean)
            })
            .collect()
    }

    /// The folders of the project: the parents of all files, and other folders whose name renders unchanged.
    fn folders<'f>(
        &self,
        template: &Template,
        ignored: &[String],
        files: impl Iterator<Item = &'f PathBuf>,
    ) -> Result<Vec<PathBuf>> {
        let mut parents: Vec<&Path> = files.filter_map(|file| file.parent()).collect();
        parents.dedup();
        let parents = parents.into_iter().flat_map(Path::ancestors);
        let mut folders: Vec<PathBuf> = parents.map(Path::to_path_buf).collect();
        for folder in template.folders() {
            if is_ignored(folder, ignored) {
                continue;
            }
            let path = self.path(folder, folder)?;
            if path == Path::new(folder) {
                folders.push(path);
            } else if !self.matcher.renders(folder) {
                return Err(Error::template(format!(
                    "cargo-generate cannot rename the folder `{folder}`, which is not rendered"
                ))
                .help("add the folder to `include`, or remove it from `exclude`"));
            }
        }
        folders.retain(|folder| !folder.as_os_str().is_empty());
        folders.sort_by_cached_key(|folder| order(folder));
        folders.dedup();
        Ok(folders)
    }
}

/// The files that are text and not ignored, which may be scripts.
fn texts(template: &Template, ignored: &[String]) -> BTreeMap<String, String> {
    let files = template.files().iter();
    let kept = files.filter(|file| !is_ignored(&file.path, ignored));
    let texts = kept.filter_map(|file| {
        let text = str::from_utf8(&file.contents).ok()?;
        Some((file.path.clone(), text.to_owned()))
    });
    texts.collect()
}

/// A key that orders paths of a project as [`Path`] does, which compares them a component at a time.
fn order(path: &Path) -> Vec<u8> {
    let bytes = path.as_os_str().as_encoded_bytes().iter();
    // No name has a byte that is smaller.
    let key = bytes.map(|byte| match std::path::is_separator(char::from(*byte)) {
        true => 0,
        false => *byte,
    });
    key.collect()
}

/// Whether a part of a path has no Liquid, and nothing that a file system forbids.
fn is_plain(part: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    part.bytes().all(plain)
        && part.bytes().any(|byte| byte != b'.')
        && part.len() <= 255
        && !cfg!(windows)
}

fn sanitize(part: &str) -> String {
    if is_plain(part) {
        return part.to_owned();
    }
    let options = sanitize_filename::Options {
        truncate: true,
        replacement: "_",
        ..sanitize_filename::Options::default()
    };
    sanitize_filename::sanitize_with_options(part, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_order_paths_as_their_components_do() {
        let names = [
            "a", "a-b", "a.b", "a0", "ab", "A", "_", "-", "é", "a b", "\u{1}",
        ];
        let mut paths: Vec<PathBuf> = Vec::new();
        for one in names {
            paths.push(one.into());
            paths.extend(names.map(|other| Path::new(one).join(other)));
            paths.extend(names.map(|other| Path::new(other).join("a").join(one)));
        }
        for one in &paths {
            for other in &paths {
                assert_eq!(
                    order(one).cmp(&order(other)),
                    one.cmp(other),
                    "{one:?} {other:?}"
                );
            }
        }
    }

    #[test]
    fn the_files_and_folders_of_a_project_are_in_order() {
        let template = Template::embedded().unwrap();
        let name = crate::name::Name::parse("a").unwrap();
        let rendered = render(&template, &Answers::defaults(&template, name).unwrap()).unwrap();
        assert!(
            rendered
                .files
                .is_sorted_by(|one, other| one.path < other.path)
        );
        assert!(rendered.folders.is_sorted_by(|one, other| one < other));
        for file in &rendered.files {
            assert_eq!(rendered.file(&file.path), Some(file));
            for folder in file.path.ancestors().skip(1) {
                assert!(
                    folder == Path::new("") || rendered.folders.iter().any(|one| one == folder)
                );
            }
        }
        assert_eq!(rendered.get("src"), None);
    }
}
