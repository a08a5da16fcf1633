//! Git, as far as updates need it: which files are tracked, and unmerged entries of the index.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::display::slashed;

/// Time for another process to release the index, as an editor that shows the status of files, or git started by a
/// run of Kiln that was killed; and time between two attempts.
const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// The side of a merge that an entry of the index has: its stage.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Stage {
    Base = 1,
    Mine = 2,
    New = 3,
}

/// The sides of a file in conflict, to write into the index: contents and executable bit.
pub(crate) type Side<'a> = (Stage, &'a [u8], bool);

/// The git command, independent of environment variables that redirect it.
pub(crate) fn git_command() -> Command {
    let mut git = Command::new("git");
    for variable in [
        "GIT_DIR",
        "GIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_COMMON_DIR",
    ] {
        git.env_remove(variable);
    }
    git
}

/// The git command for files in a folder, whose names are no patterns.
pub(super) fn git_for(folder: &Path, args: &[&str], files: &[&Path]) -> Command {
    let mut command = git_command();
    command.arg("--literal-pathspecs").args(args).args(files);
    command.current_dir(folder);
    command
}

/// The output of git for files in a folder; `None` if it fails.
pub(crate) fn git(folder: &Path, args: &[&str], files: &[&Path]) -> Option<String> {
    run(git_for(folder, args, files), b"").ok()
}

/// The output of git for an input, or its complaint.
fn run(mut command: Command, input: &[u8]) -> Result<String, String> {
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|cause| cause.to_string())?;
    if let Some(mut stdin) = child.stdin.take() {
        // A git that fails early closes its input; its message tells why.
        let _ = stdin.write_all(input);
    }
    let output = child
        .wait_with_output()
        .map_err(|cause| cause.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}

fn with_input(folder: &Path, args: &[&str], input: &[u8]) -> Result<String, String> {
    let mut command = git_command();
    command.args(args).current_dir(folder);
    run(command, input)
}

/// As [`with_input`], for a command that writes the index, once no other process does.
///
/// # Errors
/// Git's complaint, such as that of an index that stays locked.
fn write_with_input(folder: &Path, args: &[&str], input: &[u8]) -> Result<String, String> {
    let start = Instant::now();
    loop {
        match with_input(folder, args, input) {
            // The name is in the complaint in all languages.
            Err(complaint)
                if complaint.contains("index.lock") && start.elapsed() < LOCK_TIMEOUT =>
            {
                thread::sleep(POLL);
            }
            written => return written,
        }
    }
}

/// The commit that is checked out; `None` outside a repository and before the first commit.
pub(crate) fn head(folder: &Path) -> Option<String> {
    let head = git(folder, &["rev-parse", "-q", "--verify", "HEAD"], &[])?;
    Some(head.trim().to_owned())
}

/// The entries of the index for some files, in the form that [`write_index`] takes: mode, hash,
/// stage and path in the repository. `None` outside a repository.
pub(crate) fn entries(folder: &Path, files: &[&Path]) -> Option<Vec<String>> {
    if files.is_empty() {
        return Some(Vec::new());
    }
    let options = ["ls-files", "--stage", "--full-name", "-z", "--"];
    let listed = git(folder, &options, files)?;
    let entries = listed.split('\0').filter(|entry| !entry.is_empty());
    Some(entries.map(str::to_owned).collect())
}

/// The files below a folder that git lists as unmerged; none outside a repository.
pub(crate) fn unmerged(folder: &Path) -> BTreeSet<PathBuf> {
    let listed = git(folder, &["ls-files", "--unmerged", "-z"], &[]).unwrap_or_default();
    let paths = listed
        .split('\0')
        .filter_map(|entry| entry.split_once('\t'));
    paths.map(|(_, path)| PathBuf::from(path)).collect()
}

/// The files that git tracks but, in a sparse checkout, does not write; none outside a repository.
pub(crate) fn not_checked_out(folder: &Path, files: &[&Path]) -> Vec<PathBuf> {
    if files.is_empty() {
        return Vec::new();
    }
    let options = ["ls-files", "-t", "-z", "--"];
    let listed = git(folder, &options, files).unwrap_or_default();
    let skipped = listed
        .split('\0')
        .filter_map(|entry| entry.strip_prefix("S "));
    skipped.map(PathBuf::from).collect()
}

/// Files of a project by the repository that they are in: the project's own, at the empty path, or
/// one inside, such as a submodule.
pub(crate) fn by_repository<'f>(
    project: &Path,
    files: &[&'f Path],
) -> BTreeMap<&'f Path, Vec<&'f Path>> {
    let mut all: BTreeMap<&Path, Vec<&Path>> = BTreeMap::new();
    for file in files {
        let mut folders = file.ancestors().skip(1);
        let repository = folders
            .find(|folder| project.join(folder).join(".git").exists())
            .unwrap_or(Path::new(""));
        let inner = file.strip_prefix(repository).unwrap_or(file);
        all.entry(repository).or_default().push(inner);
    }
    all
}

/// Entries of the index for a file in conflict that was at `was` before, for [`write_index`]: as in merges of Git, those
/// of its new place. `None` if the file is not tracked, in which case git knows nothing that could be unmerged.
pub(crate) fn conflict(
    folder: &Path,
    was: &Path,
    file: &Path,
    sides: &[Side<'_>],
) -> Option<Vec<String>> {
    let tracked = entries(folder, &[was])?;
    let path = tracked.first()?.split_once('\t')?.1;
    let mut lines = vec![no_entry(path, &tracked)];
    let above = path.strip_suffix(&slashed(was))?;
    let path = format!("{above}{}", slashed(file));
    for (stage, contents, executable) in sides {
        let place = format!("--path={}", slashed(file));
        let hash = with_input(folder, &["hash-object", "-w", "--stdin", &place], contents).ok()?;
        let mode = if *executable { "100755" } else { "100644" };
        lines.push(format!("{mode} {} {}\t{path}", hash.trim(), *stage as u8));
    }
    Some(lines)
}

/// The line that removes all entries of a path.
fn no_entry(path: &str, like: &[String]) -> String {
    let hash = like.first().and_then(|entry| entry.split(' ').nth(1));
    let zeros = "0".repeat(hash.map_or(40, str::len));
    format!("0 {zeros}\t{path}")
}

/// The lines that give files the entries of the index that they had.
pub(crate) fn restored(folder: &Path, files: &[&Path], had: &[String]) -> Vec<String> {
    let has = entries(folder, files).unwrap_or_default();
    let paths: BTreeSet<&str> = has
        .iter()
        .filter_map(|entry| Some(entry.split_once('\t')?.1))
        .collect();
    let removed = paths.iter().map(|path| no_entry(path, &has));
    removed.chain(had.iter().cloned()).collect()
}

/// Writes entries into the index of the repository that `folder` lies in.
///
/// # Errors
/// Git's complaint.
pub(crate) fn write_index(folder: &Path, lines: &[String]) -> Result<(), String> {
    if lines.is_empty() {
        return Ok(());
    }
    let mut input = lines.join("\0");
    input.push('\0');
    let options = ["update-index", "-z", "--index-info"];
    write_with_input(folder, &options, input.as_bytes())?;
    // Without it, git compares contents where times would do. Unmerged files make it complain.
    let _ = with_input(
        folder,
        &["update-index", "-q", "--unmerged", "--refresh"],
        b"",
    );
    Ok(())
}

/// Marks unmerged files as resolved with their present contents.
///
/// # Errors
/// Git's complaint.
pub(crate) fn resolve(folder: &Path, files: &[&Path]) -> Result<(), String> {
    if files.is_empty() {
        return Ok(());
    }
    let input: String = files.iter().map(|file| slashed(file) + "\0").collect();
    let options = ["update-index", "--add", "--remove", "-z", "--stdin"];
    write_with_input(folder, &options, input.as_bytes()).map(drop)
}
