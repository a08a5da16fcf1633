//! Records the current template and examples as a release, for `kiln update`: `cargo run -p
//! kiln-tests --bin record_release`.

use std::{fmt::Write as _, fs, process::ExitCode};

use kiln::template::history::Release;
use kiln_tests::repository;
use sha2::{Digest, Sha256};

/// The number of hexadecimal digits that identify a file's contents.
const DIGITS: usize = 32;

fn main() -> ExitCode {
    let release = Release::current();
    let history = repository().join("generator/history");
    let list = history.join(format!("{}.txt", release.version()));
    if list.exists() {
        eprintln!("{} is there: releases are never changed", list.display());
        return ExitCode::from(2);
    }
    let mut lines = String::new();
    for (path, contents, executable) in release.files() {
        let mut hash = String::new();
        for byte in Sha256::digest(contents) {
            let _ = write!(hash, "{byte:02x}");
        }
        hash.truncate(DIGITS);
        let mode = if executable { "755" } else { "644" };
        let _ = writeln!(lines, "{hash} {mode} {path}");
        let objects = history.join("objects");
        fs::create_dir_all(&objects).expect("a folder");
        fs::write(objects.join(hash), contents).expect("an object");
    }
    fs::write(&list, lines).expect("a list");
    println!("recorded {}", list.display());
    ExitCode::SUCCESS
}
