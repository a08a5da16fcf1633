//! Queries of the machine, which tests replace.

use std::{
    env, fs, io,
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use serde::Serialize;
use sysinfo::{Disks, System};

use crate::cli::process::{Ended, Running};

/// The time limit of each query; a driver's tool may hang for ever.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// The outcome of running a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ran {
    /// The program was not found.
    Missing,
    /// The program exceeded the time limit and was killed.
    Hung,
    /// The program failed, with this message.
    Failed(String),
    /// The program printed this output.
    Said(String),
}

/// Resources of a machine in bytes, as far as known.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Resources {
    pub(super) memory: Option<u64>,
    pub(super) free_memory: Option<u64>,
    pub(super) physical_cores: Option<usize>,
    /// Hardware threads available to this process.
    pub(super) threads: Option<usize>,
    /// Free space on the disk of the current folder.
    pub(super) free_disk: Option<u64>,
}

pub(super) trait Machine {
    /// The operating system, as Rust names it: `linux`, `macos`, `windows`.
    fn system(&self) -> &str;
    /// The architecture, as Rust names it: `x86_64`, `aarch64`.
    fn architecture(&self) -> &str;
    /// Runs a program for at most [`LIMIT`].
    fn run(&self, program: &str, arguments: &[&str]) -> Ran;
    /// The value of an environment variable.
    fn variable(&self, name: &str) -> Option<String>;
    /// The text of a file.
    fn read(&self, path: &Path) -> Option<String>;
    /// The names in a folder; empty if the folder is missing.
    fn list(&self, folder: &Path) -> Vec<String>;
    fn resources(&self) -> Resources;
}

/// The machine that Kiln runs on.
pub(super) struct ThisMachine;

impl Machine for ThisMachine {
    fn system(&self) -> &str {
        env::consts::OS
    }

    fn architecture(&self) -> &str {
        env::consts::ARCH
    }

    fn run(&self, program: &str, arguments: &[&str]) -> Ran {
        run(program, arguments, LIMIT).unwrap_or_else(|cause| match cause.kind() {
            io::ErrorKind::NotFound => Ran::Missing,
            _ => Ran::Failed(cause.to_string()),
        })
    }

    fn variable(&self, name: &str) -> Option<String> {
        env::var(name).ok().filter(|value| !value.is_empty())
    }

    fn read(&self, path: &Path) -> Option<String> {
        fs::read_to_string(path).ok()
    }

    fn list(&self, folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries
            .map(|entry| entry.file_name().to_string_lossy().into_owned())
            .collect()
    }

    fn resources(&self) -> Resources {
        // A network file system may hang.
        let free_disk = within(LIMIT, free_disk).flatten();
        let (memory, free_memory) = within(LIMIT, memory).flatten().unzip();
        Resources {
            memory,
            free_memory,
            physical_cores: System::physical_core_count().ok(),
            threads: thread::available_parallelism().ok().map(usize::from),
            free_disk,
        }
    }
}

/// Runs a program with its output in a file. A pipe would stay open until all descendants of the
/// program exit.
fn run(program: &str, arguments: &[&str], limit: Duration) -> io::Result<Ran> {
    let output = tempfile::NamedTempFile::new()?;
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output.reopen()?)
        .stderr(fs::OpenOptions::new().append(true).open(output.path())?);
    let ended = Running::start(command, Some(limit))?.wait()?;
    let text = fs::read(output.path())?;
    let text = String::from_utf8_lossy(&text).trim().to_owned();
    Ok(match ended {
        Ended::Exited(status) if status.success() => Ran::Said(text),
        Ended::Exited(status) if text.is_empty() => Ran::Failed(status.to_string()),
        Ended::Exited(_) => Ran::Failed(text),
        Ended::TimedOut | Ended::Interrupted => Ran::Hung,
    })
}

/// The result of `question`, if it returns within `limit`.
fn within<T: Send + 'static>(
    limit: Duration,
    question: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    // The receiver may have given up.
    thread::spawn(move || drop(sender.send(question())));
    receiver.recv_timeout(limit).ok()
}

/// Total and free memory; in a container, within its limit.
fn memory() -> Option<(u64, u64)> {
    let mut system = System::new().ok()?;
    system.refresh_memory();
    let (all, free) = (system.total_memory(), system.available_memory());
    match system.cgroup_limits() {
        Some(limits) if limits.total_memory < all => {
            Some((limits.total_memory, limits.free_memory.min(free)))
        }
        _ => (all > 0).then_some((all, free)),
    }
}

/// Free space on the disk of the current folder, found by the longest matching mount point.
fn free_disk() -> Option<u64> {
    let folder = fs::canonicalize(env::current_dir().ok()?).ok()?;
    let disks = Disks::new_with_refreshed_list().ok()?;
    let nearest = disks
        .iter()
        .filter(|disk| folder.starts_with(disk.mount_point()))
        .max_by_key(|disk| disk.mount_point().components().count())?;
    Some(nearest.available_space())
}

#[cfg(all(test, unix))]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn programs_answer_or_not() {
        let ask = |script: &str| run("sh", &["-c", script], Duration::from_millis(400)).unwrap();
        assert_eq!(
            ask("echo out; echo more >&2"),
            Ran::Said("out\nmore".into())
        );
        assert_eq!(ask("echo bad >&2; exit 3"), Ran::Failed("bad".into()));
        assert_eq!(ask("exit 3"), Ran::Failed("exit status: 3".into()));
        let started = Instant::now();
        assert_eq!(ask("sleep 30"), Ran::Hung);
        assert!(started.elapsed() < Duration::from_secs(5));
        assert_eq!(ThisMachine.run("kiln-no-such-program", &[]), Ran::Missing);
    }

    #[test]
    fn a_question_without_an_answer_ends() {
        assert_eq!(within(Duration::from_secs(5), || 1), Some(1));
        let slow = || thread::sleep(Duration::from_secs(30));
        assert_eq!(within(Duration::from_millis(50), slow), None);
    }
}
