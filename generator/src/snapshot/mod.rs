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
