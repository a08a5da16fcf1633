//! Cargo's metadata of a project.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;
use tempfile::NamedTempFile;

use super::{args::CheckArgs, logs, problem::wait};
use crate::{
    cli::process::{Ended, Running},
    error::{Error, Result},
};

/// A project that Cargo can build.
pub(super) struct Project {
    pub(super) root: PathBuf,
    pub(super) name: String,
    /// The build folder.
    pub(super) target: PathBuf,
    default_run: Option<String>,
}

impl Project {
    /// Reads Cargo's metadata of the project in a folder.
    ///
    /// # Errors
    /// Cargo cannot be started, refuses the manifest, or finds no package in the folder; or the
    /// user pressed Ctrl-C.
    pub(super) fn find(folder: &Path) -> Result<Self> {
        let root = std::path::absolute(folder)
            .map_err(|cause| Error::io("find the folder", folder, cause))?;
        let metadata = metadata(folder, &root)?;
        let metadata: Value = serde_json::from_slice(&metadata)
            .map_err(|error| not_understood(&error.to_string()))?;
        let own = |package: &&Value| {
            let manifest = package["manifest_path"].as_str().map(Path::new);
            let manifest = manifest.and_then(Path::parent);
            manifest.is_some_and(|folder| same(folder, &root))
        };
        let packages = metadata["packages"].as_array();
        let package = packages.and_then(|packages| packages.iter().find(own));
        let package = package.ok_or_else(|| no_package(folder))?;
        Self::parse(&root, &metadata, package)
            .ok_or_else(|| not_understood("a name or the build folder is missing"))
    }

    fn parse(root: &Path, metadata: &Value, package: &Value) -> Option<Self> {
        Some(Self {
            name: package["name"].as_str()?.to_owned(),
            default_run: package["default_run"].as_str().map(str::to_owned),
            target: metadata["target_directory"].as_str()?.into(),
            root: root.to_path_buf(),
        })
    }

    /// The `cargo test` command for the contract tests.
    pub(super) fn cargo_test(&self, args: &CheckArgs) -> Command {
        let mut command = cargo(&self.root);
        command.args(["test", "--test", "contract"]);
        if args.release {
            command.arg("--release");
        }
        if args.no_default_features {
            command.arg("--no-default-features");
        }
        for features in &args.features {
            command.args(["--features", features]);
        }
        command
    }

    /// The program of the project, from the messages of a build.
    ///
    /// # Errors
    /// The build has no program, or several without a default.
    pub(super) fn program(&self, messages: &str) -> std::result::Result<PathBuf, String> {
        let programs: Vec<(String, PathBuf)> = messages.lines().filter_map(built_program).collect();
        let wanted = self.default_run.as_ref().unwrap_or(&self.name);
        let is_wanted = |(name, _): &&(String, PathBuf)| name == wanted;
        match (programs.iter().find(is_wanted), programs.as_slice()) {
            (Some((_, path)), _) | (None, [(_, path)]) => Ok(path.clone()),
            (None, []) => Err("the project has no binary target".to_owned()),
            (None, _) => Err(format!(
                "the project has {} binary targets; set `default-run` in its Cargo.toml to the one \
                 one trains",
                programs.len()
            )),
        }
    }
}

/// The output of `cargo metadata` in `root`; messages show `folder`.
fn metadata(folder: &Path, root: &Path) -> Result<Vec<u8>> {
    let temporary = |cause| Error::io("write to the folder", &env::temp_dir(), cause);
    let said = NamedTempFile::new().map_err(temporary)?;
    let complaints = NamedTempFile::new().map_err(temporary)?;
    let mut command = cargo(root);
    command
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .stdout(said.reopen().map_err(temporary)?)
        .stderr(complaints.reopen().map_err(temporary)?);
    let mut running = Running::start(command, None).map_err(|cause| cannot_run(&cause))?;
    match wait(&mut running)? {
        Ended::Exited(status) if status.success() => {
            fs::read(said.path()).map_err(|cause| Error::io("read", said.path(), cause))
        }
        Ended::Exited(_) => {
            let shown = folder.display();
            let complaints = logs::read(complaints.path())?;
            Err(
                Error::input(format!("Cargo cannot read the manifest in `{shown}`"))
                    .help(complaints.trim().to_owned()),
            )
        }
        Ended::Interrupted | Ended::TimedOut => Err(Error::interrupted()),
    }
}

fn not_understood(why: &str) -> Error {
    Error::system(format!(
        "cannot parse the output of `cargo metadata`: {why}"
    ))
    .help("`kiln doctor` lists the requirements of a project")
}

/// An error for a folder whose manifest defines only a workspace or lies in a parent folder.
fn no_package(folder: &Path) -> Error {
    let shown = folder.display();
    Error::input(format!("`{shown}` has no `Cargo.toml` with a `[package]`"))
        .help("give the folder of a project that `kiln new` created")
}

/// Whether two paths are the same; Windows has several spellings of a path.
fn same(one: &Path, other: &Path) -> bool {
    match (fs::canonicalize(one), fs::canonicalize(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

/// The name and path of the program that a Cargo message reports as built.
fn built_program(message: &str) -> Option<(String, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    let target = &message["target"];
    let is_program = message["reason"] == "compiler-artifact"
        && target["kind"].as_array()?.iter().any(|kind| kind == "bin")
        && message["profile"]["test"] == false;
    let path = message["executable"].as_str().filter(|_| is_program)?;
    Some((target["name"].as_str()?.to_owned(), path.into()))
}

fn cargo(root: &Path) -> Command {
    let mut command = Command::new(program_of_cargo());
    command
        .current_dir(root)
        .env("CARGO_TERM_COLOR", "never")
        .stdin(Stdio::null());
    command
}

fn program_of_cargo() -> OsString {
    env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

fn cannot_run(cause: &std::io::Error) -> Error {
    let cargo = program_of_cargo();
    Error::system(format!("cannot run `{}`: {cause}", cargo.to_string_lossy()))
        .help("install Rust; `kiln doctor` shows how")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn project(default_run: Option<&str>) -> Project {
        Project {
            root: PathBuf::new(),
            name: "my-model".to_owned(),
            target: PathBuf::new(),
            default_run: default_run.map(str::to_owned),
        }
    }

    fn message(kind: &str, name: &str, test: bool) -> String {
        serde_json::json!({
            "reason": "compiler-artifact",
            "target": {"kind": [kind], "name": name},
            "profile": {"test": test},
            "executable": format!("target/{name}"),
        })
        .to_string()
    }

    #[test]
    fn the_program_is_the_one_that_cargo_would_run() {
        let two = [
            message("bin", "tool", false),
            message("test", "contract", true),
            message("bin", "my-model", true),
            message("bin", "my-model", false),
        ]
        .join("\n");
        let program = |project: &Project, messages: &str| project.program(messages);
        assert_eq!(
            program(&project(None), &two).unwrap(),
            Path::new("target/my-model")
        );
        assert_eq!(
            program(&project(Some("tool")), &two).unwrap(),
            Path::new("target/tool")
        );
        let other = [message("bin", "a", false), message("bin", "b", false)];
        assert_eq!(
            program(&project(None), &other[0]).unwrap(),
            Path::new("target/a")
        );
        let error = program(&project(None), &other.join("\n")).unwrap_err();
        assert!(error.contains("`default-run`"), "{error}");
        let error = program(&project(None), "").unwrap_err();
        assert!(error.contains("no binary target"), "{error}");
    }
}
