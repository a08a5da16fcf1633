//! Metadata of the program, its sources and the host.

use std::{
    env, fs,
    io::Read,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::options;
use crate::bytes::hex;

/// Timeout of queries to other programs, such as Git.
const PATIENCE: Duration = Duration::from_secs(2);

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
        let package = options::package();
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
        let sources = Path::new(options::package().folder);
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

/// The host name, if available.
pub fn host() -> Option<String> {
    let name = fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let ask = || answer(&mut Command::new("hostname"), Instant::now() + PATIENCE);
    let name = name.or_else(ask)?.trim().to_owned();
    Some(name).filter(|name| !name.is_empty())
}

/// The output of a program; `None` if it is missing, fails or exceeds the deadline.
fn answer(command: &mut Command, deadline: Instant) -> Option<String> {
    let streams = command.stdin(Stdio::null()).stderr(Stdio::null());
    let mut child = streams.stdout(Stdio::piped()).spawn().ok()?;
    let mut stdout = child.stdout.take()?;
    let (sender, receiver) = channel();
    // Reads on a thread, which a hanging program may block forever.
    thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.read_to_end(&mut bytes);
        let _ = sender.send(read.map(|_| bytes));
    });
    let printed = receiver.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    if printed.is_err() {
        child.kill().ok()?;
    }
    let succeeded = child.wait().ok()?.success();
    let bytes = printed.ok()?.ok()?;
    succeeded.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Formats a time in UTC as in RFC 3339, to the second.
///
/// Source: H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`.
pub fn utc(time: SystemTime) -> String {
    let seconds = time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let days = days + 719_468; // since 1 March of the year 0
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100); // of a year that begins in March
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
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
    fn times_are_those_of_the_calendar() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[cfg(unix)]
    #[test]
    fn a_program_that_hangs_or_fails_has_no_answer() {
        let ask = |script: &str, wait| {
            let mut command = Command::new("sh");
            answer(command.args(["-c", script]), Instant::now() + wait)
        };
        let started = Instant::now();
        assert_eq!(ask("exec sleep 60", Duration::from_millis(50)), None);
        assert!(started.elapsed() < Duration::from_secs(30));
        assert_eq!(ask("echo no; exit 3", PATIENCE), None);
        assert_eq!(ask("echo yes", PATIENCE).as_deref(), Some("yes\n"));
        let missing = answer(
            &mut Command::new("no-such-program"),
            Instant::now() + PATIENCE,
        );
        assert_eq!(missing, None);
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
