//! The checksums of a checkpoint's files, in a file that `sha256sum --check` reads.

use std::path::Path;

use sha2::{Digest, Sha256};

use super::Files;
use crate::bytes::hex;

/// File of the checksums of all other files.
pub const FILE: &str = "SHA256SUMS";

/// The checksum of a file with these bytes.
pub fn checksum(bytes: &[u8]) -> String {
    hex(Sha256::new().chain_update(bytes))
}

/// The contents of the file of checksums: a line per file.
pub fn list(files: &Files) -> String {
    let lines = files.iter();
    lines
        .map(|(name, bytes)| line(&checksum(bytes), name))
        .collect()
}

/// The line of a file, with its checksum.
pub fn line(checksum: &str, name: &str) -> String {
    format!("{checksum}  {name}\n")
}

/// The checksum and the name of each file in the contents of the file of checksums.
///
/// # Errors
/// The contents are damaged; the message says how.
pub fn parse(bytes: &[u8]) -> Result<Vec<(&str, &str)>, String> {
    let damaged = || format!("its {FILE} is damaged");
    let text = str::from_utf8(bytes).map_err(|_| damaged())?;
    let mut entries = Vec::new();
    for line in text.lines() {
        let (expected, name) = line.split_once("  ").ok_or_else(damaged)?;
        if Path::new(name).file_name().is_none_or(|file| file != name) {
            return Err(format!("{}: {name:?} is no file name", damaged()));
        }
        entries.push((expected, name));
    }
    match entries.is_empty() {
        true => Err(format!("its {FILE} is empty")),
        false => Ok(entries),
    }
}
