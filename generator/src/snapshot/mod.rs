//! Tests of a template of your own, or of a project: what it renders, in snapshots, and that this
//! compiles and trains. Behind the feature `snapshot` of this crate:
//!
//! ```toml
//! [dev-dependencies]
//! kiln = { package = "burn-kiln", version = "0.3", features = ["snapshot"] }
//! ```
//!
//! A test of a template is then three lines:
//!
//! ```no_run
//! use kiln::{assert_snapshot, snapshot::Project};
//!
//! # /*
//! #[test]
//! # */
//! fn a_project_for_gpus() {
//!     let project = Project::render("template", &[("hardware", "cuda")]);
//!     assert_snapshot!(project, "cuda");
//!     project.assert_works();
//! }
//! # a_project_for_gpus();
//! ```
//!
//! [`assert_snapshot!`](crate::assert_snapshot) compares the list of all files, and their contents,
//! with a file of [insta](https://insta.rs) beside the test: `snapshots/MODULE__cuda.snap`. Of binary
//! files the size and the hash stand there. What nobody sees is shown where it is unusual: a carriage
//! return as `␍`, and after a text a line that says that its last line does not end, or is empty. Where a change was meant, renew it with
//! `INSTA_UPDATE=always cargo test`, or look at it first with `cargo insta review`.
//!
//! What differs between machines, days and versions of Kiln is left out: the author is always
//! `Somebody`, and Kiln's version, the hash of the template, temporary folders and the years of a
//! copyright are replaced; of `Cargo.lock` only the name stands there. [`Project::redact`] replaces
//! more.
//!
//! [`Project::assert_works`] builds with cargo. All projects share a folder for what is built,
//! `rendered` in the folder of the builds of your tests, so that Burn is compiled once, and the
//! `Cargo.lock` in it, so that all have the same versions. `KILN_BUILD_DIR` names another folder. To
//! pin the versions, commit a lock file and name it with [`Project::lock`].
//!
//! All of this is for tests: what goes wrong is a panic with a message for people.

mod build;
mod redaction;
mod tree;

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    thread,
};

use tempfile::TempDir;

use crate::{
    error::{Error, Result},
    name::Name,
    option::{Answers, Values},
    project::{self, Vcs, WriteOptions},
    render::render_by,
    template::Template,
    todo::files_of,
};

use redaction::Redactions;

pub use build::{text, without_progress};
#[doc(hidden)]
pub use insta;
pub use tree::{Entry, Tree, diff, read_tree};

/// The name of the projects that are rendered.
pub const NAME: &str = "my-model";
/// Who writes them, with and without the address.
const AUTHOR: [&str; 2] = ["Somebody <somebody@example.org>", "Somebody"];

/// A project in a temporary folder, which goes with it.
#[derive(Debug)]
pub struct Project {
    place: TempDir,
    path: PathBuf,
    /// What it was made with.
    tree: Tree,
    /// The files whose contents are in snapshots, if not all.
    shown: Option<Vec<String>>,
    redactions: Redactions,
    /// Whether its lock file is its own, and none of the others' business.
    locked: bool,
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
            locked: tree.contains_key(build::LOCK_FILE),
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
        let copied = fs::copy(file, self.path.join(build::LOCK_FILE));
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
            let left_out = path.rsplit('/').next() == Some(build::LOCK_FILE);
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
        let option = option.ok_or_else(|| crate::option::unknown_option(template, key))?;
        values.insert((*key).to_owned(), option.parse(value)?);
    }
    Answers::complete(template, Name::parse(NAME)?, values)
}

fn place() -> Result<TempDir> {
    tempfile::tempdir().map_err(|cause| Error::io("write to the folder", &env::temp_dir(), cause))
}

/// The value, or a panic that is drawn as the binary draws an error.
#[track_caller]
fn expect<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|error| panic!("\n{}", error.draw(false)))
}

/// Compares a [`Project`](crate::snapshot::Project), or its
/// [changes](crate::snapshot::Project::changes_from), with the snapshot of a name, which lies in
/// `snapshots` beside the test. Two snapshots of a module must not have the same name.
///
/// # Panics
/// It differs, or there is none yet: `INSTA_UPDATE=always cargo test` writes it anew, and
/// `cargo insta review` shows it first.
#[macro_export]
macro_rules! assert_snapshot {
    ($value:expr, $name:expr $(,)?) => {{
        // Here, as only a macro sees the package and the module of the test.
        let place = concat!(env!("CARGO_MANIFEST_DIR"), " ", module_path!());
        let named = $crate::snapshot::Named::new(&$value, &$name, place);
        $crate::snapshot::insta::with_settings!({ omit_expression => true }, {
            $crate::snapshot::insta::assert_snapshot!(named.name(), named.text());
        });
    }};
}

/// A text that is about to be compared, with the name of its file.
#[doc(hidden)]
pub struct Named {
    name: String,
    text: String,
}

/// What was compared by this process.
static COMPARED: Mutex<BTreeMap<(&str, String), String>> = Mutex::new(BTreeMap::new());

impl Named {
    #[track_caller]
    pub fn new(value: &impl Snapshot, name: &impl ToString, place: &'static str) -> Self {
        let name = sanitize_filename::sanitize_with_options(
            name.to_string(),
            sanitize_filename::Options {
                // The same names everywhere.
                windows: true,
                replacement: "_",
                ..sanitize_filename::Options::default()
            },
        );
        let text = value.snapshot();
        let mut compared = COMPARED.lock().unwrap_or_else(PoisonError::into_inner);
        let before = compared.insert((place, name.clone()), text.clone());
        drop(compared);
        assert!(
            before.is_none_or(|before| before == text),
            "two snapshots of this module that differ are called `{name}`: give one another name"
        );
        Self { name, text }
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn text(&self) -> &str {
        &self.text
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!(
                "If the change of the snapshot `{}` was meant, renew it with \
                 `INSTA_UPDATE=always cargo test`, or look at it first with `cargo insta review`.",
                self.name
            );
        }
    }
}
