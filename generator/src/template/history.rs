//! What each release of Kiln makes projects from: `kiln update` and `kiln add` render again what a
//! project was made from, without a network.

use super::{
    Template,
    embedded::{self, EXAMPLES, Files, HISTORY, TEMPLATE},
    example::Example,
};
use crate::error::Result;

pub use super::embedded::Release;

/// The file of a project that records what it was made from, with the hash of its template.
pub const RECORD_FILE: &str = ".kiln.toml";

impl Release {
    /// This version of Kiln.
    pub fn current() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            template: TEMPLATE,
            examples: EXAMPLES,
        }
    }

    /// All earlier releases, the oldest first.
    pub fn history() -> &'static [Self] {
        HISTORY
    }

    /// The release whose template has this [hash](Self::hash) and whose example, if one is named, has
    /// that hash. Of several, as a template can stay the same, that of this version is taken.
    pub fn find(version: &str, hash: &str, example: Option<(&str, &str)>) -> Option<Self> {
        let all = [Self::current()].into_iter();
        let all = all.chain(Self::history().iter().rev().copied());
        let fits = all.filter(|release| {
            let fits = |(name, hash): (&str, &str)| release.example_hash(name) == hash;
            release.hash() == hash && example.is_none_or(fits)
        });
        let fits: Vec<_> = fits.collect();
        let of_version = fits.iter().find(|release| release.version == version);
        of_version.or(fits.first()).copied()
    }

    /// Its version.
    pub fn version(&self) -> &'static str {
        self.version
    }

    /// Its template.
    ///
    /// # Errors
    /// The template is wrong.
    pub fn template(&self) -> Result<Template> {
        Template::from_files("template", self.template)
    }

    /// Its example called `name`.
    ///
    /// # Errors
    /// There is none, or it is wrong.
    pub fn example(&self, template: &Template, name: &str) -> Result<Example> {
        Example::find(self.examples, template, name)
    }

    /// The hash of its template: of the paths, bytes and modes of all files but that which states
    /// the hash.
    pub fn hash(&self) -> String {
        let states_hash = |path: &str| path.strip_suffix(".liquid") == Some(RECORD_FILE);
        embedded::hash(self.template.iter().filter(|(path, ..)| !states_hash(path)))
    }

    /// The hash of the files of an example.
    pub(crate) fn example_hash(&self, name: &str) -> String {
        embedded::example_hash(self.examples, name)
    }

    /// Every file, with the folder it is in: path, contents, and whether it can be run.
    pub fn files(&self) -> impl Iterator<Item = (String, &'static [u8], bool)> {
        let part = |folder: &'static str, files: Files| {
            let file = move |(path, bytes, executable): &(&str, &'static [u8], bool)| {
                (format!("{folder}/{path}"), *bytes, *executable)
            };
            files.iter().map(file)
        };
        part("template", self.template).chain(part("examples", self.examples))
    }
}
