//! Templates: files, and the options and rules of their `cargo-generate.toml`.
//!
//! [`option`] defines the options, [`answers`] their values, [`example`] the worked examples of
//! Kiln's own template, and [`history`] the templates of earlier releases.

pub mod answers;
mod check;
pub(crate) mod config;
pub(crate) mod embedded;
pub mod example;
pub mod history;
pub mod option;
mod portable;
pub(crate) mod tags;
pub(crate) mod values;
pub(crate) mod variables;

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use config::{Config, parents};
use embedded::{Files, TEMPLATE};
use option::TemplateOption;

use crate::{
    display::slashed,
    error::{Error, Result},
};

pub use config::{CONFIG_FILE, Vcs};

/// The suffix of template files; one is stripped from each name.
const LIQUID: &str = ".liquid";
/// Files at the root of a template that cargo-generate deletes.
const NOT_OUTPUT: [&str; 2] = [CONFIG_FILE, ".cargo-ok"];
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
    files: Vec<TemplateFile>,
    folders: BTreeSet<String>,
    config: Config,
    /// The first entry that is neither a file nor a folder, such as a symbolic link.
    special: Option<String>,
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
        let files = files.iter().map(|(path, contents, executable)| {
            file(label, path, Cow::Borrowed(*contents), *executable)
        });
        Self::new(label, files.collect(), BTreeSet::new(), None)
    }

    /// Reads the template in a folder. [`Template::check`] finds further mistakes.
    ///
    /// # Errors
    /// The folder cannot be read, or the template is invalid or uses a feature that Kiln does not support.
    pub fn from_folder(folder: &Path) -> Result<Self> {
        if !holds_config(folder) {
            let found = inner(&folders_in(folder)?);
            let inner = found
                .as_deref()
                .and_then(|inner| inner.strip_prefix(folder).ok());
            return Err(no_config(&folder.display().to_string(), inner));
        }
        let mut reader = FolderReader {
            label: folder.display().to_string(),
            files: Vec::new(),
            folders: BTreeSet::new(),
            special: None,
        };
        reader.read(folder, "")?;
        let template = Self::new(&reader.label, reader.files, reader.folders, reader.special)?;
        template.config.check_regexes()?;
        Ok(template)
    }

    fn new(
        label: &str,
        files: Vec<TemplateFile>,
        folders: BTreeSet<String>,
        special: Option<String>,
    ) -> Result<Self> {
        let mut files = without_twins(files);
        let config = files
            .remove(CONFIG_FILE)
            .ok_or_else(|| no_config(label, None))?;
        if files.contains_key(".genignore") {
            return Err(Error::template(format!(
                "`{label}` has a `.genignore`, which Kiln does not support"
            ))
            .help("list its entries as `ignore` in the `[template]` table instead"));
        }
        let text = str::from_utf8(&config.contents)
            .map_err(|_| not_utf8(&config).help("save it as UTF-8; it is TOML"))?;
        let config = Config::parse(&config.source, text)?;
        files.retain(|path, _| !NOT_OUTPUT.contains(&path.as_str()));
        let mut all = folders;
        for path in files.keys() {
            all.extend(parents(path).map(str::to_owned));
        }
        Ok(Self {
            files: files.into_values().collect(),
            folders: all,
            config,
            special,
        })
    }

    /// The files, ordered by path.
    pub fn files(&self) -> &[TemplateFile] {
        &self.files
    }

    /// All folders, including empty ones.
    pub fn folders(&self) -> &BTreeSet<String> {
        &self.folders
    }

    /// The options, in their order in `cargo-generate.toml`.
    pub fn options(&self) -> &[TemplateOption] {
        &self.config.options
    }

    /// The option called `name`.
    pub fn option(&self, name: &str) -> Option<&TemplateOption> {
        self.options().iter().find(|option| option.name == name)
    }

    /// The version control of new projects.
    pub fn vcs(&self) -> Option<Vcs> {
        self.config.vcs
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }
}

/// Whether a folder has a `cargo-generate.toml`.
fn holds_config(folder: &Path) -> bool {
    let names = [CONFIG_FILE.to_owned(), format!("{CONFIG_FILE}{LIQUID}")];
    let is_file = |name| fs::symlink_metadata(folder.join(name)).is_ok_and(|it| it.is_file());
    names.iter().any(is_file)
}

/// The subfolders of a folder, ordered by name, without `.git` and build folders.
fn folders_in(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |cause| Error::io("read the folder", folder, cause);
    let mut folders = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let is_folder = entry.file_type().is_ok_and(|kind| kind.is_dir());
        if is_folder && entry.file_name() != ".git" && !is_build_folder(&entry.path()) {
            folders.push(entry.path());
        }
    }
    folders.sort();
    Ok(folders)
}

/// The first template in these folders or one level below. The search goes no deeper, as other
/// folders may be large, and skips folders that cannot be read.
fn inner(folders: &[PathBuf]) -> Option<PathBuf> {
    let found = folders.iter().find(|folder| holds_config(folder));
    let below = || {
        let mut below = folders.iter().filter_map(|folder| folders_in(folder).ok());
        below.find_map(|folders| folders.into_iter().find(|folder| holds_config(folder)))
    };
    found.cloned().or_else(below)
}

/// An error for a folder without `cargo-generate.toml`; `inner` is a template found below it.
fn no_config(label: &str, inner: Option<&Path>) -> Error {
    let error = Error::template(format!("`{label}` has no `{CONFIG_FILE}`"));
    match inner {
        Some(inner) => {
            let folder = format!("{}/{}", label.trim_end_matches('/'), slashed(inner));
            error.help(format!("there is a template in `{folder}`"))
        }
        None => error.help(
            "a template needs this file for its options and rules; an empty `[placeholders]`, \
             and `[template]` with `fmt = false`, are enough",
        ),
    }
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
        source: format!("{label}/{path}"),
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
    special: Option<String>,
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
                self.special
                    .get_or_insert_with(|| format!("{}/{path}", self.label));
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
