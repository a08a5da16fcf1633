//! Runs the library of cargo-generate or of Kiln in a process isolated from the user's environment.

#[allow(dead_code, reason = "not every test that has this module uses it")]
pub mod folders;

use std::{path::Path, process::Command};

use kiln::template::answers::Answers;
use kiln_tests::{Tree, diff, folder_in_memory, read_tree};
use tempfile::TempDir;

/// The tool that renders.
#[derive(Debug, Clone, Copy)]
pub enum Tool {
    CargoGenerate,
    Kiln,
}

/// An environment for rendering.
pub struct Peer {
    home: TempDir,
    env: Vec<(String, String)>,
}

impl Peer {
    pub fn new() -> Self {
        Self {
            home: folder_in_memory(),
            env: Vec::new(),
        }
    }

    #[allow(dead_code, reason = "not every test that has this module pollutes")]
    pub fn with_env(mut self, key: &str, value: &str) -> Self {
        self.env.push((key.to_owned(), value.to_owned()));
        self
    }

    /// The `$CARGO_HOME` of the environment.
    #[allow(dead_code, reason = "not every test that has this module pollutes")]
    pub fn cargo_home(&self) -> &Path {
        self.home.path()
    }

    /// The files that a tool renders, or its error message.
    pub fn generate(
        &self,
        tool: Tool,
        template: &Path,
        name: &str,
        defines: &[String],
    ) -> Result<Tree, String> {
        let folder = folder_in_memory();
        let tree = self.generate_in(tool, template, folder.path(), name, defines)?;
        let made = tree.keys().next().expect("a project").clone();
        let prefix = format!("{made}/");
        let inner = tree
            .into_iter()
            .filter_map(|(path, entry)| Some((path.strip_prefix(&prefix)?.to_owned(), entry)));
        Ok(inner.collect())
    }

    /// The files in `folder` after a tool rendered a project there, or its error message.
    pub fn generate_in(
        &self,
        tool: Tool,
        template: &Path,
        folder: &Path,
        name: &str,
        defines: &[String],
    ) -> Result<Tree, String> {
        let output = Command::new(env!("CARGO_BIN_EXE_peer"))
            .arg(match tool {
                Tool::CargoGenerate => "cargo-generate",
                Tool::Kiln => "kiln",
            })
            .args([template, folder])
            .arg(name)
            .args(defines)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.home.path())
            .env("CARGO_HOME", self.home.path())
            .env("TMPDIR", self.home.path())
            .env("GIT_AUTHOR_NAME", "Somebody")
            .env("GIT_AUTHOR_EMAIL", "<somebody@example.org>")
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .current_dir(folder)
            .output()
            .unwrap();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned());
        }
        Ok(read_tree(folder).unwrap())
    }

    /// The files rendered from valid answers.
    #[allow(dead_code, reason = "not every test that has this module answers")]
    pub fn render(&self, tool: Tool, template: &Path, answers: &Answers) -> Tree {
        let defines: Vec<_> = answers
            .values()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        let name = answers.name().given();
        let made = self.generate(tool, template, name, &defines);
        made.unwrap_or_else(|error| panic!("{tool:?} fails for {name} {defines:?}: {error}"))
    }
}

/// Checks that both tools render the same files from these answers.
#[allow(dead_code, reason = "not every test that has this module answers")]
pub fn assert_same(peer: &Peer, template: &Path, answers: &Answers) {
    let theirs = peer.render(Tool::CargoGenerate, template, answers);
    let ours = peer.render(Tool::Kiln, template, answers);
    assert!(!ours.is_empty());
    assert!(
        theirs == ours,
        "cargo-generate (-) and kiln (+) differ for {answers:?}:\n{}",
        diff(&theirs, &ours)
    );
}
