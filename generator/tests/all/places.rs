//! Places of new projects: paths instead of names, fresh clones, and repositories around.

use std::{fs, process::Command};

use crate::common::Place;
use snapbox::str;

fn git(place: &Place, folder: &str, args: &[&str]) {
    let status = Command::new("git")
        .args(["-c", "user.name=a", "-c", "user.email=a@b"])
        .args(args)
        .current_dir(place.join(folder))
        .env_remove("GIT_DIR")
        .status();
    assert!(status.unwrap().success(), "{args:?}");
}

/// The name of the package in a folder.
fn package(place: &Place, folder: &str) -> String {
    let manifest = fs::read_to_string(place.join(folder).join("Cargo.toml")).unwrap();
    let manifest: toml::Table = manifest.parse().unwrap();
    manifest["package"]["name"].as_str().unwrap().to_owned()
}

#[test]
fn a_name_can_be_a_path() {
    let place = Place::new();
    fs::create_dir(place.join("here")).unwrap();
    let absolute = place.join("abs/net");
    let absolute = absolute.to_str().unwrap();
    for (from, args, folder, name) in [
        (".", "x/y/net", "x/y/net", "net"),
        (".", "./MyNet", "MyNet", "my-net"),
        (".", "trailing/", "trailing", "trailing"),
        (".", absolute, "abs/net", "net"),
        ("here", ".", "here", "here"),
        ("here", "../beside", "beside", "beside"),
        (".", "9-lives/1 --name lives", "9-lives/1", "lives"),
        (".", "plain --name other", "plain", "other"),
        (".", "--name named", "named", "named"),
        (".", "--path by/path", "by/path", "path"),
        (".", "name --path by/another", "by/another", "name"),
    ] {
        let command = place.kiln(&format!("new {args} --yes --vcs none"));
        command.current_dir(place.join(from)).assert().success();
        assert_eq!(package(&place, folder), name, "{args}");
    }
    fs::create_dir(place.join("dots")).unwrap();
    let command = place.kiln("new --path . --yes --vcs none");
    command.current_dir(place.join("dots")).assert().success();
    assert_eq!(package(&place, "dots"), "dots");
}

#[test]
fn a_path_whose_folder_cannot_name_a_project_is_refused() {
    let place = Place::new();
    for folder in ["2d net", "src/test"] {
        fs::create_dir_all(place.join(folder)).unwrap();
    }
    let before = place.tree();
    let refused = |folder: &str, args: &str| {
        let command = place.kiln(&format!("new {args} --yes"));
        let output = command.current_dir(place.join(folder)).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = [
        refused("2d net", "."),
        refused(".", "src/test"),
        refused(".", "/"),
        refused(".", "a/b --path c"),
        refused(".", "a --name b --path c"),
        refused(".", "a/b --name 1"),
    ];
    snapbox::assert_data_eq!(
        said.concat(),
        str![[r#"
  × `2d net` cannot name a project: it starts with a digit
   ╭─[NAME:1:1]
 1 │ 2d net
   · ┬
   · ╰── here
   ╰────
  help: try `d-net`, with `--name NAME` if the folder keeps its name
  × `test` cannot name a project: it conflicts with Rust's built-in test library
   ╭─[NAME:1:1]
 1 │ test
   · ──┬─
   ·   ╰── this name
   ╰────
  help: choose another name, such as `my-model`, with `--name NAME` if the folder keeps its name
  × the folder `/` has no name for the project
  help: add `--name NAME`
  × `a/b` and `--path c` both give the folder
  help: give the name without folders, or leave out `--path`
  × `a` and `--path c` both give the folder
  help: give the name without folders, or leave out `--path`
  × `1` cannot name a project: it starts with a digit
   ╭─[NAME:1:1]
 1 │ 1
   · ┬
   · ╰── here
   ╰────
  help: choose another name, such as `my-model`

"#]]
    );
    assert_eq!(place.tree(), before);
}

#[test]
fn a_fresh_clone_is_filled() {
    let place = Place::new();
    fs::create_dir(place.join("origin")).unwrap();
    git(&place, "origin", &["init", "--quiet"]);
    place.put("origin/README.md", "# Mine\n");
    place.put("origin/LICENSE", "mine");
    place.put("origin/.gitignore", "*.log\n/target");
    git(&place, "origin", &["add", "."]);
    git(&place, "origin", &["commit", "--quiet", "-m", "first"]);
    git(&place, ".", &["clone", "--quiet", "origin", "net"]);
    let command = place.kiln("new . --yes").current_dir(place.join("net"));
    let text = command.output().unwrap();
    assert!(text.status.success(), "{text:?}");
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("Created `net` in .: "), "{text}");
    assert!(!text.contains("git repository"), "{text}");
    assert!(text.contains("  kept README.md as it is\n"), "{text}");
    assert!(
        text.contains("  added the template's lines to .gitignore\n"),
        "{text}"
    );
    let read = |path: &str| fs::read_to_string(place.join("net").join(path)).unwrap();
    assert_eq!(read("README.md"), "# Mine\n");
    assert_eq!(read("LICENSE"), "mine");
    assert_eq!(read(".gitignore"), "*.log\n/target\n/runs\n");
    assert_eq!(package(&place, "net"), "net");

    // An empty repository, by its name and by its path.
    for args in ["new", "new --path"] {
        fs::remove_dir_all(place.join("empty")).ok();
        fs::create_dir(place.join("empty")).unwrap();
        git(&place, "empty", &["init", "--quiet"]);
        place
            .kiln(&format!("{args} empty --yes"))
            .assert()
            .success();
        assert_eq!(package(&place, "empty"), "empty");
    }
}

#[test]
fn files_of_the_template_are_listed() {
    let place = Place::new();
    place.put("net/src/main.rs", "mine");
    place.put("net/src/own.rs", "mine");
    place.put("net/README.md", "mine");
    place.put("net/tests/contract/main.rs", "mine");
    let before = place.tree();
    for more in ["", " --dry-run"] {
        place
            .kiln(&format!("new net --yes{more}"))
            .assert()
            .code(2)
            .stderr_eq(str![[r#"
  × the folder `net` has files of the template: `src/main.rs`, `tests/contract/main.rs`
  help: give another folder, or add `--force` to replace the files that the template has too; all
        other files are kept

"#]]);
        assert_eq!(place.tree(), before);
    }
    place.kiln("new net --yes --force").assert().success();
    assert_ne!(fs::read(place.join("net/README.md")).unwrap(), b"mine");
    assert_eq!(fs::read(place.join("net/src/own.rs")).unwrap(), b"mine");

    // A project is not made twice.
    let again = place.kiln("new net --yes").output().unwrap();
    let said = String::from_utf8(again.stderr).unwrap();
    assert!(
        said.contains("`Cargo.toml`") && said.contains(" more"),
        "{said}"
    );
}

#[test]
fn git_is_asked_whether_it_ignores_the_folder() {
    let place = Place::new();
    fs::create_dir(place.join("outer")).unwrap();
    git(&place, "outer", &["init", "--quiet"]);
    place.put("outer/.gitignore", "scratch/\n");
    let run = |args: &str| {
        let command = place.kiln(&format!("new {args} --yes"));
        let output = command.current_dir(place.join("outer")).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        assert!(output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let has = |folder: &str| place.join("outer").join(folder).join(".git/HEAD").exists();
    run("a");
    assert!(!has("a"));
    for (args, folder) in [("scratch/b", "scratch/b"), ("scratch", "scratch")] {
        let dry = run(&format!("{args} --dry-run"));
        assert!(dry.contains("and a git repository"), "{dry}");
        let text = run(args);
        assert!(has(folder), "{args}");
        assert!(text.contains("which ignores its folder"), "{text}");
    }
    let text = run("c --vcs git");
    assert!(has("c"));
    assert!(
        text.contains(", and a git repository.\n  the repository lies inside that of"),
        "{text}"
    );
    // A folder that exists.
    fs::create_dir(place.join("outer/d")).unwrap();
    run("d --vcs git");
    assert!(has("d"));
    run("scratch/e --vcs none");
    assert!(!has("scratch/e"));
}

/// As in a repository of another user.
#[test]
fn git_says_itself_why_it_refuses_a_repository() {
    let place = Place::new();
    git(&place, ".", &["init", "--quiet"]);
    let output = place
        .kiln("new a --yes")
        .env("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        .output()
        .unwrap();
    assert!(output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("warning: git cannot use the repository of"),
        "{said}"
    );
    assert!(
        said.contains("detected dubious ownership in repository at"),
        "{said}"
    );
    assert!(
        said.contains("git config --global --add safe.directory"),
        "{said}"
    );

    place
        .kiln("new b --yes --define ci=none")
        .assert()
        .success();
    let readme = fs::read_to_string(place.join("b/README.md")).unwrap();
    place.put("b/README.md", &format!("mine\n{readme}"));
    let add = place.kiln("add slurm").current_dir(place.join("b"));
    let output = add
        .env("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr)
        .unwrap()
        .replace("\n  │", "");
    assert!(
        said.contains("git cannot tell whether your changes are committed"),
        "{said}"
    );
    assert!(said.contains("detected dubious"), "{said}");
}
