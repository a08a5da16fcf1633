//! Files embedded in this binary.

use std::fmt::Display;

use sha2::{Digest, Sha256};

use crate::display::hex;

/// Path, contents and executable bit of each file.
pub(crate) type Files = &'static [(&'static str, &'static [u8], bool)];

/// Length of a template's hash in hexadecimal digits.
const DIGITS: usize = 16;

/// The template and examples of one version of Kiln.
#[derive(Debug, Clone, Copy)]
pub struct Release {
    pub(crate) version: &'static str,
    pub(crate) template: Files,
    pub(crate) examples: Files,
}

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));

/// The hash of the files of the example `name`, among the files of all examples.
pub(crate) fn example_hash(examples: Files, name: &str) -> String {
    let of_example = |path: &str| path.split_once('/').is_some_and(|(first, _)| first == name);
    let files = examples.iter().filter(|(path, ..)| of_example(path));
    hash_files(files.copied())
}

/// A hash of the paths, bytes and executable bits of `files`.
pub(crate) fn hash_files<'f>(
    files: impl Iterator<Item = (impl Display, &'f [u8], bool)>,
) -> String {
    let mut hasher = Sha256::new();
    for (path, contents, executable) in files {
        hasher.update(format!("{path}\0{executable}\0{}\0", contents.len()));
        hasher.update(contents);
    }
    let mut text = hex(hasher);
    text.truncate(DIGITS);
    text
}
