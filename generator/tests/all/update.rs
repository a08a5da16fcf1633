//! `kiln update` and `kiln add`.

use std::{fs, path::Path};

use crate::versions::{OLD, Place, commit, engine_hashes, engine_on_disk, git, runs, tree};
use kiln::{project::record::Record, template::Template};

#[test]
fn changes_of_both_are_joined_and_the_second_time_changes_nothing() {
    let place = Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    place.template("b.txt", "b\n", "B\n");
    place.write("new/c.txt", "c\n");
    place.write("project/a.txt", &format!("hello\n{OLD}mine\n"));
    place.write("project/own.txt", "mine\n");
    commit(&place.path("project"));
    let before = tree(&place.path("project"));

    let said = place.update(&["--dry-run"], 0);
    assert!(said.contains("merged    a.txt"), "{said}");
    assert!(said.contains("Dry run: nothing was changed"), "{said}");
    assert_eq!(tree(&place.path("project")), before);

    let said = place.update(&[], 0);
    for line in ["merged    a.txt", "replaced  b.txt", "added     c.txt"] {
        assert!(said.contains(line), "{line} in {said}");
    }
    let joined = format!("hello\n{}mine\n", OLD.replace("one", "ONE"));
    assert_eq!(place.read("project/a.txt"), joined);
    assert_eq!(place.read("project/b.txt"), "B\n");
    assert_eq!(place.read("project/own.txt"), "mine\n");
    assert!(place.read("project/.kiln.toml").contains("kiln = \"new\""));

    let after = tree(&place.path("project"));
    let args = ["update", "project", "--from", "new", "--template", "new"];
    let said = runs(place.folder.path(), &args, 0);
    assert!(said.contains("Nothing to change"), "{said}");
    assert_eq!(tree(&place.path("project")), after);
}

#[test]
fn a_conflict_is_marked_in_place() {
    let place = Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    place.write(
        "project/a.txt",
        &format!("hello\n{}", OLD.replace("one", "1")),
    );
    commit(&place.path("project"));
    let said = place.update(&[], 1);
    assert!(
        said.contains("conflict  a.txt       1 place, marked"),
        "{said}"
    );
    let marked = "hello\n<<<<<<< yours\n1\n||||||| old\none\n=======\nONE\n>>>>>>> new\ntwo\n";
    assert!(place.read("project/a.txt").starts_with(marked));
    let names = tree(&place.path("project")).into_keys();
    let names: Vec<_> = names
        .filter(|path| !path.starts_with(".kiln-update"))
        .collect();
    assert_eq!(
        names.len(),
        3,
        "nothing is left beside the files: {names:?}"
    );
}

#[test]
fn what_is_not_committed_is_not_touched_unless_told() {
    let place = Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    place.write("project/a.txt", &format!("hello\n{OLD}mine\n"));
    let before = tree(&place.path("project"));
    let said = place.update(&[], 2);
    assert!(
        said.contains("your changes are not committed to git: `a.txt`"),
        "{said}"
    );
    assert!(said.contains("--allow-dirty"), "{said}");
    assert_eq!(tree(&place.path("project")), before);

    fs::remove_dir_all(place.path("project/.git")).unwrap();
    let said = place.update(&[], 2);
    assert!(
        said.contains("your changes are not in a git repository: `a.txt`"),
        "{said}"
    );
    assert_eq!(tree(&place.path("project")), before);

    place.update(&["--allow-dirty"], 0);
    assert!(place.read("project/a.txt").contains("ONE"));
}

/// Files that git was told to ignore count as uncommitted.
#[test]
fn git_is_not_believed_when_it_was_told_to_overlook_a_file() {
    let place = Place::new();
    let project = place.path("project");
    place.template("a.txt", "one\n", "ONE\n");
    for option in ["--skip-worktree", "--assume-unchanged"] {
        git(&project, &["update-index", option, "a.txt"]);
        place.write("project/a.txt", &format!("hello\n{OLD}mine\n"));
        let said = place.update(&[], 2);
        assert!(said.contains(": `a.txt`"), "{said}");
        let undo = option.replacen("--", "--no-", 1);
        git(&project, &["update-index", &undo, "a.txt"]);
    }
}

/// Unedited files can be rendered again.
#[test]
fn an_untouched_project_needs_no_version_control() {
    let place = Place::new();
    fs::remove_dir_all(place.path("project/.git")).unwrap();
    place.template("a.txt", "one\n", "ONE\n");
    place.update(&[], 0);
    assert!(place.read("project/a.txt").contains("ONE"));
}

/// By default, Git for Windows checks files out with CRLF.
#[test]
fn the_default_project_keeps_its_bytes_in_a_checkout_on_windows() {
    let folder = tempfile::tempdir().unwrap();
    runs(folder.path(), &["new", "project", "--yes"], 0);
    let project = folder.path().join("project");
    git(&project, &["config", "core.autocrlf", "true"]);
    commit(&project);
    let before = tree(&project);
    git(&project, &["rm", "-rq", "."]);
    git(&project, &["reset", "-q", "--hard"]);
    assert_eq!(tree(&project), before);
}

#[test]
fn what_stands_in_the_way_is_told_before_anything_changes() {
    let place = Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    place.write("new/folder/c.txt", "c\n");
    place.write("project/folder", "a file\n");
    let before = tree(&place.path("project"));
    let said = place.update(&[], 2);
    assert!(said.contains("`project/folder` blocks a folder"), "{said}");
    assert_eq!(tree(&place.path("project")), before);
}

#[cfg(unix)]
#[test]
fn nothing_is_written_through_a_symbolic_link() {
    let place = Place::new();
    place.template("b.txt", "b\n", "B\n");
    place.write("outside.txt", "b\n");
    fs::remove_file(place.path("project/b.txt")).unwrap();
    std::os::unix::fs::symlink(place.path("outside.txt"), place.path("project/b.txt")).unwrap();
    let said = place.update(&["--allow-dirty"], 2);
    assert!(said.contains("is a symbolic link"), "{said}");
    assert_eq!(place.read("outside.txt"), "b\n");
}

#[test]
fn an_unknown_template_is_told_with_the_way_out() {
    let place = Place::new();
    let said = runs(place.folder.path(), &["update", "project"], 2);
    assert!(said.contains("does not include the template `t`"), "{said}");
    assert!(said.contains("--from"), "{said}");
    let said = runs(place.folder.path(), &["update", "old"], 2);
    assert!(said.contains("has no `.kiln.toml`"), "{said}");
}

#[test]
fn an_option_that_is_no_more_is_told() {
    let place = Place::new();
    place.template(
        "cargo-generate.toml",
        "placeholders.word",
        "placeholders.term",
    );
    place.template("a.txt", "{{word}}", "{{term}}");
    place.template(".kiln.toml.liquid", "{{word}}", "{{term}}");
    place.template(".kiln.toml.liquid", "word =", "term =");
    let said = place.update(&["-d", "term=bye"], 0);
    assert!(
        said.contains("the option `word` no longer exists"),
        "{said}"
    );
    assert!(place.read("project/a.txt").starts_with("bye\n"));
}

#[test]
fn the_list_for_programs_is_json() {
    let place = Place::new();
    place.template("a.txt", "one\n", "ONE\n");
    let said = place.update(&["--format", "json"], 0);
    let value: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(value["dry_run"], false);
    assert_eq!(value["files"][1]["path"], "a.txt");
    assert_eq!(value["files"][1]["fate"], "replaced");
}

/// For every option and value: creating a project with the option gives the same files as adding it.
#[test]
fn adding_an_option_is_as_if_it_had_been_chosen_at_first() {
    let template = Template::embedded().unwrap();
    let place = tempfile::tempdir().unwrap();
    let new = |name: &str, option: &str| {
        let args = [
            "new", "a", "--path", name, "--yes", "--vcs", "none", "-d", option,
        ];
        runs(place.path(), &args, 0);
    };
    let mut compared = 0;
    for option in template.options() {
        let mut values = option.values();
        if values.len() < 2 {
            values.push(option.parse("another text").unwrap());
        }
        for value in &values {
            let with = format!("{}={value}", option.name);
            new("with", &with);
            for other in values.iter().filter(|other| *other != value) {
                new("then", &format!("{}={other}", option.name));
                runs(place.path(), &["add", &with, "--path", "then"], 0);
                let (with, then) = (place.path().join("with"), place.path().join("then"));
                assert!(tree(&with) == tree(&then), "{other} then {value}");
                fs::remove_dir_all(then).unwrap();
                compared += 1;
            }
            fs::remove_dir_all(place.path().join("with")).unwrap();
        }
    }
    assert!(compared >= 48, "{compared}");
}

#[test]
fn what_to_add_can_be_said_in_a_word() {
    let place = tempfile::tempdir().unwrap();
    runs(
        place.path(),
        &["new", "a", "--yes", "-d", "tensorboard=no"],
        0,
    );
    let add = |option: &str, status| runs(place.path(), &["add", option, "--path", "a"], status);
    assert!(add("slurm", 0).starts_with("Adding cluster=slurm to `a`"));
    assert!(place.path().join("a/launch/slurm.sh").exists());
    assert!(add("ci", 0).starts_with("Adding ci=github to `a`"));
    assert!(add("tensorboard", 0).starts_with("Adding tensorboard=yes to `a`"));
    assert!(add("tensorboard", 0).contains("Nothing to change"));
    assert!(add("mpi", 0).starts_with("Adding strategy=multi-worker-mirrored to `a`"));
    let said = add("cluster", 0);
    assert!(said.starts_with("Adding cluster=kubernetes"), "{said}");
    let said = add("hardware", 2);
    assert!(
        said.contains("write `hardware=cuda` or `hardware=wgpu`"),
        "{said}"
    );
    let said = add("slrum", 2);
    assert!(said.contains("no option or value `slrum` to add"), "{said}");
    assert!(said.contains("`slurm`"), "{said}");
    let said = add("ci=gitlab", 2);
    assert!(said.contains("not a value of the option `ci`"), "{said}");
}

#[test]
fn an_option_has_one_value() {
    let place = tempfile::tempdir().unwrap();
    let new = ["new", "a", "--yes", "--vcs", "none"];
    let with = |more: &[&str], status| runs(place.path(), &[&new, more].concat(), status);
    let said = with(&["-d", "hardware=cuda", "-d", "hardware=wgpu"], 2);
    let why = "the option `hardware` has two values: `hardware=cuda` and `hardware=wgpu`";
    assert!(said.contains(why), "{said}");
    with(&["-d", "hardware=cuda", "-d", "hardware=cuda"], 0);

    let add = |options: &[&str], status| {
        let args = [&["add"][..], options, &["--path", "a", "--dry-run"]].concat();
        runs(place.path(), &args, status)
    };
    let said = add(&["ci", "wgpu", "hardware=cuda"], 2);
    let why = "the option `hardware` has two values: `wgpu` and `hardware=cuda`";
    assert!(said.contains(why), "{said}");
    add(&["wgpu", "hardware=wgpu"], 0);
    let said = add(&["slurm", "wgpu"], 0);
    assert!(
        said.contains("\n  removes hardware=cuda, which hardware=wgpu replaces\n"),
        "{said}"
    );
    assert!(!said.contains("cluster=no"), "{said}");
}

#[test]
fn an_example_keeps_what_it_is() {
    let place = tempfile::tempdir().unwrap();
    let args = [
        "new",
        "a",
        "--example",
        "callbacks",
        "--yes",
        "--vcs",
        "none",
    ];
    runs(place.path(), &args, 0);
    let model = fs::read(place.path().join("a/src/model.rs")).unwrap();
    let said = runs(place.path(), &["add", "slurm", "--path", "a"], 0);
    assert!(said.contains("added     launch/slurm.sh"), "{said}");
    assert_eq!(
        fs::read(place.path().join("a/src/model.rs")).unwrap(),
        model
    );
    let said = runs(place.path(), &["update", "a"], 0);
    assert!(said.contains("Nothing to change"), "{said}");
}

const ENGINE_MERGED: &str = "engine/ was edited (its hash differs from `.kiln.toml`)";

#[test]
fn an_engine_that_nobody_edited_is_replaced_as_a_whole() {
    let place = Place::with_engine();
    fs::remove_dir_all(place.path("project/.git")).unwrap();
    // A merge with this base would find edits.
    place.write("old/engine/lib.rs", &OLD.replace("one", "1"));
    place.write("old/engine/old/gone.rs", "not as it was\n");
    place.write("project/engine/target/debug/built", "built\n");

    let said = place.update(&[], 0);
    for line in [
        "replaced  engine/lib.rs",
        "added     engine/new.rs",
        "removed   engine/old/gone.rs",
    ] {
        assert!(said.contains(line), "{line} in {said}");
    }
    assert!(!said.contains(ENGINE_MERGED), "{said}");
    let mut engine = tree(&place.path("project/engine"));
    assert!(engine.remove(Path::new("target/debug/built")).is_some());
    assert_eq!(engine, tree(&place.path("new/engine")));
    assert!(!place.path("project/engine/old").exists());
}

#[test]
fn an_engine_that_somebody_edited_is_merged() {
    let place = Place::with_engine();
    let edited = OLD.replace("seven", "mine");
    place.write("project/engine/lib.rs", &edited);
    place.write("project/engine/old/gone.rs", "edited\n");
    commit(&place.path("project"));

    let said = place.update(&[], 0);
    for line in [
        ENGINE_MERGED,
        "merged    engine/lib.rs",
        "added     engine/new.rs",
        "kept      engine/old/gone.rs",
    ] {
        assert!(said.contains(line), "{line} in {said}");
    }
    let both = edited.replace("one", "ONE");
    assert_eq!(place.read("project/engine/lib.rs"), both);
    assert_eq!(place.read("project/engine/old/gone.rs"), "edited\n");
}

#[test]
fn a_conflict_in_the_engine_is_marked_in_place() {
    let place = Place::with_engine();
    place.write("project/engine/lib.rs", &OLD.replace("one", "1"));
    let said = place.update(&[], 2);
    let why = "your changes are not committed to git: `engine/lib.rs`";
    assert!(said.contains(why), "{said}");
    commit(&place.path("project"));
    let said = place.update(&[], 1);
    assert!(said.contains(ENGINE_MERGED), "{said}");
    let conflict = said.lines().find(|line| line.contains("engine/lib.rs"));
    let conflict = conflict.unwrap_or_default();
    assert!(conflict.starts_with("  conflict  "), "{said}");
    assert!(conflict.ends_with("1 place, marked <<<<<<< and >>>>>>>"));
    let marked = "<<<<<<< yours\n1\n||||||| old\none\n=======\nONE\n>>>>>>> new\ntwo\n";
    assert!(place.read("project/engine/lib.rs").starts_with(marked));
}

/// An additional file is an edit unless git ignores it, and is never overwritten.
#[test]
fn a_file_of_the_users_own_in_the_engine_is_an_edit() {
    let place = Place::with_engine();
    place.write("project/engine/own.rs", "mine\n");
    commit(&place.path("project"));
    let said = place.update(&["--dry-run"], 0);
    assert!(said.contains(ENGINE_MERGED), "{said}");

    place.write("project/.gitignore", "own.rs\nnew.rs\n");
    git(&place.path("project"), &["rm", "-q", "--cached", "-r", "."]);
    commit(&place.path("project"));
    let said = place.update(&["--dry-run"], 0);
    assert!(!said.contains(ENGINE_MERGED), "{said}");

    place.write("project/engine/new.rs", "mine\n");
    let said = place.update(&[], 2);
    assert!(said.contains(": `engine/new.rs`"), "{said}");
    let said = place.update(&["--dry-run", "--allow-dirty"], 1);
    assert!(said.contains(ENGINE_MERGED), "{said}");
    fs::remove_file(place.path("project/engine/new.rs")).unwrap();
    place.update(&[], 0);
    assert_eq!(place.read("project/engine/own.rs"), "mine\n");
    assert_eq!(place.read("project/engine/new.rs"), "new\n");
}

#[test]
fn the_engine_of_a_record_without_its_hash_is_merged() {
    let place = Place::with_engine();
    place.write("old/engine/lib.rs", &OLD.replace("one", "1"));
    let record = place.read("project/.kiln.toml");
    let lines = record.lines().filter(|line| !line.starts_with("engine ="));
    let record: Vec<_> = lines.collect();
    place.write("project/.kiln.toml", &record.join("\n"));
    commit(&place.path("project"));
    let said = place.update(&[], 1);
    assert!(!said.contains(ENGINE_MERGED), "{said}");
    assert!(said.contains("conflict  engine/lib.rs"), "{said}");
    // The next update records the hash.
    let hash = engine_on_disk(&place.path("new"));
    let record = Record::read(&place.path("project")).unwrap();
    assert_eq!(record.engine, Some(hash));
}

#[test]
fn the_recorded_hash_is_that_of_the_engine() {
    let place = Place::with_engine();
    let project = place.path("project");
    let (before, recorded) = engine_hashes(&project);
    assert_eq!(before, recorded);
    place.update(&[], 0);
    let (after, recorded) = engine_hashes(&project);
    assert_eq!(after, recorded);
    assert_ne!(after, before);

    for more in [&[][..], &["--example", "callbacks"]] {
        let folder = tempfile::tempdir().unwrap();
        let new = ["new", "a", "--yes", "--vcs", "none"];
        runs(folder.path(), &[&new, more].concat(), 0);
        let (engine, recorded) = engine_hashes(&folder.path().join("a"));
        assert_eq!(engine, recorded, "{more:?}");
    }
}

#[cfg(unix)]
#[test]
fn an_engine_with_a_symbolic_link_is_merged() {
    let place = Place::with_engine();
    place.write("outside/same.rs", "same\n");
    fs::remove_file(place.path("project/engine/same.rs")).unwrap();
    let link = place.path("project/engine/same.rs");
    std::os::unix::fs::symlink(place.path("outside/same.rs"), link).unwrap();
    let said = place.update(&[], 0);
    assert!(said.contains(ENGINE_MERGED), "{said}");
    assert!(place.path("project/engine/same.rs").is_symlink());
}
