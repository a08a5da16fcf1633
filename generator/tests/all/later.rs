//! Projects in a later life: worktrees, sparse checkouts, submodules and merged branches.

#![cfg(unix)]

use std::{fs, path::Path, process::Command};

use crate::versions::{OLD, Place, commit, git, in_conflict, runs};

/// Git's output, even if it fails.
fn asked(folder: &Path, args: &[&str]) -> String {
    let output = Command::new("git")
        .args(["-c", "user.name=a", "-c", "user.email=a@b"])
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap();
    crate::versions::text(&output)
}

/// The end of the first run was not seen, so it is repeated; the new template has one more option.
#[test]
fn an_update_can_be_repeated_after_the_template_got_an_option() {
    let place = Place::new();
    place.template("b.txt", "b\n", "B\n");
    place.template(
        "cargo-generate.toml",
        "[placeholders.word]",
        "[placeholders.more]\ntype = \"string\"\nprompt = \"?\"\ndefault = \"m\"\n[placeholders.word]",
    );
    place.template(".kiln.toml.liquid", "word =", "more = \"{{more}}\"\nword =");
    let said = place.update(&[], 0);
    assert!(said.contains("replaced  b.txt"), "{said}");
    let said = place.update(&[], 0);
    assert!(said.contains("Nothing to change"), "{said}");
    // An option that neither has is a mistake.
    let record = place.read("project/.kiln.toml");
    place.write("project/.kiln.toml", &record.replace("more =", "less ="));
    let said = place.update(&[], 2);
    assert!(said.contains("there is no option `less`"), "{said}");
}

/// Two branches with different updates meet; the record of the earlier one lets the next update
/// merge what is missing.
#[test]
fn a_record_with_the_markers_of_a_merge_is_named() {
    let place = Place::new();
    let project = place.path("project");
    place.template("b.txt", "b\n", "B\n");
    git(&project, &["checkout", "-q", "-b", "updated"]);
    place.update(&[], 0);
    commit(&project);
    git(&project, &["checkout", "-q", "-"]);
    let record = place.read("project/.kiln.toml");
    let other = record.replace("kiln = \"old\"", "kiln = \"other\"");
    place.write("project/.kiln.toml", &other);
    commit(&project);
    asked(&project, &["merge", "-q", "updated"]);

    let folder = place.folder.path();
    let add = ["add", "word=bye", "--path", "project", "--from", "old"];
    for said in [place.update(&[], 1), runs(folder, &add, 1)] {
        assert!(said.contains(".kiln.toml:1`"), "{said}");
        assert!(said.contains("those of the earlier version"), "{said}");
    }
    place.write("project/.kiln.toml", &record);
    place.write("project/b.txt", "b\n");
    commit(&project);
    let said = place.update(&[], 0);
    assert!(said.contains("replaced  b.txt"), "{said}");
}

/// A file that a sparse checkout leaves out is not one that the user removed.
#[test]
fn a_sparse_checkout_without_what_changes_is_refused() {
    let place = Place::new();
    let project = place.path("project");
    for version in ["old", "new", "project"] {
        place.write(&format!("{version}/sub/c.txt"), "c\n");
        place.write(&format!("{version}/sub/same.txt"), "same\n");
    }
    commit(&project);
    let rules = ["sparse-checkout", "set", "--no-cone", "/*", "!/sub"];
    git(&project, &rules);
    assert!(!place.path("project/sub").exists());
    // Unchanged parts may be left out.
    place.template("b.txt", "b\n", "B\n");
    place.update(&[], 0);
    commit(&project);

    for change in ["C\n", ""] {
        let path = place.path("new/sub/c.txt");
        match change {
            "" => fs::remove_file(path).unwrap(),
            text => fs::write(path, text).unwrap(),
        }
        let said = place.update(&[], 2);
        assert!(said.contains("such as `sub/c.txt`"), "{said}");
        assert!(said.contains("git sparse-checkout disable"), "{said}");
        assert_eq!(asked(&project, &["status", "--porcelain"]), "");
    }
    git(&project, &["sparse-checkout", "disable"]);
    let said = place.update(&[], 0);
    assert!(said.contains("removed   sub/c.txt"), "{said}");
}

/// The engine is a submodule: what is committed there is committed, and it has not been edited.
#[test]
fn an_engine_in_a_submodule_is_a_repository_of_its_own() {
    let place = Place::with_engine();
    let engine = place.path("project/engine");
    git(&engine, &["init", "-q"]);
    commit(&engine);
    let said = place.update(&["--dry-run"], 0);
    assert!(!said.contains("was edited"), "{said}");

    place.write("project/engine/lib.rs", &OLD.replace("seven", "7"));
    let said = place.update(&[], 2);
    assert!(
        said.contains("not committed to git: `engine/lib.rs`"),
        "{said}"
    );
    commit(&engine);
    let said = place.update(&[], 0);
    assert!(said.contains("merged    engine/lib.rs"), "{said}");
    let both = OLD.replace("seven", "7").replace("one", "ONE");
    assert_eq!(place.read("project/engine/lib.rs"), both);
}

/// In a worktree, `.git` is a file.
#[test]
fn a_worktree_of_git_has_its_own_conflicts() {
    let place = in_conflict();
    let tree = place.path("tree");
    let at = tree.display().to_string();
    git(&place.path("project"), &["worktree", "add", "-q", &at]);
    let args = ["update", "tree", "--from", "old", "--template", "new"];
    runs(place.folder.path(), &args, 1);
    let short = ["status", "--porcelain"];
    assert_eq!(asked(&tree, &short), " M .kiln.toml\nUU a.txt\n");
    assert_eq!(asked(&place.path("project"), &short), "");
    runs(place.folder.path(), &["update", "tree", "--abort"], 0);
    assert_eq!(asked(&tree, &short), "");
}

/// A rebase that stopped to edit a commit: the update becomes a part of it, or is undone.
#[test]
fn an_update_in_the_middle_of_a_rebase_can_be_undone() {
    let place = in_conflict();
    let project = place.path("project");
    place.write("project/own.txt", "own\n");
    commit(&project);
    let edits = ["-c", "sequence.editor=sed -i.bak 1s/pick/edit/"];
    asked(
        &project,
        &[&edits[..], &["rebase", "-q", "-i", "HEAD~1"]].concat(),
    );
    place.update(&[], 1);
    runs(place.folder.path(), &["update", "project", "--abort"], 0);
    assert_eq!(asked(&project, &["status", "--porcelain"]), "");
    git(&project, &["rebase", "--continue"]);
    assert_eq!(place.read("project/own.txt"), "own\n");
}

#[test]
fn names_with_spaces_and_of_other_scripts_are_merged_and_restored() {
    let place = Place::new();
    let project = place.path("project");
    let file = "с пробелом/a b 'é'.txt";
    for version in ["old", "new", "project"] {
        place.write(&format!("{version}/{file}"), OLD);
    }
    place.template(file, "one\n", "ONE\n");
    place.write(&format!("project/{file}"), &OLD.replace("one", "1"));
    commit(&project);
    place.update(&[], 1);
    let name = [
        "-c",
        "core.quotePath=false",
        "diff",
        "--name-only",
        "--diff-filter=U",
    ];
    assert_eq!(asked(&project, &name), format!("{file}\n"));
    runs(place.folder.path(), &["update", "project", "--abort"], 0);
    assert_eq!(asked(&project, &["status", "--porcelain"]), "");

    place.update(&[], 1);
    place.write(&format!("project/{file}"), &OLD.replace("one", "resolved"));
    runs(place.folder.path(), &["update", "project", "--continue"], 0);
    assert_eq!(asked(&project, &["ls-files", "--unmerged"]), "");
}
