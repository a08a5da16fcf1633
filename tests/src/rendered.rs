//! A rendered project on disk, to be compiled and run.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{Mutex, MutexGuard, PoisonError},
};

use kiln::template::Template;
use tempfile::TempDir;

use crate::{NAME, combinations, generate, repository, shared_target};

/// Two cargos at once would only wait for each other's build folder.
static CARGO: Mutex<()> = Mutex::new(());

/// A project rendered from the embedded template with the default answers.
pub struct Project {
    folder: TempDir,
    _alone: MutexGuard<'static, ()>,
}

impl Project {
    /// Renders the default project, with the lock file that all rendered projects share.
    ///
    /// # Panics
    /// The template does not render.
    pub fn default_answers() -> Self {
        Self::with_answers(&[])
    }

    /// Renders a project with other answers to some options.
    ///
    /// # Panics
    /// The template does not render, or an answer is not valid.
    pub fn with_answers(answers: &[(&str, &str)]) -> Self {
        let alone = CARGO.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = tempfile::tempdir().expect("a temporary folder");
        let template = Template::embedded().expect("an embedded template");
        let default = combinations(&template, NAME).remove(0).answers;
        let answers = answers.iter().fold(default, |all, (option, value)| {
            all.with(&template, option, value).expect("a valid answer")
        });
        let project = Project {
            folder,
            _alone: alone,
        };
        generate(&template, &answers, &project.path()).expect("a rendered project");
        let lock = repository().join("tests/fixtures/Cargo.lock");
        fs::copy(lock, project.path().join("Cargo.lock")).expect("a lock file");
        project
    }

    /// The project's folder.
    pub fn path(&self) -> PathBuf {
        self.folder.path().join(NAME)
    }

    /// Runs cargo in the project and gives what it printed.
    ///
    /// # Panics
    /// Cargo fails, or a warning is printed.
    pub fn cargo(&self, arguments: &[&str]) -> String {
        let output = self.try_cargo(arguments);
        let text = text(&output);
        assert!(
            output.status.success(),
            "cargo {arguments:?} failed:\n{text}"
        );
        assert!(
            !text.contains("warning:"),
            "cargo {arguments:?} warns:\n{text}"
        );
        text
    }

    /// Builds the project in release and gives the path of its program, which stays when another
    /// project is built.
    ///
    /// # Panics
    /// It does not build.
    pub fn build(&self) -> PathBuf {
        self.cargo(&["build", "--release"]);
        let program = self.path().join("program");
        fs::copy(shared_target().join("release").join(NAME), &program).expect("a program");
        program
    }

    /// Replaces `from`, which must be there, by `to` in a source file.
    ///
    /// # Panics
    /// The file cannot be edited so.
    pub fn edit(&self, file: &str, from: &str, to: &str) {
        let path = self.path().join("src").join(file);
        let source = fs::read_to_string(&path).expect("a source file");
        assert!(source.contains(from), "{file} has no `{from}`");
        fs::write(&path, source.replacen(from, to, 1)).expect("a source file");
    }

    /// Runs cargo in the project.
    ///
    /// # Panics
    /// Cargo cannot be started.
    pub fn try_cargo(&self, arguments: &[&str]) -> Output {
        command("cargo", arguments, &self.path())
            .env("CARGO_TARGET_DIR", shared_target())
            .output()
            .expect("cargo starts")
    }
}

/// What a program printed, both streams.
pub fn text(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(err)
    )
}

fn command(program: &str, arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    command
}
