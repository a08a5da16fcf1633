//! `kiln new`: the files that it writes, the input that it refuses, and that it is atomic.

use std::fs;

use crate::common::Place;
use kiln::{
    name::Name,
    render::render,
    template::{Template, answers::Answers},
};
use snapbox::str;

/// The files of the default project, by path.
fn default_files(name: &str) -> Vec<(String, Vec<u8>)> {
    let template = Template::embedded().unwrap();
    let answers = Answers::defaults(&template, Name::parse(name).unwrap()).unwrap();
    let rendered = render(&template, &answers).unwrap();
    let file = |file: &kiln::render::RenderedFile<'_>| {
        (
            file.path.to_str().unwrap().to_owned(),
            file.contents.to_vec(),
        )
    };
    rendered.files.iter().map(file).collect()
}

fn assert_has_default(place: &Place, folder: &str, name: &str) {
    for (path, contents) in default_files(name) {
        let found = fs::read(place.join(&format!("{folder}/{path}"))).unwrap();
        assert_eq!(found, contents, "{path}");
    }
}

#[test]
fn makes_a_project() {
    let place = Place::new();
    place
        .kiln("new my-model --yes --vcs none")
        .assert()
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
Created `my-model` in my-model: [..] files.

  description  A model trained with Burn on several replicas
  strategy     mirrored
  hardware     flex
  tensorboard  yes
  cluster      none
  ci           none

Next:
  cd my-model
  cargo run              # train, then test
  cargo test             # the contract tests
  kiln todos             # the sites to change for your task

"#]]);
    assert_has_default(&place, "my-model", "my-model");
    let files = place.tree().into_keys().filter(|path| !path.ends_with('/'));
    assert_eq!(files.count(), default_files("my-model").len());
}

#[cfg(unix)]
#[test]
fn gives_the_usual_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.kiln("new a --yes --vcs none").assert().success();
    fs::create_dir(place.join("b")).unwrap();
    fs::write(place.join("b/Cargo.toml"), "").unwrap();
    let mode = |path| fs::metadata(place.join(path)).unwrap().permissions().mode();
    assert_eq!(mode("a"), mode("b"));
    assert_eq!(mode("a/Cargo.toml"), mode("b/Cargo.toml"));
}

#[test]
fn says_that_it_converts_a_name() {
    let place = Place::new();
    let assert = place
        .kiln("new MyModel --yes --vcs none")
        .assert()
        .success();
    assert.stdout_eq(str![[r#"
Package name: `MyModel` becomes `my-model`.
Created `my-model` in my-model: [..] files.

  description  A model trained with Burn on several replicas
  strategy     mirrored
  hardware     flex
  tensorboard  yes
  cluster      none
  ci           none

Next:
  cd my-model
  cargo run              # train, then test
  cargo test             # the contract tests
  kiln todos             # the sites to change for your task

"#]]);
    assert_has_default(&place, "my-model", "my-model");
}

#[test]
fn asks_nothing_without_a_terminal() {
    let place = Place::new();
    place.kiln("new a --vcs none").assert().success();
    assert_has_default(&place, "a", "a");
}

#[test]
fn makes_a_repository() {
    let place = Place::new();
    place.kiln("new a --yes").assert().success();
    assert!(place.join("a/.git/HEAD").exists());

    // Not inside another repository.
    place.kiln("new b --yes --path a/b").assert().success();
    assert!(!place.join("a/b/.git").exists());

    // Not where environment variables point.
    let elsewhere = place.join("elsewhere");
    place
        .kiln("new c --yes")
        .env("GIT_DIR", &elsewhere)
        .assert()
        .success();
    assert!(place.join("c/.git/HEAD").exists());
    assert!(!elsewhere.exists());
}

#[test]
fn does_without_git_unless_told() {
    let place = Place::new();
    let assert = place.kiln("new a --yes").env("PATH", "").assert().success();
    assert.stderr_eq(str![[r#"
warning: `git init` failed: No such file or directory (os error 2); the project is under no version control

"#]]);
    assert_has_default(&place, "a", "a");

    let assert = place.kiln("new b --yes --vcs git").env("PATH", "").assert();
    assert.code(3).stderr_eq(str![[r#"
  × `git init` failed: No such file or directory (os error 2)
  help: use `--vcs none`; nothing was written

"#]]);
    assert!(!place.join("b").exists());
    assert_no_leftovers(&place);
}

#[test]
fn makes_the_folders_above() {
    let place = Place::new();
    place
        .kiln("new a --yes --vcs none --path x/y/z")
        .assert()
        .success();
    assert_has_default(&place, "x/y/z", "a");
}

#[test]
fn fills_an_empty_folder() {
    let place = Place::new();
    fs::create_dir(place.join("a")).unwrap();
    place
        .kiln("new a --yes --path .")
        .current_dir(place.join("a"))
        .assert()
        .success();
    assert_has_default(&place, "a", "a");
    assert!(place.join("a/.git/HEAD").exists());
    assert_no_leftovers(&place);
}

#[test]
fn refuses_a_folder_with_files_of_the_template() {
    let place = Place::new();
    place.put("a/Cargo.toml", "mine");
    let before = place.tree();
    place
        .kiln("new a --yes")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × the folder `a` has a file of the template: `Cargo.toml`
  help: give another folder, or add `--force` to replace the files that the template has too; all
        other files are kept

"#]]);
    assert_eq!(place.tree(), before);
}

#[test]
fn force_replaces_only_what_the_template_has() {
    let place = Place::new();
    place.put("a/notes.txt", "mine");
    place.put("a/src/own.rs", "mine");
    place.put("a/Cargo.toml", "mine");
    let (path, contents) = default_files("a").pop().unwrap();
    place.put(&format!("a/{path}"), str::from_utf8(&contents).unwrap());
    place
        .kiln("new a --yes --force --vcs none")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Created `a` in a: [..] files, 1 unchanged, 1 replaced.
  replaced Cargo.toml

  description  A model trained with Burn on several replicas
  strategy     mirrored
  hardware     flex
  tensorboard  yes
  cluster      none
  ci           none

Next:
  cd a
  cargo run              # train, then test
  cargo test             # the contract tests
  kiln todos             # the sites to change for your task

"#]]);
    assert_has_default(&place, "a", "a");
    assert_eq!(fs::read(place.join("a/notes.txt")).unwrap(), b"mine");
    assert_eq!(fs::read(place.join("a/src/own.rs")).unwrap(), b"mine");
    assert_no_leftovers(&place);
}

#[test]
fn force_writes_over_no_folder() {
    let place = Place::new();
    place.put("a/Cargo.toml/file", "mine");
    let before = place.tree();
    place
        .kiln("new a --yes --force")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × `a/Cargo.toml` blocks a file of the template
  help: move it away first; nothing was written

"#]]);
    assert_eq!(place.tree(), before);

    let place = Place::new();
    place.put("a/src", "mine");
    let before = place.tree();
    place
        .kiln("new a --yes --force")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × `a/src` blocks a folder of the template
  help: move it away first; nothing was written

"#]]);
    assert_eq!(place.tree(), before);
}

#[cfg(unix)]
#[test]
fn follows_no_symbolic_link() {
    use std::os::unix::fs::symlink;
    let place = Place::new();
    place.put("outside/src/main.rs", "mine");
    place.put("outside/Cargo.toml", "mine");
    fs::create_dir(place.join("a")).unwrap();
    symlink("../outside/src", place.join("a/src")).unwrap();
    fs::create_dir(place.join("b")).unwrap();
    symlink("../outside/Cargo.toml", place.join("b/Cargo.toml")).unwrap();
    symlink("outside", place.join("c")).unwrap();
    symlink("absent", place.join("d")).unwrap();
    let before = place.tree();
    let mut said = String::new();
    for name in ["a", "b", "c", "d"] {
        let output = place
            .kiln(&format!("new {name} --yes --force"))
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert_eq!(place.tree(), before);
        said.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    snapbox::assert_data_eq!(
        said,
        str![[r#"
  × `a/src` is a symbolic link, which Kiln does not write through
  help: move it away first; nothing was written
  × `b/Cargo.toml` is a symbolic link, which Kiln does not write through
  help: move it away first; nothing was written
  × `c` is a symbolic link
  help: give the target of the link
  × `d` is a symbolic link
  help: give the target of the link

"#]]
    );
}

#[test]
fn refuses_a_file_in_the_way() {
    let place = Place::new();
    place.put("a", "mine");
    place
        .kiln("new a --yes")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × `a` exists and is not a folder
  help: give another folder with `--path`

"#]]);
    place
        .kiln("new b --yes --path a/b")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × part of the path `a/b` is not a folder
  help: give another folder with `--path`

"#]]);
    assert_eq!(place.tree().len(), 1);
    assert_eq!(fs::read(place.join("a")).unwrap(), b"mine");
}

/// A limit on the size of files simulates a full disk: a write fails halfway.
#[cfg(unix)]
#[test]
fn a_full_disk_leaves_nothing() {
    let limited = |place: &Place, args: &str| {
        let script = "trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"";
        snapbox::cmd::Command::new("sh")
            .args(["-c", script])
            .arg(snapbox::cmd::cargo_bin!("kiln"))
            .args(args.split_whitespace())
            .current_dir(place.path())
            .assert()
    };
    let place = Place::new();
    limited(&place, "new a --yes --vcs none --path x/y/a")
        .code(3)
        .stderr_eq(str![[r#"
  × cannot write `x/y/a/README.md`
  ╰─▶ File too large (os error 27)

"#]]);
    assert!(place.tree().is_empty());

    let place = Place::new();
    place.put("a/notes.txt", "mine");
    place.put("a/Cargo.toml", "mine");
    let before = place.tree();
    limited(&place, "new a --yes --vcs none --force").code(3);
    assert_eq!(place.tree(), before);
}

/// `/proc/self`, a folder in which not even root can create files.
#[cfg(target_os = "linux")]
#[test]
fn refuses_a_folder_that_cannot_be_written() {
    let place = Place::new();
    let assert = place.kiln("new a --yes --path /proc/self/a").assert();
    assert.code(3).stderr_eq(str![[r#"
  × cannot write to the folder `/proc/self`
  ╰─▶ No such file or directory (os error 2) at path "/proc/self/.kiln-[..]"
  help: check the path: part of it does not exist

"#]]);
}

#[test]
fn leaves_a_workspace_above_alone() {
    let manifest = "# A comment.\n[workspace]\nmembers   = []\n";
    let place = Place::new();
    place.put("Cargo.toml", manifest);
    place.kiln("new a --yes --vcs none").assert().success();
    assert_eq!(
        fs::read_to_string(place.join("Cargo.toml")).unwrap(),
        manifest
    );
    // Otherwise Cargo would find the enclosing workspace.
    let found = snapbox::cmd::Command::new(env!("CARGO"))
        .args(["locate-project", "--workspace", "--message-format", "plain"])
        .current_dir(place.join("a"))
        .assert()
        .success()
        .get_output()
        .stdout
        .clone();
    let root = String::from_utf8(found).unwrap();
    let expected = place.join("a/Cargo.toml").canonicalize().unwrap();
    assert_eq!(root.trim(), expected.to_str().unwrap());
}

fn assert_no_leftovers(place: &Place) {
    let hidden = place
        .tree()
        .into_keys()
        .find(|path| path.contains(".kiln-"));
    assert_eq!(hidden, None);
}

#[test]
fn refuses_names() {
    let names = [
        "",
        "2d-net",
        "-",
        "_",
        "a b",
        "a/2b",
        "naïve",
        "a.b",
        "struct",
        "async",
        "gen",
        "test",
        "core",
        "proc-macro",
        "build",
        "incremental",
        "nul",
        "COM1",
        "Test",
        "burn",
        "clap",
        "serde-json",
    ];
    let place = Place::new();
    let mut said = String::new();
    for name in names {
        let output = place
            .command()
            .args(["new", "--yes", "--", name])
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(output.stdout.is_empty());
        said.push_str(&format!(
            "{name:?}\n{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    snapbox::assert_data_eq!(
        said,
        str![[r#"
""
  × the name of a project cannot be empty
  help: give a name, such as `my-model`
"2d-net"
  × `2d-net` cannot name a project: it starts with a digit
   ╭─[NAME:1:1]
 1 │ 2d-net
   · ┬
   · ╰── here
   ╰────
  help: try `d-net`
"-"
  × `-` cannot name a project: it does not start with a letter
   ╭─[NAME:1:1]
 1 │ -
   · ┬
   · ╰── here
   ╰────
  help: choose another name, such as `my-model`
"_"
  × `_` cannot name a project: it has no letter
   ╭─[NAME:1:1]
 1 │ _
   · ┬
   · ╰── this name
   ╰────
  help: choose another name, such as `my-model`
"a b"
  × `a b` cannot name a project: it contains ' '; a name has the letters a to z and A to Z,
  │ digits, `-` and `_`
   ╭─[NAME:1:2]
 1 │ a b
   ·  ┬
   ·  ╰── here
   ╰────
  help: try `a-b`
"a/2b"
  × `2b` cannot name a project: it starts with a digit
   ╭─[NAME:1:1]
 1 │ 2b
   · ┬
   · ╰── here
   ╰────
  help: try `b`, with `--name NAME` if the folder keeps its name
"naïve"
  × `naïve` cannot name a project: it contains 'ï'; a name has the letters a to z and A to Z,
  │ digits, `-` and `_`
   ╭─[NAME:1:3]
 1 │ naïve
   ·   ┬
   ·   ╰── here
   ╰────
  help: try `na-ve`
"a.b"
  × `a.b` cannot name a project: it contains '.'; a name has the letters a to z and A to Z,
  │ digits, `-` and `_`
   ╭─[NAME:1:2]
 1 │ a.b
   ·  ┬
   ·  ╰── here
   ╰────
  help: try `a-b`
"struct"
  × `struct` cannot name a project: it is a keyword of Rust
   ╭─[NAME:1:1]
 1 │ struct
   · ───┬──
   ·    ╰── this name
   ╰────
  help: choose another name, such as `my-model`
"async"
  × `async` cannot name a project: it is a keyword of Rust
   ╭─[NAME:1:1]
 1 │ async
   · ──┬──
   ·   ╰── this name
   ╰────
  help: choose another name, such as `my-model`
"gen"
  × `gen` cannot name a project: it is a keyword of Rust
   ╭─[NAME:1:1]
 1 │ gen
   · ─┬─
   ·  ╰── this name
   ╰────
  help: choose another name, such as `my-model`
"test"
  × `test` cannot name a project: it conflicts with Rust's built-in test library
   ╭─[NAME:1:1]
 1 │ test
   · ──┬─
   ·   ╰── this name
   ╰────
  help: choose another name, such as `my-model`
"core"
  × `core` cannot name a project: it is part of Rust's standard library
   ╭─[NAME:1:1]
 1 │ core
   · ──┬─
   ·   ╰── this name
   ╰────
  help: choose another name, such as `my-model`
"proc-macro"
  × `proc-macro` cannot name a project: it is part of Rust's standard library
   ╭─[NAME:1:1]
 1 │ proc-macro
   · ─────┬────
   ·      ╰── this name
   ╰────
  help: choose another name, such as `my-model`
"build"
  × `build` cannot name a project: it conflicts with the names of cargo's build folders
   ╭─[NAME:1:1]
 1 │ build
   · ──┬──
   ·   ╰── this name
   ╰────
  help: choose another name, such as `my-model`
"incremental"
  × `incremental` cannot name a project: it conflicts with the names of cargo's build folders
   ╭─[NAME:1:1]
 1 │ incremental
   · ─────┬─────
   ·      ╰── this name
   ╰────
  help: choose another name, such as `my-model`
"nul"
  × `nul` cannot name a project: it is a reserved file name on Windows
   ╭─[NAME:1:1]
 1 │ nul
   · ─┬─
   ·  ╰── this name
   ╰────
  help: choose another name, such as `my-model`
"COM1"
  × `COM1` cannot name a project: it is a reserved file name on Windows
   ╭─[NAME:1:1]
 1 │ COM1
   · ──┬─
   ·   ╰── this name
   ╰────
  help: choose another name, such as `my-model`
"Test"
  × `test` cannot name a project: it conflicts with Rust's built-in test library
   ╭─[NAME:1:1]
 1 │ Test
   · ──┬─
   ·   ╰── becomes `test`
   ╰────
  help: choose another name, such as `my-model`
"burn"
  × `burn` cannot name a project: it is the name of one of the new crate's own dependencies
   ╭─[NAME:1:1]
 1 │ burn
   · ──┬─
   ·   ╰── taken
   ╰────
  help: choose another name, such as `my-model`
"clap"
  × `clap` cannot name a project: it is the name of one of the new crate's own dependencies
   ╭─[NAME:1:1]
 1 │ clap
   · ──┬─
   ·   ╰── taken
   ╰────
  help: choose another name, such as `my-model`
"serde-json"
  × `serde-json` cannot name a project: it is the name of one of the new crate's own dependencies
   ╭─[NAME:1:1]
 1 │ serde-json
   · ─────┬────
   ·      ╰── taken
   ╰────
  help: choose another name, such as `my-model`

"#]]
    );
    assert!(place.tree().is_empty());
}

#[test]
fn refuses_definitions() {
    let place = Place::new();
    let defines = [
        "strtegy=mirrored",
        "nonsense=1",
        "strategy=mirored",
        "strategy=",
        "strategy",
        "hardware=Cuda",
        "description=say \"hi\"",
        "description=two\nlines",
        "project-name=x",
        "=x",
    ];
    let mut said = String::new();
    for define in defines {
        let args = ["new", "a", "--yes", "--define", define];
        let output = place.command().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{define}");
        said.push_str(&format!(
            "{define:?}\n{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    snapbox::assert_data_eq!(
        said,
        str![[r#"
"strtegy=mirrored"
  × there is no option `strtegy`
   ╭─[--define:1:1]
 1 │ strtegy=mirrored
   · ───┬───
   ·    ╰── no option
   ╰────
  help: did you mean `strategy`? the options are `description`, `strategy`, `hardware`,
        `tensorboard`, `cluster`, `ci`
"nonsense=1"
  × there is no option `nonsense`
   ╭─[--define:1:1]
 1 │ nonsense=1
   · ────┬───
   ·     ╰── no option
   ╰────
  help: the options are `description`, `strategy`, `hardware`, `tensorboard`, `cluster`, `ci`
"strategy=mirored"
  × "mirored" is not a value of the option `strategy`
   ╭─[--define:1:10]
 1 │ strategy=mirored
   ·          ───┬───
   ·             ╰── this value
   ╰────
  help: did you mean `mirrored`? its values are `mirrored`, `one-device`, `multi-worker-mirrored`
"strategy="
  × "" is not a value of the option `strategy`
   ╭─[--define:1:10]
 1 │ strategy= 
   ·          ▲
   ·          ╰── this value
   ╰────
  help: its values are `mirrored`, `one-device`, `multi-worker-mirrored`
"strategy"
  × `--define strategy` has no `=`
   ╭─[--define:1:1]
 1 │ strategy
   · ────┬───
   ·     ╰── no `=`
   ╰────
  help: write `--define strategy=VALUE`
"hardware=Cuda"
  × "Cuda" is not a value of the option `hardware`
   ╭─[--define:1:10]
 1 │ hardware=Cuda
   ·          ──┬─
   ·            ╰── this value
   ╰────
  help: did you mean `cuda`? its values are `flex`, `cuda`, `wgpu`, `vulkan`, `metal`, `rocm`
"description=say /"hi/""
  × "say /"hi/"" is not a value of the option `description`
   ╭─[--define:1:13]
 1 │ description=say "hi"
   ·             ────┬───
   ·                 ╰── this value
   ╰────
  help: give any text without `"`, `/` and control characters
"description=two/nlines"
  × "two/nlines" is not a value of the option `description`
   ╭─[--define:1:13]
 1 │ ╭─▶ description=two
 2 │ ├─▶ lines
   · ╰──── this value
   ╰────
  help: give any text without `"`, `/` and control characters
"project-name=x"
  × there is no option `project-name`
   ╭─[--define:1:1]
 1 │ project-name=x
   · ──────┬─────
   ·       ╰── no option
   ╰────
  help: `project-name` is derived from the project's name and folder
"=x"
  × the option name before `=` is empty
   ╭─[--define:1:1]
 1 │ =x
   · ▲
   · ╰── no option
   ╰────
  help: the options are `description`, `strategy`, `hardware`, `tensorboard`, `cluster`, `ci`

"#]]
    );
    assert!(place.tree().is_empty());
}

#[test]
fn takes_values_from_a_file_and_definitions_first() {
    for header in ["", "[values]\n"] {
        let place = Place::new();
        let values = format!("{header}strategy = \"one-device\"\nhardware = \"cuda\"\n");
        place.put("values.toml", &values);
        place
            .kiln("new a --yes --vcs none --values values.toml -d hardware=wgpu")
            .assert()
            .success();
        let template = Template::embedded().unwrap();
        let answers = Answers::defaults(&template, Name::parse("a").unwrap())
            .and_then(|answers| answers.with(&template, "strategy", "one-device"))
            .and_then(|answers| answers.with(&template, "hardware", "wgpu"))
            .unwrap();
        let rendered = render(&template, &answers).unwrap();
        for file in &rendered.files {
            let found = fs::read(place.join("a").join(&file.path)).unwrap();
            assert_eq!(found, *file.contents, "{}", file.path.display());
        }
    }
}

#[test]
fn refuses_values_files() {
    let files = [
        "strategy = \"mirrored\"\nhardware = [\n",
        "strategy = 'mirrored'\nhardwear = 'cuda'\n",
        "hardware = 'coda'\n",
        "strategy = 3.5\n",
        "strategy = { is = 'a table' }\n",
        "[values]\nci = 'none'\n[other]\n",
        "strategy = 'mirrored'\n[values]\nci = 'none'\n",
        "values = 3\n",
        "strategy = 'mirrored'\nstrategy = 'mirrored'\n",
        "= nothing\n",
    ];
    let place = Place::new();
    let mut said = String::new();
    for text in files {
        place.put("v.toml", text);
        let output = place.kiln("new a --yes --values v.toml").output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{text}");
        said.push_str(&format!(
            "{text:?}\n{}",
            String::from_utf8_lossy(&output.stderr)
        ));
    }
    snapbox::assert_data_eq!(
        said,
        str![[r#"
"strategy = /"mirrored/"/nhardware = [/n"
  × `v.toml` is not valid TOML: unclosed array, expected `]`
   ╭─[v.toml:2:13]
 1 │ strategy = "mirrored"
 2 │ hardware = [
   ·             ▲
   ·             ╰── here
   ╰────
  help: lines of TOML are `key = "text"`, `[table]` or `# comment`
"strategy = 'mirrored'/nhardwear = 'cuda'/n"
  × there is no option `hardwear`
   ╭─[v.toml:2:1]
 1 │ strategy = 'mirrored'
 2 │ hardwear = 'cuda'
   · ────┬───
   ·     ╰── no option
   ╰────
  help: did you mean `hardware`? the options are `description`, `strategy`, `hardware`,
        `tensorboard`, `cluster`, `ci`
"hardware = 'coda'/n"
  × "coda" is not a value of the option `hardware`
   ╭─[v.toml:1:12]
 1 │ hardware = 'coda'
   ·            ───┬──
   ·               ╰── this value
   ╰────
  help: did you mean `cuda`? its values are `flex`, `cuda`, `wgpu`, `vulkan`, `metal`, `rocm`
"strategy = 3.5/n"
  × `strategy` should be a string
   ╭─[v.toml:1:12]
 1 │ strategy = 3.5
   ·            ─┬─
   ·             ╰── this is a float
   ╰────
  help: write `strategy = "text"`
"strategy = { is = 'a table' }/n"
  × `strategy` should be a string
   ╭─[v.toml:1:12]
 1 │ strategy = { is = 'a table' }
   ·            ─────────┬────────
   ·                     ╰── this is a table
   ╰────
  help: write `strategy = "text"`
"[values]/nci = 'none'/n[other]/n"
  × a values file has either all options under `[values]` or none
   ╭─[v.toml:3:2]
 2 │ ci = 'none'
 3 │ [other]
   ·  ──┬──
   ·    ╰── not under `[values]`
   ╰────
  help: move the key below `[values]`
"strategy = 'mirrored'/n[values]/nci = 'none'/n"
  × a values file has either all options under `[values]` or none
   ╭─[v.toml:1:1]
 1 │ strategy = 'mirrored'
   · ────┬───
   ·     ╰── not under `[values]`
 2 │ [values]
   ╰────
  help: move the key below `[values]`
"values = 3/n"
  × `values` should be a table
   ╭─[v.toml:1:10]
 1 │ values = 3
   ·          ┬
   ·          ╰── this is an integer
   ╰────
  help: write `[values]`, and its keys on the lines below
"strategy = 'mirrored'/nstrategy = 'mirrored'/n"
  × `v.toml` is not valid TOML: duplicate key
   ╭─[v.toml:2:1]
 1 │ strategy = 'mirrored'
 2 │ strategy = 'mirrored'
   · ────┬───
   ·     ╰── here
   ╰────
  help: lines of TOML are `key = "text"`, `[table]` or `# comment`
"= nothing/n"
  × `v.toml` is not valid TOML: unquoted keys cannot be empty, expected letters, numbers, `-`, `_`
   ╭─[v.toml:1:1]
 1 │ = nothing
   · ▲
   · ╰── here
   ╰────
  help: lines of TOML are `key = "text"`, `[table]` or `# comment`

"#]]
    );

    fs::write(place.join("v.toml"), [b'a', 0xff]).unwrap();
    place
        .kiln("new a --yes --values v.toml")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × the values file `v.toml` is not UTF-8 (byte 1)
   ╭─[v.toml:1:2]
 1 │ a�
   ·  ┬
   ·  ╰── not UTF-8
   ╰────
  help: save the file as UTF-8; a values file is TOML

"#]]);
    place
        .kiln("new a --yes --values absent.toml")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × cannot read the values file `absent.toml`
  ╰─▶ No such file or directory (os error 2)
  help: check the path: part of it does not exist

"#]]);
    place.kiln("new a --yes --values .").assert().code(2);
    assert!(!place.join("a").exists());
}

/// `--train` runs cargo in the new folder and exits with its status.
#[cfg(unix)]
#[test]
fn trains_and_passes_on_the_status() {
    let place = Place::new();
    place.put_program("cargo", "echo \"$@ in ${PWD##*/}\" > ran\nexit 42");
    place
        .kiln("new a --yes --vcs none --train")
        .env("CARGO", place.join("cargo"))
        .assert()
        .code(42);
    let ran = fs::read_to_string(place.join("a/ran")).unwrap();
    assert_eq!(ran, "run in a\n");

    // A likely reason is given if kernels need LLVM and it is missing.
    place
        .kiln("new c --yes --vcs none --define hardware=cuda --train")
        .env("CARGO", place.join("cargo"))
        .env("HOME", place.path())
        .env_remove("XDG_DATA_HOME")
        .assert()
        .code(42)
        .stderr_eq(str![[r#"
note: [..] fetches LLVM, https://github.com/tracel-ai/tracel-llvm/[..] as `kiln doctor` tells, and build with [..]=1; in an image, COPY both to [..], as launch/Dockerfile of a project for Kubernetes does

"#]]);

    place
        .kiln("new b --yes --vcs none --train")
        .env("CARGO", "no-such-program")
        .assert()
        .code(3)
        .stderr_eq(str![[r#"
  × cannot run `no-such-program`: No such file or directory (os error 2)
  help: install Rust, then run `cargo run` in the new folder

"#]]);
}

/// Environment variables and user configuration do not change the result.
#[test]
fn the_environment_changes_nothing() {
    let place = Place::new();
    place.put(
        "home/cargo-generate.toml",
        "[values]\nstrategy = \"one-device\"\nci = \"github\"\n",
    );
    place
        .kiln("new a --yes --vcs none")
        .env("HOME", place.join("home"))
        .env("CARGO_HOME", place.join("home"))
        .env("CARGO_GENERATE_VALUE_STRATEGY", "one-device")
        .env("CARGO_GENERATE_VALUE_CI", "github")
        .env("USER", "someone")
        .env("GIT_AUTHOR_NAME", "Someone Else")
        .env("LANG", "de_DE.UTF-8")
        .assert()
        .success();
    assert_has_default(&place, "a", "a");
}
