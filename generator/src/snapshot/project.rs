//! A project in a temporary folder, and its snapshot.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

use super::{
    redaction::Redactions,
    tree::{self, Entry, Tree, diff, read_tree},
};
use crate::{
    error::{Error, Result},
    name::Name,
    project::{self, WriteOptions, origin::recorded, todo::files_of},
    render::render_by,
    template::{
        Template, Vcs,
        answers::{Answers, Values, unknown_option},
        values,
    },
};

/// The name of rendered projects.
pub const NAME: &str = "my-model";
pub(super) const LOCK_FILE: &str = "Cargo.lock";
/// The author of rendered projects, with and without e-mail address.
const AUTHOR: [&str; 2] = ["Somebody <somebody@example.org>", "Somebody"];

/// A project in a temporary folder, which is deleted on drop.
#[derive(Debug)]
pub struct Project {
    pub(super) place: TempDir,
    pub(super) path: PathBuf,
    /// The original files.
    tree: Tree,
    /// The files whose contents are in snapshots; `None` for all.
    shown: Option<Vec<String>>,
    redactions: Redactions,
    /// Whether the project has a lock file of its own, which is not shared.
    pub(super) locked: bool,
}

impl Project {
    /// Renders the template in a folder with these answers, and the defaults of all other options.
    /// A relative folder is relative to your package.
    ///
    /// # Panics
    /// The template or an answer is invalid.
    #[track_caller]
    pub fn render(template: impl AsRef<Path>, answers: &[(&str, &str)]) -> Self {
        let make = || {
            let template = checked(template.as_ref())?;
            let answers = answers_of(&template, answers)?;
            Self::make(&template, &answers)
        };
        expect(make())
    }

    /// Renders a template.
    ///
    /// # Panics
    /// The template is invalid.
    #[track_caller]
    pub fn of_template(template: &Template, answers: &Answers) -> Self {
        expect(Self::make(template, answers))
    }

    /// Copies a filled-in project, without the files that its `.gitignore` excludes.
    ///
    /// # Panics
    /// The folder cannot be read.
    #[track_caller]
    pub fn of_folder(folder: impl AsRef<Path>) -> Self {
        expect(Self::copy(folder.as_ref()))
    }

    /// Renders the template in a folder once for each combination in which up to `most` options
    /// differ from their defaults, each with its [label](Combination::label). Strings keep their
    /// defaults, as they cannot be enumerated.
    ///
    /// # Panics
    /// The template is invalid, or an option has no default.
    #[track_caller]
    pub fn combinations(
        template: impl AsRef<Path>,
        most: usize,
    ) -> impl Iterator<Item = (String, Self)> {
        let template = expect(checked(template.as_ref()));
        let name = expect(Name::parse(NAME));
        let mut all = combinations(&template, &name);
        all.retain(|combination| combination.changes.len() <= most);
        all.into_iter().map(move |combination| {
            let project = Self::of_template(&template, &combination.answers);
            (combination.label(), project)
        })
    }

    fn make(template: &Template, answers: &Answers) -> Result<Self> {
        let place = place()?;
        let path = place.path().join(answers.name().package());
        let rendered = render_by(template, answers, &path, AUTHOR)?;
        recorded::check(template, answers, &rendered)?;
        let options = WriteOptions {
            force: false,
            vcs: Vcs::None,
            require_vcs: false,
        };
        project::write(&rendered, &path, options)?;
        Self::at(place, path, Redactions::default())
    }

    fn copy(folder: &Path) -> Result<Self> {
        let place = place()?;
        let real = folder
            .canonicalize()
            .map_err(|cause| Error::io("find the folder", folder, cause).into_input())?;
        let path = place.path().join(real.file_name().unwrap_or(NAME.as_ref()));
        fs::create_dir(&path).map_err(|cause| Error::io("create the folder", &path, cause))?;
        for (from, file) in files_of(&real)? {
            let to = path.join(file);
            let parent = to.parent().unwrap_or(&path);
            fs::create_dir_all(parent)
                .and_then(|()| fs::copy(&from, &to))
                .map_err(|cause| Error::io("copy", &from, cause))?;
        }
        Self::at(place, path, Redactions::of_authors())
    }

    fn at(place: TempDir, path: PathBuf, mut redactions: Redactions) -> Result<Self> {
        let tree = read_tree(&path).map_err(|cause| Error::io("read", &path, cause))?;
        redactions.add_folder(place.path());
        Ok(Self {
            place,
            path,
            locked: tree.contains_key(LOCK_FILE),
            tree,
            shown: None,
            redactions,
        })
    }

    /// Replaces matches of a regular expression in paths and texts of snapshots. `$1` in the
    /// replacement is the first group.
    ///
    /// # Panics
    /// The regular expression is invalid.
    #[must_use]
    #[track_caller]
    pub fn redact(mut self, pattern: &str, replacement: &str) -> Self {
        if let Err(error) = self.redactions.add(pattern, replacement) {
            panic!("{error}");
        }
        self
    }

    /// Shows the contents of only these files in snapshots, and lists the others.
    ///
    /// # Panics
    /// A file is missing from the project.
    #[must_use]
    #[track_caller]
    pub fn showing(mut self, files: &[&str]) -> Self {
        for file in files {
            let found = self.tree.contains_key(*file);
            assert!(found, "the project has no file `{file}` to show");
        }
        self.shown = Some(files.iter().map(|&file| file.to_owned()).collect());
        self
    }

    /// Builds with the versions of a lock file. A relative path is relative to your package.
    ///
    /// # Panics
    /// The file cannot be copied.
    #[must_use]
    #[track_caller]
    pub fn lock(mut self, file: impl AsRef<Path>) -> Self {
        let file = file.as_ref();
        let copied = fs::copy(file, self.path.join(LOCK_FILE));
        expect(copied.map_err(|cause| Error::io("copy", file, cause)));
        self.locked = true;
        self
    }

    /// The folder of the project. Changes in it are built and tested, but not in snapshots.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The original files, without redactions.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The difference from another project, for a snapshot.
    pub fn changes_from<'p>(&'p self, base: &'p Project) -> Changes<'p> {
        Changes { base, of: self }
    }

    /// The files as in snapshots.
    fn redacted(&self) -> Tree {
        let mut tree = Tree::new();
        for (path, entry) in &self.tree {
            let left_out = path.rsplit('/').next() == Some(LOCK_FILE);
            let entry = match entry {
                Entry::File { executable, .. } if left_out => Entry::File {
                    contents: b"(left out)\n".to_vec(),
                    executable: *executable,
                },
                entry => self.redactions.entry(path, entry),
            };
            tree.insert(self.redactions.text(path, path), entry);
        }
        tree
    }
}

/// A value for [`assert_snapshot!`](crate::assert_snapshot).
pub trait Snapshot {
    /// The text to compare.
    fn snapshot(&self) -> String;
}

impl Snapshot for Project {
    /// The list of all paths, followed by the contents of the files.
    fn snapshot(&self) -> String {
        let shown = |path: &str| {
            let shown = self.shown.as_ref();
            shown.is_none_or(|shown| {
                let mut shown = shown.iter().map(|file| self.redactions.text(file, file));
                shown.any(|file| file == path)
            })
        };
        tree::describe(&self.redacted(), shown)
    }
}

/// The difference between two projects.
#[derive(Debug, Clone, Copy)]
pub struct Changes<'p> {
    base: &'p Project,
    of: &'p Project,
}

impl Changes<'_> {
    /// Whether the projects are equal.
    pub fn is_empty(&self) -> bool {
        self.base.tree == self.of.tree
    }
}

impl Snapshot for Changes<'_> {
    /// A unified diff.
    fn snapshot(&self) -> String {
        diff(&self.base.redacted(), &self.of.redacted())
    }
}

/// A combination of answers to the options of a template.
#[derive(Debug, Clone)]
pub struct Combination {
    /// The answers that differ from the defaults, as `option=value`.
    pub changes: Vec<String>,
    /// All answers.
    pub answers: Answers,
}

impl Combination {
    /// The answers that differ from the defaults, such as `ci=github+hardware=cuda`; otherwise `default`.
    pub fn label(&self) -> String {
        if self.changes.is_empty() {
            "default".to_owned()
        } else {
            self.changes.join("+")
        }
    }
}

/// Every combination of the options of a template, defaults first. Strings keep their defaults.
///
/// # Panics
/// An option has no default.
#[track_caller]
pub fn combinations(template: &Template, name: &Name) -> Vec<Combination> {
    let default = expect(Answers::defaults(template, name.clone()));
    let mut all = vec![default.clone()];
    for option in template.options() {
        let other = |answers: &Answers| {
            let values = option.values().into_iter();
            let answers = answers.clone();
            values.map(move |value| {
                let value = value.to_string();
                expect(answers.clone().with(template, &option.name, &value))
            })
        };
        all = all.iter().flat_map(other).collect();
    }
    for (_, option) in template.conditional_options() {
        let other = |answers: &Answers| {
            let applies = expect(answers.defined_by(template, option));
            let values = option.values().into_iter().filter(|_| applies);
            let answers = answers.clone();
            let values = values.map(|value| {
                let value = value.to_string();
                expect(answers.clone().with(template, &option.name, &value))
            });
            let mut values: Vec<_> = values.collect();
            if values.is_empty() {
                values.push(answers);
            }
            values
        };
        all = all.iter().flat_map(other).collect();
    }
    let mut all: Vec<_> = all
        .into_iter()
        .map(|answers| Combination {
            changes: changes(&default, &answers),
            answers,
        })
        .collect();
    all.sort_by_key(|combination| !combination.changes.is_empty());
    all
}

fn changes(default: &Answers, answers: &Answers) -> Vec<String> {
    answers
        .values()
        .filter(|(key, value)| default.get(key) != Some(value))
        .map(|(key, value)| format!("{key}={value}"))
        .collect()
}

fn checked(folder: &Path) -> Result<Template> {
    let template = Template::from_folder(folder)?;
    template.check()?;
    for warning in template.warnings() {
        eprintln!("warning: {warning}");
    }
    Ok(template)
}

fn answers_of(template: &Template, given: &[(&str, &str)]) -> Result<Answers> {
    let mut values = Values::new();
    for (key, value) in given {
        let value = values::parse(template, key, value);
        let value = value.ok_or_else(|| unknown_option(template, key))?;
        values.insert((*key).to_owned(), value?);
    }
    Answers::complete(template, Name::parse(NAME)?, values)
}

fn place() -> Result<TempDir> {
    tempfile::tempdir().map_err(|cause| Error::io("write to the folder", &env::temp_dir(), cause))
}

/// The value; otherwise panics with the error as the binary draws it.
#[track_caller]
pub(super) fn expect<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("\n{}", error.draw(false)))
}
