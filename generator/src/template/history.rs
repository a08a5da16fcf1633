//! Embedded releases: `kiln update` and `kiln add` render the template that a project was generated
//! from, without network access.

use super::{
    Template,
    embedded::{self, EXAMPLES, Files, HISTORY, TEMPLATE, hash_files},
    example::Example,
};
use crate::error::Result;

pub use super::embedded::Release;

/// The file that records the template and answers of a project.
pub const RECORD_FILE: &str = ".kiln.toml";

impl Release {
    /// The current version of Kiln.
    pub fn current() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            template: TEMPLATE,
            examples: EXAMPLES,
        }
    }

    /// All earlier releases, oldest first.
    pub fn history() -> &'static [Self] {
        HISTORY
    }

    /// The release whose template has this [hash](Self::hash) and whose example, if given as name
    /// and hash, matches too. If several match, `version` decides.
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

    /// The version.
    pub fn version(&self) -> &'static str {
        self.version
    }

    /// The template.
    ///
    /// # Errors
    /// The template is invalid.
    pub fn template(&self) -> Result<Template> {
        Template::from_files("template", self.template)
    }

    /// The example called `name`.
    ///
    /// # Errors
    /// The example does not exist or is invalid.
    pub fn example(&self, template: &Template, name: &str) -> Result<Example> {
        Example::find(self.examples, template, name)
    }

    /// A hash of the template: of the paths, bytes and executable bits of all files except the
    /// record, which states the hash.
    pub fn hash(&self) -> String {
        let states_hash = |path: &str| path.strip_suffix(".liquid") == Some(RECORD_FILE);
        let files = self.template.iter();
        hash_files(files.filter(|(path, ..)| !states_hash(path)).copied())
    }

    /// The hash of the files of an example.
    pub(crate) fn example_hash(&self, name: &str) -> String {
        embedded::example_hash(self.examples, name)
    }

    /// Every file with its path, contents and executable bit.
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
