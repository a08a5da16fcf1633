//! Killed at any moment, `new`, `update` and `add` leave the old state or the new one.

#![cfg(unix)]

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use kiln::project::transaction;

/// How often each command is killed.
const TIMES: u32 = 70;

type Tree = BTreeMap<PathBuf, Vec<u8>>;

fn tree(folder: &Path) -> Tree {
    let mut files = Tree::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(at) = folders.pop() {
        for entry in fs::read_dir(&at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().to_path_buf();
            if path.is_dir() {
                folders.push(path);
                files.insert(name, Vec::new());
            } else {
                files.insert(name, fs::read(&path).unwrap());
            }
        }
    }
    files
}

/// Makes `to` a copy of `from`, and nothing else.
fn copy(from: &Path, to: &Path) {
    if to.exists() {
        fs::remove_dir_all(to).unwrap();
    }
    let status = Command::new("cp").arg("-r").args([from, to]).status();
    assert!(status.unwrap().success());
}

fn kiln(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln"));
    command
        .args(args)
        .current_dir(folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

#[track_caller]
fn runs(folder: &Path, args: &[&str]) -> Duration {
    let start = Instant::now();
    assert!(kiln(folder, args).status().unwrap().success(), "{args:?}");
    start.elapsed()
}

/// Runs a command and kills it: every other time at a moment of the time that it takes, else shortly
/// after it has begun to write. Says whether it had.
fn killed(mut command: Command, at: u32, takes: Duration, writes: impl Fn() -> bool) -> bool {
    let mut child = command.spawn().unwrap();
    if at.is_multiple_of(2) {
        thread::sleep(takes * at * 2 / TIMES);
    } else {
        while !writes() && child.try_wait().unwrap().is_none() {}
        thread::sleep(Duration::from_micros(20) * (at % 40));
    }
    let wrote = writes();
    let _ = child.kill();
    child.wait().unwrap();
    wrote
}

fn has_staging(folder: &Path) -> bool {
    let mut entries = fs::read_dir(folder).unwrap().flatten();
    entries.any(|entry| {
        entry
            .file_name()
            .to_string_lossy()
            .starts_with(".kiln-new-")
    })
}

#[test]
fn new_makes_the_whole_project_or_none() {
    let place = tempfile::tempdir().unwrap();
    let args = ["new", "a", "--yes", "--vcs", "none"];
    let takes = runs(place.path(), &args);
    let whole = tree(&place.path().join("a"));
    let (mut none, mut wrote) = (0, 0);
    for at in 0..TIMES {
        let _ = fs::remove_dir_all(place.path().join("a"));
        let command = kiln(place.path(), &args);
        wrote += u32::from(killed(command, at, takes, || has_staging(place.path())));
        if place.path().join("a").exists() {
            assert!(tree(&place.path().join("a")) == whole, "at {at}");
        } else {
            none += 1;
        }
    }
    println!("{none} of {TIMES} made nothing; {wrote} were writing");
    assert!(none > 0 && wrote > 0);

    // What is left beside it goes with a later project.
    for entry in fs::read_dir(place.path()).unwrap().flatten() {
        if let Ok(lock) = fs::File::options()
            .write(true)
            .open(entry.path().join("lock"))
        {
            lock.set_modified(SystemTime::now() - Duration::from_secs(120))
                .unwrap();
        }
    }
    runs(place.path(), &["new", "b", "--yes", "--vcs", "none"]);
    let left: Vec<_> = fs::read_dir(place.path()).unwrap().flatten().collect();
    let left = left
        .iter()
        .filter(|entry| entry.path().join("lock").exists());
    assert_eq!(left.count(), 0);
}

/// Where the folder is there, the next `kiln new` makes it whole, whatever was left.
#[test]
fn new_can_be_repeated_in_a_folder_that_is_there() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("a");
    let args = ["new", "a", "--yes", "--vcs", "git"];
    fs::create_dir(&folder).unwrap();
    let takes = runs(place.path(), &args);
    let whole = tree(&folder);
    let hidden = folder.join(transaction::FOLDER);
    let mut half = 0;
    for at in 0..TIMES / 2 {
        fs::remove_dir_all(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        let journal = hidden.join("journal.json");
        killed(kiln(place.path(), &args), 2 * at + 1, takes, || {
            journal.exists()
        });
        half += u32::from(transaction::is_unfinished(&folder));
        // Killed when all was done, it leaves its hidden folder to the next command.
        let seen = || {
            let mut seen = tree(&folder);
            seen.retain(|path, _| !path.starts_with(transaction::FOLDER));
            seen
        };
        if seen() != whole {
            runs(place.path(), &args);
        }
        assert!(seen() == whole, "at {at}");
    }
    println!("{half} of {} were half done", TIMES / 2);
    assert!(half > 0);
}

/// Kills a command that renews the project `a`, which is `old` before; whatever is left must be the old
/// state or the new one, once the next Kiln has looked at it.
fn renewed(place: &Path, args: &[&str]) {
    let (old, project) = (place.join("old"), place.join("a"));
    copy(&old, &project);
    let takes = runs(place, args);
    let (before, after) = (tree(&old), tree(&project));
    assert!(before != after);
    let journal = project.join(transaction::FOLDER).join("journal.json");
    let (mut undone, mut finished) = (0, 0);
    for at in 0..TIMES {
        copy(&old, &project);
        killed(kiln(place, args), at, takes, || journal.exists());
        undone += u32::from(transaction::recover(&project).unwrap());
        let is = tree(&project);
        assert!(is == before || is == after, "{args:?}, at {at}");
        finished += u32::from(is == after);
    }
    println!("{args:?}: {undone} of {TIMES} were undone, {finished} finished");
    assert!(undone > 0, "no kill came between two files");
}

/// A template with many files, all of which change.
#[test]
fn update_changes_all_files_or_none() {
    let place = tempfile::tempdir().unwrap();
    for version in ["one", "two"] {
        let folder = place.path().join(version);
        fs::create_dir(&folder).unwrap();
        let config = "[template]\nfmt = false\ninclude = [\".kiln.toml\"]\n";
        fs::write(folder.join("cargo-generate.toml"), config).unwrap();
        let record = "kiln = \"1\"\ntemplate = \"t\"\nname = \"a\"\n";
        fs::write(folder.join(".kiln.toml"), record).unwrap();
        for number in 0..60 {
            let only = number % 3 == 0 && (version == "one") == (number % 2 == 0);
            if !only {
                let inner = folder.join(format!("{version}-{}", number % 5));
                let inner = if number % 7 == 0 {
                    inner
                } else {
                    folder.clone()
                };
                fs::create_dir_all(&inner).unwrap();
                fs::write(inner.join(format!("{number}.txt")), version).unwrap();
            }
        }
    }
    copy(&place.path().join("one"), &place.path().join("old"));
    fs::remove_file(place.path().join("old/cargo-generate.toml")).unwrap();
    renewed(
        place.path(),
        &["update", "a", "--from", "one", "--template", "two"],
    );
}

#[test]
fn add_changes_all_files_or_none() {
    let place = tempfile::tempdir().unwrap();
    runs(
        place.path(),
        &["new", "a", "--path", "old", "--yes", "--vcs", "none"],
    );
    renewed(
        place.path(),
        &["add", "slurm", "ci", "mpi", "cuda", "--path", "a"],
    );
}
