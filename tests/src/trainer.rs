//! A program in a folder with data, run with options in a single string.

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

/// Options must not contain spaces.
pub struct Trainer {
    pub program: PathBuf,
    /// The working folder. Links and files of other users that a test creates are removed.
    pub folder: PathBuf,
    _temporary: TempDir,
}

impl Trainer {
    /// Builds the program of a project into a folder that all users may read. The project may be dropped, so that other
    /// tests build beside the trainings.
    ///
    /// # Panics
    /// The build fails, or the folder or the copy cannot be created.
    pub fn new(project: &Project) -> Self {
        let temporary = tempfile::tempdir().expect("a temporary folder");
        let readable = Permissions::from_mode(0o755);
        fs::set_permissions(temporary.path(), readable).expect("a temporary folder");
        project.build_into(temporary.path(), &[]);
        Trainer {
            program: temporary.path().join("program"),
            folder: temporary.path().to_owned(),
            _temporary: temporary,
        }
    }

    /// The program, writing into `runs`.
    pub fn command(&self, runs: &str, options: &str) -> Command {
        let mut command = Command::new(&self.program);
        command
            .current_dir(&self.folder)
            .args(["--output-dir", runs])
            .args(options.split(' '));
        command
    }

    /// Runs the program; returns its output.
    ///
    /// # Panics
    /// The program fails.
    #[track_caller]
    pub fn run(&self, runs: &str, options: &str) -> String {
        succeeds(&mut self.command(runs, options), TRAINING)
    }

    /// Runs the program, which must fail with these messages.
    ///
    /// # Panics
    /// As for [`fails`].
    #[track_caller]
    pub fn fails(&self, runs: &str, options: &str, messages: &[&str]) {
        fails(&mut self.command(runs, options), messages);
    }

    /// Starts the program.
    ///
    /// # Panics
    /// The program cannot be started.
    pub fn start(&self, runs: &str, options: &str) -> Running {
        Running::start(&mut self.command(runs, options))
    }

    /// The path of an output folder.
    pub fn runs(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The path of a checkpoint as shown in messages.
    pub fn shown(&self, path: &Path) -> String {
        let path = path.strip_prefix(&self.folder).expect("a path in it");
        path.display().to_string()
    }
}

/// Runs `command`, which must exit with 1 and these messages.
///
/// # Panics
/// The exit status or the messages differ.
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
