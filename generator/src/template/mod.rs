//! Templates: files, and the options and rules of their `cargo-generate.toml`.
//!
//! [`option`] defines the options, [`answers`] their values, [`example`] the worked examples of
//! Kiln's own template, and [`history`] the templates of earlier releases.

pub mod answers;
pub(crate) mod applicable;
pub(crate) mod conditions;
pub(crate) mod config;
pub(crate) mod embedded;
pub mod example;
mod genignore;
pub mod history;
mod hooks;
mod locate;
pub mod option;
pub(crate) mod portable;
pub(crate) mod scripts;
mod syntax;
pub(crate) mod tags;
pub(crate) mod values;
pub(crate) mod variables;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use config::{Config, parents};
use embedded::{Files, TEMPLATE};
use genignore::{Genignore, IGNORE_FILE};
use locate::Found;
use option::TemplateOption;

use crate::{
    display::slashed,
    error::{Error, Result},
};

pub use config::{CONFIG_FILE, Vcs};

/// The suffix of template files; one is stripped from each name.
pub(crate) const LIQUID: &str = ".liquid";
/// Files at the root of a template that cargo-generate deletes.
pub(crate) const NOT_OUTPUT: [&str; 3] = [CONFIG_FILE, ".cargo-ok", IGNORE_FILE];
/// Maximum number of files of a template without `cargo-generate.toml`, which may be a mistake.
const MOST_FILES: usize = 20_000;
/// The first bytes of a `CACHEDIR.TAG`, which marks a build folder.
const CACHE_TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// A file of a template.
#[derive(Debug, Clone)]
pub struct TemplateFile {
    /// Path in the template without `.liquid`, with `/` as separator.
    pub path: String,
    /// Name for messages, with the template's folder.
    pub source: String,
    /// Contents.
    pub contents: Cow<'static, [u8]>,
    /// Whether the file is executable.
    pub executable: bool,
}

/// A template that can be rendered.
#[derive(Debug)]
pub struct Template {
    pub(crate) files: Vec<TemplateFile>,
    pub(crate) folders: BTreeSet<String>,
    pub(crate) config: Config,
    /// Entries that are neither files nor folders, such as symbolic links.
    pub(crate) special: Vec<String>,
    /// Whether mistakes that cargo-generate renders are errors.
    strict: bool,
    /// Messages on the parts of the template that are left out.
    pub(crate) notes: Vec<String>,
    /// Whether a file may run a Rhai script as a filter.
    has_scripts: bool,
    /// Whether it is Kiln's own template.
    own: bool,
}

/// The parts of a template, before its configuration is read.
struct Parts {
    label: String,
    files: Vec<TemplateFile>,
    folders: BTreeSet<String>,
    special: Vec<String>,
    /// The configuration of a sub-template that has none of its own.
    inherited: Option<TemplateFile>,
    /// Whether it is Kiln's own template.
    own: bool,
}

/// Settings for reading the template in a folder.
#[derive(Debug, Clone, Copy, Default)]
pub struct Reading<'l> {
    /// The folder in messages, if not its path.
    pub label: Option<&'l str>,
    /// Mistakes that cargo-generate renders are warnings, not errors: unknown variables, and files
    /// that cannot be rendered, which are copied.
    pub lenient: bool,
    /// The scripts that cargo-generate would run are left out, with warnings, not errors.
    pub skip_hooks: bool,
}

impl Reading<'_> {
    /// Settings of commands for a template that is not Kiln's own.
    pub(crate) fn lenient(skip_hooks: bool) -> Self {
        Self {
            label: None,
            lenient: true,
            skip_hooks,
        }
    }
}

impl Template {
    /// The embedded template.
    ///
    /// # Errors
    /// Its `cargo-generate.toml` is invalid.
    pub fn embedded() -> Result<Self> {
        Self::from_files("template", TEMPLATE)
    }

    /// A template of `files`, in a folder that messages call `label`.
    pub(crate) fn from_files(label: &str, files: Files) -> Result<Self> {
        let own = std::ptr::eq(files, TEMPLATE);
        let files = files.iter().map(|(path, contents, executable)| {
            file(label, path, Cow::Borrowed(*contents), *executable)
        });
        let parts = Parts {
            label: label.to_owned(),
            files: files.collect(),
            folders: BTreeSet::new(),
            special: Vec::new(),
            inherited: None,
            own,
        };
        let (template, faults) = Self::new(parts, Reading::default())?;
        Error::of_reasons(label, faults)?;
        Ok(template)
    }

    /// The folders of the templates in `folder`, below it, if there are several to choose from.
    ///
    /// # Errors
    /// A folder cannot be read, or `sub_templates` is wrong.
    pub fn choices(folder: &Path) -> Result<Vec<String>> {
        match locate::find(folder, &folder.display().to_string())? {
            Found::One(_) => Ok(Vec::new()),
            Found::Several(choices) => Ok(choices),
        }
    }

    /// Reads the template in a folder, and says why it is refused as far as its configuration tells.
    ///
    /// # Errors
    /// The folder cannot be read or has several templates, or its configuration is not TOML.
    pub(crate) fn parse_folder(folder: &Path, reading: Reading<'_>) -> Result<(Self, Vec<Error>)> {
        let own = folder.display().to_string();
        let label = reading.label.unwrap_or(&own);
        let place = match locate::find(folder, label)? {
            Found::One(place) => place,
            Found::Several(choices) => return Err(locate::several(label, &choices)),
        };
        let mut reader = FolderReader {
            label: match slashed(place.folder.strip_prefix(folder).unwrap_or(Path::new(""))) {
                below if below.is_empty() => label.to_owned(),
                below => format!("{}/{below}", label.trim_end_matches('/')),
            },
            files: Vec::new(),
            folders: BTreeSet::new(),
            special: Vec::new(),
        };
        reader.read(&place.folder, "")?;
        reader.special.sort();
        if reader.files.is_empty() {
            return Err(no_files(&reader.label));
        }
        let has_own = |file: &TemplateFile| file.path == CONFIG_FILE;
        if reader.files.len() > MOST_FILES && !reader.files.iter().any(has_own) {
            return Err(too_many(&reader.label));
        }
        let inherited = place.inherited.as_deref().map(inherited).transpose()?;
        let parts = Parts {
            label: reader.label,
            files: reader.files,
            folders: reader.folders,
            special: reader.special,
            inherited,
            own: false,
        };
        let (template, mut faults) = Self::new(parts, reading)?;
        faults.extend(template.config.wrong_regexes());
        faults.extend(syntax::wrong_conditions(&template.config));
        Ok((template, faults))
    }

    /// The template, and why it is refused as far as its configuration tells.
    fn new(parts: Parts, reading: Reading<'_>) -> Result<(Self, Vec<Error>)> {
        let mut files = without_twins(parts.files);
        let mut all = parts.folders;
        let mut notes = Vec::new();
        let own = files.remove(CONFIG_FILE);
        let mut config = match own.or(parts.inherited) {
            Some(config) => {
                let text = str::from_utf8(&config.contents)
                    .map_err(|_| not_utf8(&config).help("save it as UTF-8; it is TOML"))?;
                Config::parse(&config.source, text)?
            }
            None => Config::parse(&format!("{}/{CONFIG_FILE}", parts.label), "")?,
        };
        let mut faults = std::mem::take(&mut config.faults);
        for hook in &config.hooks {
            match reading.skip_hooks || hook.is_harmless(&files) {
                false => faults.push(hook.refusal(&config, &files)),
                true => notes.push(hook.skipped(&files)),
            }
        }
        // As in cargo-generate, they are not part of the project.
        for hook in &config.hooks {
            files.remove(&hook.plain_path());
        }
        Genignore::of(&files, &mut notes).apply(&mut files, &mut all);
        files.retain(|path, _| !NOT_OUTPUT.contains(&path.as_str()));
        for path in files.keys() {
            for folder in parents(path) {
                if !all.insert(folder.to_owned()) {
                    break;
                }
            }
        }
        let files: Vec<_> = files.into_values().collect();
        let template = Self {
            has_scripts: !parts.own && files.iter().any(may_run_scripts),
            files,
            folders: all,
            config,
            special: parts.special,
            strict: !reading.lenient,
            notes,
            own: parts.own,
        };
        Ok((template, faults))
    }

    /// Whether mistakes that cargo-generate renders are errors.
    pub fn is_strict(&self) -> bool {
        self.strict
    }

    /// The files, ordered by path.
    pub fn files(&self) -> &[TemplateFile] {
        &self.files
    }

    /// All folders, including empty ones.
    pub fn folders(&self) -> &BTreeSet<String> {
        &self.folders
    }

    /// The options, in their order in `cargo-generate.toml`, without those of conditions.
    pub fn options(&self) -> &[TemplateOption] {
        &self.config.options
    }

    /// The options that only apply if a condition holds, each with its condition, in the order of
    /// `cargo-generate.toml`. Several conditions may define an option of the same name.
    pub fn conditional_options(&self) -> impl Iterator<Item = (&str, &TemplateOption)> {
        self.config.conditional_options()
    }

    /// The option called `name`; if several conditions define it, the first.
    pub fn option(&self, name: &str) -> Option<&TemplateOption> {
        self.definitions(name).next()
    }

    /// All definitions of the option called `name`.
    pub(crate) fn definitions(&self, name: &str) -> impl Iterator<Item = &TemplateOption> {
        let all = self.config.all_options();
        all.filter(move |option| option.name == name)
    }

    /// Whether it is Kiln's own template of this version, of which the tests show what is checked of
    /// others whenever they are rendered.
    pub(crate) fn is_own(&self) -> bool {
        self.own
    }

    /// Whether a file may run a Rhai script as a filter.
    pub(crate) fn has_scripts(&self) -> bool {
        self.has_scripts
    }

    /// The version control of new projects.
    pub fn vcs(&self) -> Option<Vcs> {
        self.config.vcs
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }
}

/// The configuration at `path`, above the folder of a sub-template.
fn inherited(path: &Path) -> Result<TemplateFile> {
    let contents = fs::read(path).map_err(|cause| Error::io("read", path, cause))?;
    Ok(TemplateFile {
        path: CONFIG_FILE.to_owned(),
        source: path.display().to_string(),
        contents: Cow::Owned(contents),
        executable: false,
    })
}

/// True if a file or its name may have the filter `rhai`.
fn may_run_scripts(file: &TemplateFile) -> bool {
    // The word first: it is rare, and code is full of braces.
    let mentions =
        |text: &[u8]| memchr::memmem::find(text, b"rhai").is_some() && tags::has_liquid(text);
    mentions(&file.contents) || mentions(file.path.as_bytes())
}

fn no_files(label: &str) -> Error {
    Error::template(format!("`{label}` has no files")).help(
        "give the folder of a template: its files, and its options in a `cargo-generate.toml`",
    )
}

fn too_many(label: &str) -> Error {
    let message = format!("`{label}` has no `{CONFIG_FILE}` and more than {MOST_FILES} files");
    Error::template(message).help(
        "give the folder of the template; if it is this one, add the file, which may be empty",
    )
}

pub(crate) fn not_utf8(file: &TemplateFile) -> Error {
    let bad = str::from_utf8(&file.contents)
        .err()
        .map_or(0, |error| error.valid_up_to());
    Error::template(format!(
        "`{}` is not UTF-8 (byte {bad}), so it cannot be rendered",
        file.source
    ))
    .at_wrong_byte(&file.source, &file.contents)
    .help(format!(
        "remove the file from `include`, or add it to `exclude`, in `{CONFIG_FILE}`"
    ))
}

fn file(label: &str, path: &str, contents: Cow<'static, [u8]>, executable: bool) -> TemplateFile {
    TemplateFile {
        path: path.strip_suffix(LIQUID).unwrap_or(path).to_owned(),
        source: [label, "/", path].concat(),
        contents,
        executable,
    }
}

/// Files by path. Of two names that differ only in `.liquid`, the one with the suffix wins.
fn without_twins(files: Vec<TemplateFile>) -> BTreeMap<String, TemplateFile> {
    let mut by_path = BTreeMap::new();
    let (liquid, plain): (Vec<_>, Vec<_>) = files
        .into_iter()
        .partition(|file| file.source.ends_with(LIQUID));
    for file in plain.into_iter().chain(liquid) {
        by_path.insert(file.path.clone(), file);
    }
    by_path
}

struct FolderReader {
    label: String,
    files: Vec<TemplateFile>,
    folders: BTreeSet<String>,
    special: Vec<String>,
}

impl FolderReader {
    fn read(&mut self, folder: &Path, prefix: &str) -> Result<()> {
        let failed = |cause| Error::io("read the folder", folder, cause);
        for entry in fs::read_dir(folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name();
            let name = name.to_str().ok_or_else(|| {
                Error::template(format!(
                    "the file name `{}` is not UTF-8",
                    entry.path().display()
                ))
                .help("rename the file; use letters, digits, `-`, `_` and `.`")
            })?;
            let path = format!("{prefix}{name}");
            let kind = entry.file_type().map_err(failed)?;
            if !kind.is_dir() && !kind.is_file() {
                self.special.push(format!("{}/{path}", self.label));
            }
            if kind.is_dir() && name != ".git" && !is_build_folder(&entry.path()) {
                self.read(&entry.path(), &format!("{path}/"))?;
                self.folders.insert(path);
            } else if kind.is_file() {
                self.read_file(&entry, &path)?;
            }
        }
        Ok(())
    }

    fn read_file(&mut self, entry: &fs::DirEntry, path: &str) -> Result<()> {
        let failed = |cause| Error::io("read", &entry.path(), cause);
        let contents = fs::read(entry.path()).map_err(failed)?;
        let executable = is_executable(&entry.metadata().map_err(failed)?);
        let file = file(&self.label, path, Cow::Owned(contents), executable);
        self.files.push(file);
        Ok(())
    }
}

/// Whether a folder has a `CACHEDIR.TAG`, as those of cargo and other build tools do.
pub(crate) fn is_build_folder(folder: &Path) -> bool {
    fs::read(folder.join("CACHEDIR.TAG")).is_ok_and(|tag| tag.starts_with(CACHE_TAG))
}

/// Whether a file is executable.
#[cfg(unix)]
pub(crate) fn is_executable(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::PermissionsExt;
    metadata.permissions().mode() & 0o111 != 0
}

/// Other platforms have no executable bit.
#[cfg(not(unix))]
pub(crate) fn is_executable(_: &fs::Metadata) -> bool {
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kiln's own template is not searched for them.
    #[test]
    fn the_embedded_template_has_no_scripts() {
        let template = Template::embedded().unwrap();
        assert!(template.is_own() && !template.files.iter().any(may_run_scripts));
        let mut files = TEMPLATE.to_vec();
        files.push(("a.liquid", b"{{ 1 | rhai }}", false));
        let other = Template::from_files("template", files.leak()).unwrap();
        assert!(!other.is_own() && other.has_scripts());
    }
}
