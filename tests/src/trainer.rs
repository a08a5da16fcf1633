//! A program in a folder with data, run with options that are written as one text.

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::{
    rendered::{Project, text},
    running::{Running, TRAINING, output, succeeds},
};

/// Options have no spaces here.
pub struct Trainer {
    pub program: PathBuf,
    /// Where it runs. Links and files of other users that a test makes do not stay.
    pub folder: PathBuf,
    _temporary: TempDir,
}

impl Trainer {
    /// The program of a project, in a folder that all users may read.
    ///
    /// # Panics
    /// It does not build.
    pub fn new(project: &Project) -> Self {
        let program = project.build();
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let readable = Permissions::from_mode(0o755);
        fs::set_permissions(temporary.path(), readable).expect("a temporary folder");
        Trainer {
            program,
            folder: temporary.path().to_owned(),
            _temporary: temporary,
        }
    }

    /// The program that writes into `runs`.
    pub fn command(&self, runs: &str, options: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.folder)
            .args(["--output-dir", runs])
            .args(options.split(' '));
        command
    }

    /// Has the program run, and gives what it prints.
    ///
    /// # Panics
    /// It fails.
    #[track_caller]
    pub fn run(&self, runs: &str, options: &str) -> String {
        succeeds(&mut self.command(runs, options), TRAINING)
    }

    /// Has the program fail with these messages.
    ///
    /// # Panics
    /// As [`fails`].
    #[track_caller]
    pub fn fails(&self, runs: &str, options: &str, messages: &[&str]) {
        fails(&mut self.command(runs, options), messages);
    }

    /// Starts the program.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(&self, runs: &str, options: &str) -> Running {
        Running::start(&mut self.command(runs, options))
    }

    /// The path of an output folder.
    pub fn runs(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The path of the checkpoint that a message names.
    pub fn shown(&self, path: &Path) -> String {
        let path = path.strip_prefix(&self.folder).expect("a path in it");
        path.display().to_string()
    }
}

/// Has `command` end with 1 and these messages.
///
/// # Panics
/// It does not.
#[track_caller]
pub fn fails(command: &mut Command, messages: &[&str]) {
    let output = output(command, TRAINING);
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(1), "{command:?}: {printed}");
    for message in messages {
        assert!(
            printed.contains(message),
            "{command:?} lacks {message:?}: {printed}"
        );
    }
}
