//! Runs the binary in an empty folder.

#![allow(dead_code, reason = "not every test uses all of it")]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use snapbox::cmd::{Command, cargo_bin};
use tempfile::TempDir;

/// An empty folder to run the binary in.
pub struct Place(TempDir);

impl Place {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn join(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Writes a file and creates its parent folders.
    pub fn put(&self, path: &str, contents: &str) {
        let path = self.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    }

    /// Writes a program, which is a script of the shell.
    #[cfg(unix)]
    pub fn put_program(&self, path: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        self.put(path, &format!("#!/bin/sh\n{script}\n"));
        fs::set_permissions(self.join(path), fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// The binary with these arguments, separated by spaces.
    pub fn kiln(&self, args: &str) -> Command {
        self.command().args(args.split_whitespace())
    }

    /// The binary, without environment variables that redirect git.
    pub fn command(&self) -> Command {
        Command::new(cargo_bin!("kiln"))
            .current_dir(self.path())
            .env_remove("GIT_DIR")
            .env("GIT_CEILING_DIRECTORIES", self.path().parent().unwrap())
    }

    /// The contents of every path in the folder; folders end in `/`.
    pub fn tree(&self) -> BTreeMap<String, Vec<u8>> {
        let mut tree = BTreeMap::new();
        read(self.path(), "", &mut tree);
        tree
    }
}

fn read(folder: &Path, prefix: &str, tree: &mut BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let path = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            read(&entry.path(), &format!("{path}/"), tree);
            tree.insert(format!("{path}/"), Vec::new());
        } else {
            tree.insert(path, fs::read(entry.path()).unwrap_or_default());
        }
    }
}
