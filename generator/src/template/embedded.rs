//! The files that are part of this binary.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// Path, contents, and whether it can be run.
pub(crate) type Files = &'static [(&'static str, &'static [u8], bool)];

/// How many hexadecimal digits identify a template.
const DIGITS: usize = 16;

/// The template of one version of Kiln, and the examples that fit it.
#[derive(Debug, Clone, Copy)]
pub struct Release {
    pub(crate) version: &'static str,
    pub(crate) template: Files,
    pub(crate) examples: Files,
}

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// The hash of the files of the example `name` among those of all examples.
pub(crate) fn example_hash(examples: Files, name: &str) -> String {
    let of_example = |path: &str| path.split_once('/').is_some_and(|(first, _)| first == name);
    hash(examples.iter().filter(|(path, ..)| of_example(path)))
}

/// The hash of some files: of their paths, bytes and modes.
pub(crate) fn hash<'f>(
    files: impl Iterator<Item = &'f (&'static str, &'static [u8], bool)>,
) -> String {
    let mut hasher = Sha256::new();
    for (path, contents, executable) in files {
        hasher.update(format!("{path}\0{executable}\0{}\0", contents.len()));
        hasher.update(contents);
    }
    let mut text = String::new();
    for byte in hasher.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    text.truncate(DIGITS);
    text
}
