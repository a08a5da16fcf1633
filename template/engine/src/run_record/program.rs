//! Metadata of the program and its sources.

use std::{env, fs, path::Path, process::Command, time::Instant};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::{
    bytes::hex,
    command_line::package,
    system::{PATIENCE, answer},
};

/// Variables that Git sets for hooks, naming the repository of the hook.
const GIT_VARIABLES: [&str; 3] = ["GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"];

/// The build of this program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Program {
    /// Name of the package.
    pub name: String,
    /// Version of the package.
    pub version: String,
    /// The version of Burn.
    pub burn: String,
    /// SHA-256 of the lines of `Cargo.lock`, which has the versions of all dependencies.
    pub cargo_lock: String,
    /// Architecture and operating system, such as `x86_64-linux`.
    pub target: String,
    /// `debug` or `release`.
    pub profile: String,
    /// The enabled features of `Cargo.toml`.
    pub features: Vec<String>,
}

macro_rules! features {
    ($($name:literal),* $(,)?) => { &[$(($name, cfg!(feature = $name))),*] };
}

/// The features of `Cargo.toml`, and whether each is enabled.
const FEATURES: &[(&str, bool)] = features![
    "flex",
    "cuda",
    "metal",
    "rocm",
    "vulkan",
    "wgpu",
    "gpu",
    "autotune",
    "cpu-layers",
    "download",
    "image-folder",
    "mlflow",
    "mpi",
    "remote",
    "tensorboard",
];

impl Program {
    /// The running program.
    pub fn this() -> Self {
        let package = package();
        let lock = lock_file(package.folder);
        let mut hash = Sha256::new();
        lock.lines()
            .for_each(|line| hash.update(format!("{line}\n")));
        let features = FEATURES.iter().filter(|(_, is_enabled)| *is_enabled);
        Program {
            name: package.name.to_owned(),
            version: package.version.to_owned(),
            burn: locked_version(&lock, "burn").unwrap_or_default(),
            cargo_lock: hex(hash),
            target: format!("{}-{}", env::consts::ARCH, env::consts::OS),
            profile: package.profile.to_owned(),
            features: features.map(|(name, _)| (*name).to_owned()).collect(),
        }
    }
}

/// The `Cargo.lock` of the sources or their workspace; empty if the program runs without its sources.
fn lock_file(sources: &str) -> String {
    let folders = Path::new(sources).ancestors();
    let mut files = folders.map(|folder| fs::read_to_string(folder.join("Cargo.lock")));
    files.find_map(Result::ok).unwrap_or_default()
}

/// The version of a package in the text of a `Cargo.lock`.
fn locked_version(lock: &str, package: &str) -> Option<String> {
    let name = format!("name = {package:?}");
    let mut lines = lock.lines().skip_while(|line| *line != name);
    let version = lines.nth(1)?.strip_prefix("version = \"")?;
    Some(version.strip_suffix('"')?.to_owned())
}

/// The Git state of the sources at the start of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Git {
    /// Hash of the current commit.
    pub commit: String,
    /// Whether tracked files differ from the commit.
    pub dirty: bool,
}

impl Git {
    /// The state of the sources of this program, or of the working directory if the program runs on another
    /// machine than it was built on; `None` if Git does not track them or fails.
    pub fn of_sources() -> Option<Self> {
        let sources = Path::new(package().folder);
        Git::of(if sources.is_dir() {
            sources
        } else {
            Path::new(".")
        })
    }

    fn of(folder: &Path) -> Option<Self> {
        let deadline = Instant::now() + PATIENCE;
        let git = |words: &[&str]| {
            let mut command = Command::new("git");
            command.args(["-c", "core.fsmonitor=false"]).args(words);
            // Take no lock, as another Git process may be running.
            command.current_dir(folder).env("GIT_OPTIONAL_LOCKS", "0");
            for variable in GIT_VARIABLES {
                command.env_remove(variable);
            }
            answer(&mut command, deadline)
        };
        // The file makes this fail for a project that merely lies in another repository.
        let hashes = git(&["rev-parse", "HEAD", "HEAD:./Cargo.toml"])?;
        let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
        Some(Git {
            commit: hashes.lines().next()?.to_owned(),
            dirty: !changes.is_empty(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_of_burn_is_that_of_the_lock_file() {
        let lock = "[[package]]\nname = \"burn-core\"\nversion = \"1.0.0\"\n\n\
                    [[package]]\nname = \"burn\"\nversion = \"2.3.4\"\n";
        assert_eq!(locked_version(lock, "burn").as_deref(), Some("2.3.4"));
        assert_eq!(locked_version(lock, "bur"), None);
        assert!(Program::this().burn.starts_with(char::is_numeric));
    }

    /// A feature missing in `FEATURES` would be missing in run metadata.
    #[test]
    fn every_feature_of_the_manifest_is_named() {
        let manifest = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        let lines = manifest
            .lines()
            .skip_while(|line| *line != "[features]")
            .skip(1);
        let table = lines.take_while(|line| !line.starts_with('['));
        let mut declared: Vec<&str> = table
            .filter_map(|line| Some(line.split_once(" = [")?.0))
            .filter(|name| *name != "default")
            .collect();
        let mut named: Vec<&str> = FEATURES.iter().map(|(name, _)| *name).collect();
        declared.sort_unstable();
        named.sort_unstable();
        assert_eq!(named, declared);
    }

    #[test]
    fn git_tells_the_commit_and_whether_tracked_files_differ() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let git = |words: &[&str]| {
            let mut command = Command::new("git");
            let user = [
                "-c",
                "user.name=A",
                "-c",
                "user.email=a@b",
                "-c",
                "commit.gpgsign=false",
            ];
            let command = command.current_dir(folder.path()).args(user).args(words);
            GIT_VARIABLES
                .iter()
                .for_each(|name| _ = command.env_remove(name));
            command.output().is_ok_and(|output| output.status.success())
        };
        assert_eq!(Git::of(folder.path()), None, "there is no repository");
        if !git(&["init"]) {
            return eprintln!("skipped: there is no Git");
        }
        assert_eq!(Git::of(folder.path()), None, "there is no commit");
        write("Cargo.toml", "[package]");
        assert!(git(&["add", "."]) && git(&["commit", "-m", "All"]));
        write("runs", "of no account, as it is not tracked");
        let clean = Git::of(folder.path()).unwrap();
        assert!(clean.commit.len() >= 40 && !clean.dirty, "{clean:?}");
        write("Cargo.toml", "[workspace]");
        let dirty = Git::of(folder.path()).unwrap();
        assert_eq!((dirty.commit, dirty.dirty), (clean.commit, true));
        let other = folder.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join("Cargo.toml"), "").unwrap();
        assert_eq!(Git::of(&other), None, "the repository is another project's");
    }
}
