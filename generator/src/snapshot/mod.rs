//! Tests of your own template or project: snapshots of the rendered files, and checks that they
//! compile and train. Requires the feature `snapshot` of this crate:
//!
//! ```toml
//! [dev-dependencies]
//! kiln = { package = "burn-kiln", version = "0.3", features = ["snapshot"] }
//! ```
//!
//! A test of a template takes three lines:
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
//! [`assert_snapshot!`](crate::assert_snapshot) compares the list of all files and their contents
//! with an [insta](https://insta.rs) snapshot beside the test: `snapshots/MODULE__cuda.snap`. A
//! binary file is represented by its size and hash. Unusual whitespace is made visible: a carriage
//! return as `␍`, and a missing newline or an empty line at the end of a text by a note. After an
//! intended change, renew the snapshot with `INSTA_UPDATE=always cargo test`, or review it with
//! `cargo insta review`.
//!
//! After adding an option, show what a value changes, and that a wrong value is refused:
//!
//! ```no_run
//! use kiln::{assert_snapshot, snapshot::Project};
//!
//! # /*
//! #[test]
//! # */
//! fn the_owner() {
//!     let base = Project::render("template", &[]);
//!     let project = Project::render("template", &[("owner", "@speech/core")]);
//!     assert_snapshot!(project.changes_from(&base), "owner");
//! }
//!
//! # /*
//! #[test]
//! #[should_panic(expected = "not a value of the option `owner`")]
//! # */
//! fn an_owner_is_a_team() {
//!     Project::render("template", &[("owner", "nobody")]);
//! }
//! # the_owner();
//! # an_owner_is_a_team();
//! ```
//!
//! After adding a site, compare its markers with `todos.toml`:
//! [`todo::scan`](crate::project::todo::scan) and [`todo::read_sites`](crate::project::todo::read_sites)
//! of [`Project::path`] must list the same ids, and [`Project::try_cargo`] with a wrong edit must fail.
//! The steps of both are in `docs/generator.md`, under "Custom templates".
//!
//! Snapshots do not depend on the machine, the date or the version of Kiln: the author is always
//! `Somebody`; Kiln's version, the hash of the template, temporary folders and copyright years are
//! replaced; and of `Cargo.lock`, only the name is shown. [`Project::redact`] replaces more.
//!
//! [`Project::assert_works`] builds with cargo. All projects share a build folder, `rendered` in
//! the target folder of your tests, so that Burn is compiled once, and a `Cargo.lock`, so that all
//! use the same versions. `KILN_BUILD_DIR` sets another folder. To pin the versions, commit a lock
//! file and pass it to [`Project::lock`].
//!
//! Errors are panics with a readable message, as this module is for tests.

mod build;
mod project;
mod redaction;
mod tree;

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    thread,
};

pub use build::{text, without_progress};
#[doc(hidden)]
pub use insta;
pub use project::{Changes, Combination, NAME, Project, Snapshot, combinations};
pub use tree::{Entry, Tree, diff, read_tree};

/// Compares a [`Project`](crate::snapshot::Project), or its
/// [changes](crate::snapshot::Project::changes_from), with a named snapshot in the folder
/// `snapshots` beside the test. The name must be unique in the module.
///
/// # Panics
/// The snapshot differs or is missing: `INSTA_UPDATE=always cargo test` writes it, and `cargo insta
/// review` shows the difference.
#[macro_export]
macro_rules! assert_snapshot {
    ($value:expr, $name:expr $(,)?) => {{
        // Only a macro can see the package and module of the test.
        let place = concat!(env!("CARGO_MANIFEST_DIR"), " ", module_path!());
        let named = $crate::snapshot::Named::new(&$value, &$name, place);
        $crate::snapshot::insta::with_settings!({ omit_expression => true }, {
            $crate::snapshot::insta::assert_snapshot!(named.name(), named.text());
        });
    }};
}

/// A text to compare, with the name of its snapshot.
#[doc(hidden)]
pub struct Named {
    name: String,
    text: String,
}

/// The snapshots compared by this process.
static COMPARED: Mutex<BTreeMap<(&str, String), String>> = Mutex::new(BTreeMap::new());

impl Named {
    #[track_caller]
    pub fn new(value: &impl Snapshot, name: &impl ToString, place: &'static str) -> Self {
        let name = sanitize_filename::sanitize_with_options(
            name.to_string(),
            sanitize_filename::Options {
                // Valid file names on every platform.
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
            "two different snapshots of this module are called `{name}`: rename one"
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
                "If the change of the snapshot `{}` is intended, renew it with \
                 `INSTA_UPDATE=always cargo test`, or look at it first with `cargo insta review`.",
                self.name
            );
        }
    }
}
