//! Parts of an update that are left to the user: conflicts, and changes without a place.

#![cfg(unix)]

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use crate::versions::{OLD, Place, commit, git, in_conflict, runs, tree};

/// The output of git.
fn asked(folder: &Path, args: &[&str]) -> String {
    let output = Command::new("git").args(args).current_dir(folder).output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// The bytes and permissions of files.
type Files = BTreeMap<PathBuf, (Vec<u8>, u32)>;

/// All files, the index of git and its status.
fn state(project: &Path) -> (Files, String, String) {
    let files = tree(project).into_iter().map(|(path, bytes)| {
        let metadata = fs::metadata(project.join(&path)).unwrap();
        (path, (bytes, metadata.permissions().mode()))
    });
    let index = asked(project, &["ls-files", "--stage"]);
    (
        files.collect(),
        index,
        asked(project, &["status", "--porcelain"]),
    )
}

fn allow(path: PathBuf, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// `kiln update` of the project without the folders of a template.
#[track_caller]
fn update(place: &Place, option: &str, status: i32) -> String {
    runs(place.folder.path(), &["update", "project", option], status)
}

#[test]
fn conflicts_are_told_until_they_are_resolved() {
    let place = in_conflict();
    let project = place.path("project");
    let said = place.update(&[], 1);
    assert!(said.contains("kiln update project --continue"), "{said}");
    assert_eq!(
        asked(&project, &["status", "--porcelain"]),
        " M .kiln.toml\nUU a.txt\n"
    );
    for (stage, line) in [(1, "one"), (2, "1"), (3, "ONE")] {
        let text = asked(&project, &["show", &format!(":{stage}:a.txt")]);
        assert_eq!(text, format!("hello\n{}", OLD.replace("one", line)));
    }

    // Every later command that changes files finds them.
    let new = ["new", "project", "--force", "--yes"];
    let add = ["add", "word=bye", "--path", "project", "--from", "new"];
    let before = tree(&project);
    for said in [
        place.update(&[], 1),
        place.update(&["--dry-run"], 1),
        runs(place.folder.path(), &add, 1),
        runs(place.folder.path(), &new, 1),
        update(&place, "--continue", 1),
    ] {
        assert!(said.contains("left in `a.txt:2`"), "{said}");
        assert!(!said.contains("a.txt:4"), "{said}");
        assert!(said.contains("--abort"), "{said}");
    }
    assert_eq!(tree(&project), before);

    // One was forgotten.
    place.write("project/a.txt", "hello\nONE\n>>>>>>> new\ntwo\n");
    let said = update(&place, "--continue", 1);
    assert!(said.contains("left in `a.txt:3`"), "{said}");

    place.write("project/a.txt", "hello\nONE\ntwo\n");
    let said = place.update(&[], 1);
    assert!(said.contains("not ended; no conflict markers"), "{said}");
    let said = update(&place, "--continue", 0);
    assert!(
        said.contains("Ended `kiln update`: 1 file resolved"),
        "{said}"
    );
    assert_eq!(
        asked(&project, &["status", "--porcelain"]),
        " M .kiln.toml\nM  a.txt\n"
    );
    assert!(!project.join(".kiln-update").exists());
    let args = ["update", "project", "--from", "new", "--template", "new"];
    let said = runs(place.folder.path(), &args, 0);
    assert!(said.contains("Nothing to change"), "{said}");
    let said = update(&place, "--continue", 2);
    assert!(said.contains("has no update with conflicts"), "{said}");
}

/// Everything that an update can do to a file, with edits that were not committed or only staged.
#[test]
fn abort_restores_bytes_modes_and_the_index() {
    let place = in_conflict();
    let project = place.path("project");
    place.template("b.txt", "b\n", "B\n");
    place.write("new/added/c.txt", "c\n");
    for version in ["old", "project"] {
        place.write(&format!("{version}/gone.sh"), "gone\n");
    }
    commit(&project);
    place.write("project/a.txt", "hello\nstaged\n");
    git(&project, &["add", "a.txt"]);
    place.write(
        "project/a.txt",
        &format!("hello\n{}mine\n", OLD.replace("one", "1")),
    );
    place.write("project/own.txt", "own\n");
    allow(place.path("project/a.txt"), 0o640);
    allow(place.path("project/b.txt"), 0o600);
    let before = state(&project);

    let said = place.update(&["--allow-dirty"], 1);
    for line in [
        "conflict  a.txt",
        "added     added/c.txt",
        "removed   gone.sh",
    ] {
        assert!(said.contains(line), "{line} in {said}");
    }
    assert_ne!(state(&project), before);
    // The user tries to resolve it.
    allow(place.path("project/a.txt"), 0o644);
    place.write("project/a.txt", "tried\n");
    place.write("project/added/c.txt", "tried\n");
    git(&project, &["add", "-A"]);
    git(
        &project,
        &["reset", "-q", "own.txt", "gone.sh", "b.txt", ".kiln.toml"],
    );
    let said = update(&place, "--abort", 0);
    assert!(
        said.contains("Undid `kiln update`: restored 5 files"),
        "{said}"
    );
    assert_eq!(state(&project), before);
    assert!(!project.join("added").exists());

    // Without git too.
    fs::remove_dir_all(place.path("project/.git")).unwrap();
    let before = state(&project).0;
    place.update(&["--allow-dirty"], 1);
    update(&place, "--abort", 0);
    assert_eq!(state(&project).0, before);
}

#[test]
fn abort_does_not_go_behind_a_commit() {
    let place = in_conflict();
    place.update(&[], 1);
    commit(&place.path("project"));
    let before = state(&place.path("project"));
    let said = update(&place, "--abort", 2);
    assert!(said.contains("commits were made since"), "{said}");
    assert_eq!(state(&place.path("project")), before);
    // A clone does not have the hidden folder.
    fs::remove_dir_all(place.path("project/.kiln-update")).unwrap();
    let args = ["update", "project", "--from", "new", "--template", "new"];
    let said = runs(place.folder.path(), &args, 1);
    assert!(
        said.contains("conflict markers are left in `a.txt:2`"),
        "{said}"
    );
}

#[test]
fn a_project_in_a_folder_of_a_repository_has_its_conflicts_in_git() {
    let place = in_conflict();
    fs::remove_dir_all(place.path("project/.git")).unwrap();
    git(place.folder.path(), &["init", "-q"]);
    commit(place.folder.path());
    place.update(&[], 1);
    let short = ["status", "--porcelain"];
    let told = " M project/.kiln.toml\nUU project/a.txt\n";
    assert_eq!(asked(place.folder.path(), &short), told);
    let said = place.update(&[], 1);
    assert!(said.contains("`a.txt:2`"), "{said}");
    update(&place, "--abort", 0);
    assert_eq!(asked(place.folder.path(), &short), "");
}

#[test]
fn git_is_told_at_the_next_run_if_its_index_was_locked() {
    for next in [None, Some("--continue")] {
        let place = in_conflict();
        let lock = place.path("project/.git/index.lock");
        fs::write(&lock, "").unwrap();
        let said = place.update(&[], 1);
        assert!(said.contains("Git does not show the conflicts"), "{said}");
        fs::remove_file(lock).unwrap();
        let said = match next {
            None => place.update(&[], 1),
            Some(option) => update(&place, option, 1),
        };
        assert!(said.contains("`a.txt:2`"), "{said}");
        let status = asked(&place.path("project"), &["status", "--porcelain"]);
        assert!(status.contains("UU a.txt"), "{next:?}: {status}");
    }
}

#[test]
fn an_index_that_is_locked_for_a_moment_is_waited_for() {
    let place = in_conflict();
    let lock = place.path("project/.git/index.lock");
    fs::write(&lock, "").unwrap();
    let other = thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        fs::remove_file(lock).unwrap();
    });
    let said = place.update(&[], 1);
    other.join().unwrap();
    assert!(!said.contains("Git does not show the conflicts"), "{said}");
    let status = asked(&place.path("project"), &["status", "--porcelain"]);
    assert!(status.contains("UU a.txt"), "{status}");
}

/// As in a merge of Git.
#[test]
fn a_conflict_in_a_file_that_the_template_moved_is_in_git_at_the_new_place() {
    let place = in_conflict();
    let project = place.path("project");
    fs::create_dir(place.path("new/in")).unwrap();
    fs::rename(place.path("new/a.txt"), place.path("new/in/moved.txt")).unwrap();
    place.template("cargo-generate.toml", "\"a.txt\"", "\"in/moved.txt\"");
    let before = state(&project);
    let short = ["status", "--porcelain"];
    for end in ["--abort", "--continue"] {
        let said = place.update(&[], 1);
        assert!(said.contains("conflict  in/moved.txt"), "{said}");
        let told = " M .kiln.toml\nD  a.txt\nUU in/moved.txt\n";
        assert_eq!(asked(&project, &short), told);
        let stages = asked(&project, &["ls-files", "--unmerged"]);
        assert_eq!(stages.lines().count(), 3, "{stages}");
        if end == "--continue" {
            place.write("project/in/moved.txt", "resolved\n");
        }
        update(&place, end, 0);
        if end == "--abort" {
            assert_eq!(state(&project), before);
        }
    }
    let resolved = " M .kiln.toml\nD  a.txt\nA  in/moved.txt\n";
    assert_eq!(
        asked(&project, &[&short[..], &["--no-renames"]].concat()),
        resolved
    );
}

#[test]
fn an_unfinished_merge_of_git_comes_first() {
    let place = in_conflict();
    let project = place.path("project");
    git(&project, &["checkout", "-q", "-b", "other", "HEAD~1"]);
    place.write("project/b.txt", "theirs\n");
    commit(&project);
    git(&project, &["checkout", "-q", "-"]);
    place.write("project/b.txt", "ours\n");
    commit(&project);
    let merge = Command::new("git")
        .args([
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "merge",
            "-q",
            "other",
        ])
        .current_dir(&project)
        .output();
    assert!(!merge.unwrap().status.success());
    let said = place.update(&["--allow-dirty"], 1);
    assert!(said.contains("markers are left in `b.txt:1`"), "{said}");
    place.write("project/b.txt", "resolved\n");
    let said = place.update(&["--allow-dirty"], 1);
    assert!(said.contains("unmerged files, such as `b.txt`"), "{said}");
}

/// A binary file has no markers: the template's version is kept beside.
#[test]
fn both_versions_of_a_binary_file_are_kept() {
    let place = Place::new();
    for version in ["old", "project", "new"] {
        place.write(&format!("{version}/data.gz"), &format!("\0{version}\n"));
    }
    commit(&place.path("project"));
    let said = place.update(&[], 1);
    assert!(said.contains("kept in .kiln-patches/data.gz"), "{said}");
    assert_eq!(place.read("project/.kiln-patches/data.gz"), "\0new\n");
    assert_eq!(place.read("project/data.gz"), "\0project\n");
    let status = asked(&place.path("project"), &["status", "--porcelain"]);
    assert!(status.contains("UU data.gz"), "{status}");
    update(&place, "--abort", 0);
    assert!(!place.path("project/.kiln-patches").exists());
}

#[test]
fn a_file_that_the_user_moved_is_followed() {
    let place = Place::new();
    let project = place.path("project");
    place.template("a.txt", "one\n", "ONE\n");
    fs::create_dir(place.path("project/sub")).unwrap();
    git(&project, &["mv", "a.txt", "sub/moved.txt"]);
    let mine = format!("hello\n{OLD}");
    place.write("project/sub/moved.txt", &mine.replace("seven", "7"));
    let said = place.update(&[], 2);
    assert!(
        said.contains("not committed to git: `sub/moved.txt`"),
        "{said}"
    );
    commit(&project);
    let said = place.update(&[], 0);
    let line =
        "merged    sub/moved.txt  your changes and the template's; moved: `a.txt` in the template";
    assert!(said.contains(line), "{said}");
    let both = mine.replace("seven", "7").replace("one", "ONE");
    assert_eq!(place.read("project/sub/moved.txt"), both);
    assert!(!place.path("project/a.txt").exists());

    // A conflict in it.
    place.write("old/a.txt", &place.read("new/a.txt"));
    place.template("a.txt", "seven\n", "SEVEN\n");
    commit(&project);
    let said = place.update(&[], 1);
    assert!(said.contains("conflict  sub/moved.txt"), "{said}");
    let status = asked(&project, &["status", "--porcelain"]);
    assert!(status.contains("UU sub/moved.txt"), "{status}");
    update(&place, "--abort", 0);
    assert_eq!(asked(&project, &["status", "--porcelain"]), "");
}

#[test]
fn a_change_without_a_place_is_kept_and_told_until_it_is_dealt_with() {
    let place = Place::new();
    let project = place.path("project");
    place.template("a.txt", "one\n", "ONE\n");
    fs::remove_file(place.path("project/a.txt")).unwrap();
    commit(&project);
    let said = place.update(&["--dry-run"], 1);
    assert!(!place.path("project/.kiln-patches").exists(), "{said}");
    let said = place.update(&[], 1);
    let line = "left out  a.txt       changed in the template, but you removed the file; kept in \
                .kiln-patches/a.txt.patch";
    assert!(said.contains(line), "{said}");
    let patch = place.read("project/.kiln-patches/a.txt.patch");
    assert!(patch.starts_with("--- a/a.txt\n+++ b/a.txt\n@@"), "{patch}");

    // Every later command tells it.
    let again = ["update", "project", "--from", "new", "--template", "new"];
    let said = runs(place.folder.path(), &again, 1);
    assert!(said.contains("Nothing to change"), "{said}");
    let todos = ["todos", "project"];
    for said in [said, runs(place.folder.path(), &todos, 2)] {
        assert!(
            said.contains("1 change of the template had no place"),
            "{said}"
        );
        assert!(said.contains("project/.kiln-patches/a.txt.patch"), "{said}");
    }
    // It applies to what the template had.
    place.write("project/a.txt", &format!("hello\n{OLD}"));
    git(&project, &["apply", ".kiln-patches/a.txt.patch"]);
    assert_eq!(
        place.read("project/a.txt"),
        place.read("new/a.txt").replace("{{word}}", "hello")
    );
    fs::remove_file(place.path("project/.kiln-patches/a.txt.patch")).unwrap();
    runs(place.folder.path(), &again, 0);
    assert!(!place.path("project/.kiln-patches").exists());
}

/// The user's edits of a file go where the template moved it.
#[test]
fn a_file_that_the_template_moved_takes_the_users_edits_along() {
    let place = Place::new();
    let project = place.path("project");
    let text = place.read("old/a.txt");
    fs::remove_file(place.path("new/a.txt")).unwrap();
    place.template("cargo-generate.toml", "\"a.txt\"", "\"moved.txt\"");
    let mine = format!("hello\n{}", OLD.replace("seven", "7"));
    place.write("project/a.txt", &mine);
    commit(&project);
    for to in ["ONE", "one"] {
        place.write("new/moved.txt", &text.replace("one", to));
        let said = place.update(&[], 0);
        assert!(
            said.contains("moved by the template from `a.txt`"),
            "{said}"
        );
        assert_eq!(place.read("project/moved.txt"), mine.replace("one", to));
        assert!(!place.path("project/a.txt").exists());
        git(&project, &["clean", "-qfd"]);
        git(&project, &["reset", "-q", "--hard"]);
    }
    // Both moved it: the user to another place.
    git(&project, &["mv", "a.txt", "elsewhere.txt"]);
    commit(&project);
    let said = place.update(&[], 0);
    assert!(said.contains("kept      elsewhere.txt"), "{said}");
    assert_eq!(place.read("project/elsewhere.txt"), mine);
}
