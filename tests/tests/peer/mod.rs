//! Runs cargo-generate's library in a process of its own, with nothing of the user's around it.

use std::{path::Path, process::Command};

use kiln::{option::Answers, template::Template};
use kiln_tests::{Tree, diff, generate, read_tree};
use tempfile::TempDir;

/// An environment for cargo-generate.
pub struct Peer {
    home: TempDir,
    env: Vec<(String, String)>,
}

impl Peer {
    pub fn new() -> Self {
        Self {
            home: tempfile::tempdir().unwrap(),
            env: Vec::new(),
        }
    }

    #[allow(dead_code, reason = "not every test that has this module pollutes")]
    pub fn with_env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// Its `$CARGO_HOME`.
    #[allow(dead_code, reason = "not every test that has this module pollutes")]
    pub fn cargo_home(&self) -> &Path {
        self.home.path()
    }

    /// The tree that cargo-generate makes, or what it says instead.
    pub fn generate(
        &self,
        template: &Path,
        name: &str,
        defines: &[String],
    ) -> Result<Tree, String> {
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_peer"))
            .args([template, folder.path()])
            .arg(name)
            .args(defines)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("CARGO_HOME", self.home.path())
            .env("TMPDIR", self.home.path())
            .env("GIT_AUTHOR_NAME", "Somebody")
            .env("GIT_AUTHOR_EMAIL", "somebody@example.org")
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .current_dir(folder.path())
            .output()
            .unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        let tree = read_tree(folder.path()).unwrap();
        let made = tree.keys().next().expect("a project").clone();
        let prefix = format!("{made}/");
        let inner = tree
            .into_iter()
            .filter_map(|(path, entry)| Some((path.strip_prefix(&prefix)?.to_owned(), entry)));
        Ok(inner.collect())
    }
}

/// Checks that both routes make the same tree from these answers.
pub fn assert_same(peer: &Peer, template: &Template, source: &Path, answers: &Answers) {
    let defines: Vec<_> = answers
        .values()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let given = answers.name().given();
    let theirs = peer
        .generate(source, given, &defines)
        .unwrap_or_else(|error| panic!("cargo-generate fails for {given} {defines:?}: {error}"));

    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("project");
    generate(template, answers, &project).unwrap();
    let ours = read_tree(&project).unwrap();
    assert!(!ours.is_empty());
    let differences = diff(&theirs, &ours);
    assert!(
        theirs == ours,
        "cargo-generate (-) and kiln (+) differ for {given} {defines:?}:\n{differences}"
    );
}
