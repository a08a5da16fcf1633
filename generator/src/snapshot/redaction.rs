//! Redaction of values that differ between machines, dates and versions of Kiln. The redacted text
//! must be the same on every machine and for every user.

use std::path::Path;

use regex::{Captures, Regex};

use super::tree::{Entry, text_of};

/// A version that follows the name Kiln.
const KILN: &str =
    r#"(?i)(\bkiln\b(?:version|[\s"'`={:(v])*)\d+\.\d+\.\d+(?:[-+][0-9a-z]+(?:[.+-][0-9a-z]+)*)?"#;
/// The record of a project, and its lines with Kiln's version and the template's hash.
const RECORD: &str = ".kiln.toml";
const RECORDED_VERSION: &str = r#"(?m)^(\s*(?:kiln|version|kiln[-_]version)\s*=\s*")[^"]*""#;
const RECORDED_HASH: &str = r"\b[0-9a-f]{16,}\b";
const COPYRIGHT: &str = r"(?im)(?:\bcopyright\b|©|\(c\)).*$";
const YEAR: &str = r"\b(?:19|20)\d\d\b";
const MANIFEST: &str = "Cargo.toml";
const AUTHORS: &str = r"(?m)^authors\s*=\s*\[[^\]]*\]";

/// Rules that replace parts of texts.
#[derive(Debug)]
pub(super) struct Redactions {
    /// Rules for every text, in order.
    all: Vec<(Regex, String)>,
    copyright: Regex,
    year: Regex,
    /// Rules for files of a given name.
    named: Vec<(&'static str, Regex, &'static str)>,
}

impl Default for Redactions {
    fn default() -> Self {
        Self {
            all: vec![(regex(KILN), "${1}[version]".to_owned())],
            copyright: regex(COPYRIGHT),
            year: regex(YEAR),
            named: vec![
                (RECORD, regex(RECORDED_VERSION), "${1}[version]\""),
                (RECORD, regex(RECORDED_HASH), "[hash]"),
            ],
        }
    }
}

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the patterns of this file are right")
}

impl Redactions {
    /// Rules for a project whose manifest names its author.
    pub fn of_authors() -> Self {
        let mut redactions = Self::default();
        let authors = (MANIFEST, regex(AUTHORS), "authors = [\"[author]\"]");
        redactions.named.push(authors);
        redactions
    }

    /// Redacts a temporary folder.
    pub fn add_folder(&mut self, folder: &Path) {
        let real = folder.canonicalize();
        for path in real.iter().map(AsRef::as_ref).chain([folder]) {
            let pattern = regex::escape(&path.display().to_string());
            self.all.push((regex(&pattern), "[folder]".to_owned()));
        }
    }

    /// Replaces matches of `pattern`.
    ///
    /// # Errors
    /// The regular expression is invalid.
    pub fn add(&mut self, pattern: &str, replacement: &str) -> Result<(), regex::Error> {
        self.all
            .push((Regex::new(pattern)?, replacement.to_owned()));
        Ok(())
    }

    /// The redacted text of the file at `path`.
    pub fn text(&self, path: &str, text: &str) -> String {
        let years = |line: &Captures<'_>| self.year.replace_all(&line[0], "[year]").into_owned();
        let mut text = self.copyright.replace_all(text, years).into_owned();
        let name = path.rsplit('/').next().unwrap_or(path);
        for (_, regex, with) in self.named.iter().filter(|(file, ..)| *file == name) {
            text = regex.replace_all(&text, *with).into_owned();
        }
        for (regex, with) in &self.all {
            text = regex.replace_all(&text, with.as_str()).into_owned();
        }
        text
    }

    /// The redacted entry at `path`; binary files are unchanged.
    pub fn entry(&self, path: &str, entry: &Entry) -> Entry {
        match entry {
            Entry::File {
                contents,
                executable,
            } if let Some(text) = text_of(contents) => Entry::File {
                contents: self.text(path, text).into_bytes(),
                executable: *executable,
            },
            entry => entry.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_volatile_is_replaced_and_nothing_else() {
        let redactions = Redactions::of_authors();
        for (file, text, expected) in [
            (
                "a.md",
                "Made with Kiln 1.20.3-rc.1.",
                "Made with Kiln [version].",
            ),
            ("Cargo.toml", "kiln = \"0.1.0\"", "kiln = \"[version]\""),
            (
                "x/Cargo.toml",
                "kiln = { version = \"0.1.0\" }",
                "kiln = { version = \"[version]\" }",
            ),
            (
                "a.md",
                "burn 0.22.1 and akiln 0.1.0",
                "burn 0.22.1 and akiln 0.1.0",
            ),
            ("a.md", "kiln needs Rust 1.95.0", "kiln needs Rust 1.95.0"),
            (
                "LICENSE",
                "Copyright (c) 2019-2026 A",
                "Copyright (c) [year]-[year] A",
            ),
            (
                "main.rs",
                "edition 2024\n// © 2025\n2025",
                "edition 2024\n// © [year]\n2025",
            ),
            (
                ".kiln.toml",
                "version = \"0.1.0\"\ntemplate = \"sha256:0123456789abcdef01\"\nci = \"none\"",
                "version = \"[version]\"\ntemplate = \"sha256:[hash]\"\nci = \"none\"",
            ),
            ("a.toml", "version = \"0.1.0\"", "version = \"0.1.0\""),
            (
                "Cargo.toml",
                "authors = [\"A <a@b>\",\n\"B\"]\nname = \"x\"",
                "authors = [\"[author]\"]\nname = \"x\"",
            ),
        ] {
            assert_eq!(redactions.text(file, text), expected, "{file}");
        }
    }

    #[test]
    fn binary_files_stay() {
        let file = Entry::File {
            contents: b"\0kiln 0.1.0".to_vec(),
            executable: false,
        };
        assert_eq!(Redactions::default().entry("a", &file), file);
    }
}
