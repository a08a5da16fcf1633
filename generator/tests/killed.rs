//! Killed at any moment, `new`, `update` and `add` leave the old or the new state.

#![cfg(unix)]

#[path = "common/versions.rs"]
mod versions;

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant, SystemTime},
};

use kiln::{
    name::Name,
    project::{engine::engine_hash, transaction},
    render::render,
    template::{Template, answers::Answers},
};
use tempfile::TempDir;

/// The number of kills for each command.
const TIMES: u32 = 70;

/// As many at most if none of them came at the moment that is looked for: beside other programs, a kill is late.
const MOST: u32 = 20 * TIMES;

/// A folder that is not in memory, where a few files are written too fast for a kill between two of them.
fn on_disk() -> TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

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

/// Makes `to` an exact copy of `from`.
fn copy(from: &Path, to: &Path) {
    copy_with("-r", from, to);
}

/// Makes `to` a copy of `from` of hard links to its files, which a command must replace, not change in place. On ext4
/// without a journal, a new file takes a millisecond after thousands were removed.
fn link(from: &Path, to: &Path) {
    copy_with("-rl", from, to);
}

fn copy_with(options: &str, from: &Path, to: &Path) {
    if to.exists() {
        fs::remove_dir_all(to).unwrap();
    }
    let status = Command::new("cp").arg(options).args([from, to]).status();
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

/// Runs a command and kills it, alternately at a random moment and shortly after it starts to
/// write. Returns whether it had started to write.
fn killed(mut command: Command, at: u32, takes: Duration, writes: impl Fn() -> bool) -> bool {
    let mut child = command.spawn().unwrap();
    if at.is_multiple_of(2) {
        thread::sleep(takes * (at % TIMES) * 2 / TIMES);
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
    for at in 0..MOST {
        if at >= TIMES && none > 0 && wrote > 0 {
            break;
        }
        let _ = fs::remove_dir_all(place.path().join("a"));
        let command = kiln(place.path(), &args);
        wrote += u32::from(killed(command, at, takes, || has_staging(place.path())));
        if place.path().join("a").exists() {
            assert!(tree(&place.path().join("a")) == whole, "at {at}");
        } else {
            none += 1;
        }
    }
    println!("{none} kills made nothing; {wrote} were writing");
    assert!(none > 0 && wrote > 0);

    // A later run removes the hidden folders, at once if they were locked before.
    for entry in fs::read_dir(place.path()).unwrap().flatten() {
        if entry.path().join("project").exists() {
            continue;
        }
        if let Ok(lock) = fs::File::options()
            .write(true)
            .open(entry.path().join("lock"))
        {
            lock.set_modified(SystemTime::now() - Duration::from_secs(120))
                .unwrap();
        }
    }
    // One was killed before it made its lock file.
    let empty = place.path().join(".kiln-new-empty");
    fs::create_dir(&empty).unwrap();
    let old = SystemTime::now() - Duration::from_secs(120);
    fs::File::open(&empty).unwrap().set_modified(old).unwrap();
    runs(place.path(), &["new", "b", "--yes", "--vcs", "none"]);
    assert!(!empty.exists());
    let left: Vec<_> = fs::read_dir(place.path()).unwrap().flatten().collect();
    let left = left
        .iter()
        .filter(|entry| entry.path().join("lock").exists());
    assert_eq!(left.count(), 0);
}

/// In an existing folder, the next `kiln new` completes the project in any case.
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
    for at in 0..MOST / 2 {
        if at >= TIMES / 2 && half > 0 {
            break;
        }
        fs::remove_dir_all(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        let journal = hidden.join("journal.json");
        killed(kiln(place.path(), &args), 2 * at + 1, takes, || {
            journal.exists()
        });
        half += u32::from(transaction::is_unfinished(&folder));
        // A run killed after its last change leaves its hidden folder to the next command.
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
    println!("{half} were half done");
    assert!(half > 0);
}

/// Kills a command that changes the project `a`, a copy of `old`. After the recovery by the next
/// command, the project must be in the old or the new state.
fn renewed(place: &Path, args: &[&str]) {
    let (old, project) = (place.join("old"), place.join("a"));
    link(&old, &project);
    let takes = runs(place, args);
    let (before, after) = (tree(&old), tree(&project));
    assert!(before != after);
    let journal = project.join(transaction::FOLDER).join("journal.json");
    let (mut undone, mut finished) = (0, 0);
    for at in 0..MOST {
        if at >= TIMES && undone > 0 {
            break;
        }
        link(&old, &project);
        killed(kiln(place, args), at, takes, || journal.exists());
        undone += u32::from(transaction::recover(&project).unwrap());
        let is = tree(&project);
        assert!(is == before || is == after, "{args:?}, at {at}");
        finished += u32::from(is == after);
    }
    assert!(tree(&old) == before, "a file was changed in place");
    println!("{args:?}: {undone} were undone, {finished} finished");
    assert!(undone > 0, "no kill came between two files");
}

fn hash_of_engine(template: &Path) -> String {
    let template = Template::from_folder(template).unwrap();
    let answers = Answers::defaults(&template, Name::parse("a").unwrap()).unwrap();
    engine_hash(&render(&template, &answers).unwrap())
}

/// A template with many files, all of which change; half of them belong to the engine, which is
/// replaced as a whole.
#[test]
fn update_changes_all_files_or_none() {
    let place = tempfile::tempdir().unwrap();
    for version in ["one", "two"] {
        let folder = place.path().join(version);
        fs::create_dir(&folder).unwrap();
        let config = "[template]\nfmt = false\ninclude = [\".kiln.toml\"]\n";
        fs::write(folder.join("cargo-generate.toml"), config).unwrap();
        for number in 0..60 {
            let only = number % 3 == 0 && (version == "one") == (number % 2 == 0);
            if !only {
                let inner = folder.join(format!("{version}-{}", number % 5));
                let inner = if number % 7 == 0 {
                    inner
                } else {
                    folder.join(if number % 2 == 0 { "engine" } else { "" })
                };
                fs::create_dir_all(&inner).unwrap();
                fs::write(inner.join(format!("{number}.txt")), version).unwrap();
            }
        }
        let record = format!(
            "kiln = \"1\"\ntemplate = \"t\"\nengine = {:?}\nname = \"a\"\n",
            hash_of_engine(&folder)
        );
        fs::write(folder.join(".kiln.toml"), record).unwrap();
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
    let place = on_disk();
    runs(
        place.path(),
        &["new", "a", "--path", "old", "--yes", "--vcs", "none"],
    );
    renewed(
        place.path(),
        &["add", "slurm", "ci", "mpi", "cuda", "--path", "a"],
    );
}

/// Runs a command in a copy of `from`, killed before each of its operations on files in turn, and
/// lets `then` look at what is left. Returns the number of operations.
fn killed_at_each(place: &Path, from: &Path, args: &[&str], then: impl Fn(usize)) -> usize {
    for at in 0.. {
        copy(from, &place.join("project"));
        let mut command = kiln(place, args);
        command.env("KILN_TEST_KILL_BEFORE", at.to_string());
        let status = command.status().unwrap();
        then(at);
        if status.code() != Some(137) {
            return at;
        }
    }
    unreachable!()
}

/// The files that belong to the project, and whether Kiln's hidden folders are left.
fn seen(project: &Path) -> (Tree, bool) {
    let mut seen = tree(project);
    // Empty folders are not committed.
    seen.retain(|path, _| project.join(path).is_file());
    let count = seen.len();
    let hidden = [transaction::FOLDER, ".kiln-update"];
    seen.retain(|path, _| !hidden.iter().any(|folder| path.starts_with(folder)));
    let left = seen.len() < count;
    (seen, left)
}

/// A project whose next update merges, adds, removes and replaces files; with a conflict if asked.
fn to_update(conflict: bool) -> versions::Place {
    let place = versions::Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    place.template("b.txt", "b\n", "B\n");
    place.write("new/added/c.txt", "c\n");
    for version in ["old", "project"] {
        place.write(&format!("{version}/gone/d.txt"), "d\n");
    }
    let line = if conflict { "one" } else { "seven" };
    let mine = versions::OLD.replace(line, "mine");
    place.write("project/a.txt", &format!("hello\n{mine}"));
    fs::remove_dir_all(place.path("project/.git")).unwrap();
    fs::rename(place.path("project"), place.path("before")).unwrap();
    place
}

const UPDATE: [&str; 7] = [
    "update",
    "project",
    "--from",
    "old",
    "--template",
    "new",
    "--allow-dirty",
];

/// With the journal and without, as in a clone of what was committed meanwhile, the next update
/// completes the project.
#[test]
fn update_can_be_repeated_wherever_it_is_killed() {
    let place = to_update(false);
    let (folder, project) = (place.folder.path(), place.path("project"));
    copy(&place.path("before"), &project);
    runs(folder, &UPDATE);
    let (after, left) = seen(&project);
    assert!(!left);
    for with_journal in [true, false] {
        let count = killed_at_each(folder, &place.path("before"), &UPDATE, |at| {
            let hidden = project.join(transaction::FOLDER);
            if !with_journal && hidden.exists() {
                fs::remove_dir_all(hidden).unwrap();
            }
            // The record is written last, as it says which template the files are from.
            let record = fs::read_to_string(project.join(".kiln.toml")).unwrap();
            let is = seen(&project).0;
            assert!(!record.contains("kiln = \"new\"") || is == after, "at {at}");
            kiln(folder, &UPDATE).status().unwrap();
            let (is, left) = seen(&project);
            assert!(is == after && !left, "at {at}, journal: {with_journal}");
        });
        println!("killed before each of {count} operations");
        assert!(count > 30, "{count}");
    }
}

const ABORT: [&str; 3] = ["update", "project", "--abort"];
const CONTINUE: [&str; 3] = ["update", "project", "--continue"];

#[test]
fn an_update_with_a_conflict_can_be_undone_wherever_it_is_killed() {
    let place = to_update(true);
    let (folder, project) = (place.folder.path(), place.path("project"));
    let before = seen(&place.path("before")).0;
    killed_at_each(folder, &place.path("before"), &UPDATE, |at| {
        // The second run completes the first or finds its conflicts.
        let status = kiln(folder, &UPDATE).status().unwrap();
        assert_eq!(status.code(), Some(1), "at {at}");
        assert!(seen(&project).1, "at {at}");
        runs(folder, &ABORT);
        assert!(seen(&project) == (before.clone(), false), "at {at}");
    });
}

#[test]
fn abort_can_be_repeated_wherever_it_is_killed() {
    let place = to_update(true);
    let (folder, project) = (place.folder.path(), place.path("project"));
    copy(&place.path("before"), &project);
    kiln(folder, &UPDATE).status().unwrap();
    copy(&project, &place.path("pending"));
    let before = seen(&place.path("before")).0;
    let count = killed_at_each(folder, &place.path("pending"), &ABORT, |at| {
        // Status 2 if it was complete.
        kiln(folder, &ABORT).status().unwrap();
        assert!(seen(&project) == (before.clone(), false), "at {at}");
    });
    assert!(count > 30, "{count}");
}

#[test]
fn continue_can_be_repeated_wherever_it_is_killed() {
    let place = to_update(true);
    let (folder, project) = (place.folder.path(), place.path("project"));
    copy(&place.path("before"), &project);
    kiln(folder, &UPDATE).status().unwrap();
    place.write("project/a.txt", "resolved\n");
    copy(&project, &place.path("pending"));
    let resolved = seen(&project).0;
    let count = killed_at_each(folder, &place.path("pending"), &CONTINUE, |at| {
        kiln(folder, &CONTINUE).status().unwrap();
        assert!(seen(&project) == (resolved.clone(), false), "at {at}");
    });
    assert!(count > 20, "{count}");
}
