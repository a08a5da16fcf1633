//! A project in a temporary folder, and what of it is in snapshots.

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
    project::{self, WriteOptions, todo::files_of},
    render::render_by,
    template::{
        Template, Vcs,
        answers::{Answers, Values, unknown_option},
    },
};

/// The name of the projects that are rendered.
pub const NAME: &str = "my-model";
pub(super) const LOCK_FILE: &str = "Cargo.lock";
/// Who writes them, with and without the address.
const AUTHOR: [&str; 2] = ["Somebody <somebody@example.org>", "Somebody"];

/// A project in a temporary folder, which goes with it.
#[derive(Debug)]
pub struct Project {
    pub(super) place: TempDir,
    pub(super) path: PathBuf,
    /// What it was made with.
    tree: Tree,
    /// The files whose contents are in snapshots, if not all.
    shown: Option<Vec<String>>,
    redactions: Redactions,
    /// Whether its lock file is its own, and none of the others' business.
    pub(super) locked: bool,
}

impl Project {
    /// Renders the template in a folder, with these answers and the defaults of all other options. A
    /// relative folder is one of your package.
    ///
    /// # Panics
    /// The template is wrong, or an answer is.
    #[track_caller]
    pub fn render(template: impl AsRef<Path>, answers: &[(&str, &str)]) -> Self {
        let make = || {
            let template = checked(template.as_ref())?;
            let answers = answers_of(&template, answers)?;
            Self::make(&template, &answers)
        };
        expect(make())
    }

    /// Renders a template that is already read.
    ///
    /// # Panics
    /// The template is wrong.
    #[track_caller]
    pub fn of_template(template: &Template, answers: &Answers) -> Self {
        expect(Self::make(template, answers))
    }

    /// Copies a project that is filled in, but for what its `.gitignore` leaves out.
    ///
    /// # Panics
    /// The folder cannot be read.
    #[track_caller]
    pub fn of_folder(folder: impl AsRef<Path>) -> Self {
        expect(Self::copy(folder.as_ref()))
    }

    /// Renders the template in a folder in all ways in which up to `most` options differ from their
    /// defaults, one after the other, each with its [label](Combination::label). Texts keep their
    /// defaults, as they cannot be enumerated.
    ///
    /// # Panics
    /// The template is wrong, or an option has no default.
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
        fs::create_dir(&path).map_err(|cause| Error::io("make the folder", &path, cause))?;
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

    /// Replaces what a regular expression matches, in paths and texts of snapshots. `$1` stands for
    /// what its first group matched.
    ///
    /// # Panics
    /// It is no regular expression.
    #[must_use]
    #[track_caller]
    pub fn redact(mut self, pattern: &str, replacement: &str) -> Self {
        if let Err(error) = self.redactions.add(pattern, replacement) {
            panic!("{error}");
        }
        self
    }

    /// Shows the contents of these files only, and of the others that they are there.
    ///
    /// # Panics
    /// The project has not all of them.
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

    /// Builds with the versions of a lock file. A relative path is one of your package.
    ///
    /// # Panics
    /// It cannot be copied.
    #[must_use]
    #[track_caller]
    pub fn lock(mut self, file: impl AsRef<Path>) -> Self {
        let file = file.as_ref();
        let copied = fs::copy(file, self.path.join(LOCK_FILE));
        expect(copied.map_err(|cause| Error::io("copy", file, cause)));
        self.locked = true;
        self
    }

    /// Its folder. What is changed there is built and tested, but is not in snapshots.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it was made with, without redactions.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// How it differs from another project, for a snapshot.
    pub fn changes_from<'p>(&'p self, base: &'p Project) -> Changes<'p> {
        Changes { base, of: self }
    }

    /// The tree as it is in snapshots.
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

/// What [`assert_snapshot!`](crate::assert_snapshot) compares.
pub trait Snapshot {
    /// The text that is compared.
    fn snapshot(&self) -> String;
}

impl Snapshot for Project {
    /// The list of all paths, then the contents of the files.
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

/// How a project differs from another.
#[derive(Debug, Clone, Copy)]
pub struct Changes<'p> {
    base: &'p Project,
    of: &'p Project,
}

impl Changes<'_> {
    /// Whether there are none.
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

/// One way to answer all options of a template.
#[derive(Debug, Clone)]
pub struct Combination {
    /// What differs from the defaults, each as `option=value`.
    pub changes: Vec<String>,
    /// The answers.
    pub answers: Answers,
}

impl Combination {
    /// What differs from the defaults, such as `ci=github+hardware=cuda`; `default` if nothing.
    pub fn label(&self) -> String {
        if self.changes.is_empty() {
            "default".to_owned()
        } else {
            self.changes.join("+")
        }
    }
}

/// Every combination of the options of a template, the defaults first. Texts keep their defaults.
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
    Ok(template)
}

fn answers_of(template: &Template, given: &[(&str, &str)]) -> Result<Answers> {
    let mut values = Values::new();
    for (key, value) in given {
        let option = template.option(key);
        let option = option.ok_or_else(|| unknown_option(template, key))?;
        values.insert((*key).to_owned(), option.parse(value)?);
    }
    Answers::complete(template, Name::parse(NAME)?, values)
}

fn place() -> Result<TempDir> {
    tempfile::tempdir().map_err(|cause| Error::io("write to the folder", &env::temp_dir(), cause))
}

/// The value, or a panic that is drawn as the binary draws an error.
#[track_caller]
pub(super) fn expect<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("\n{}", error.draw(false)))
}
