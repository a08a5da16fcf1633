//! `--template`: a team's own template, with the same rules and errors as Kiln's.

mod common;

use std::{fs, path::Path};

use common::Place;
#[cfg(target_os = "linux")]
use kiln::template::Template;
use snapbox::{assert_data_eq, str};

const CONFIG: &str = "[template]\nfmt = false\n";

fn team() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/team");
    folder.display().to_string()
}

/// A folder with a template `t` of these files.
fn place_with(files: &[(&str, &str)]) -> Place {
    let place = Place::new();
    for (file, text) in files {
        place.put(&format!("t/{file}"), text);
    }
    place
}

/// The error of `new a --template t`, which must not create a project.
fn refusal(place: &Place, code: i32) -> String {
    let before = place.tree();
    let output = place.kiln("new a --yes --template t").output().unwrap();
    assert_eq!(output.status.code(), Some(code), "{output:?}");
    assert!(output.stdout.is_empty());
    assert_eq!(place.tree(), before);
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn makes_a_project_of_it() {
    let place = Place::new();
    place
        .command()
        .args(["new", "MyModel", "--vcs", "none", "--template", &team()])
        .args(["-d", "owner=@core", "-d", "logo=false"])
        .env("GIT_AUTHOR_NAME", "Ann")
        .env("GIT_AUTHOR_EMAIL", "ann@example.org")
        .assert()
        .success()
        .stderr_eq("")
        .stdout_eq(str![[r#"
Package name: `MyModel` becomes `my-model`.
Created `my-model` in my-model: 6 files.

  owner  @core
  size   small
  logo   false

Next:
  cd my-model
  cargo run --release
  cargo test             # the contract tests

"#]]);
    let manifest = fs::read_to_string(place.join("my-model/Cargo.toml")).unwrap();
    assert!(manifest.contains("name = \"my-model\"") && manifest.contains("Ann <ann@example.org>"));
    assert_eq!(
        fs::read_to_string(place.join("my-model/OWNERS")).unwrap(),
        "* @core\n"
    );
    assert!(!place.join("my-model/logo.png").exists());
}

#[test]
fn says_only_what_can_be_done() {
    let place = place_with(&[
        ("cargo-generate.toml", CONFIG),
        ("README.md", "{{project-name}}"),
    ]);
    place
        .kiln("new a --yes --vcs none --template t")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Created `a` in a: 1 file.

Next:
  cd a
  less README.md

"#]]);
    place.put("t/todos.toml", "");
    place.put("t/Cargo.toml", "[package]\nname = \"{{project-name}}\"\n");
    place
        .kiln("new b --yes --vcs none --template t")
        .assert()
        .success()
        .stdout_eq(str![[r#"
Created `b` in b: 3 files.

Next:
  cd b
  cargo test
  kiln todos             # the sites to change for your task

"#]]);
}

#[test]
fn trains_nothing_without_a_package() {
    let place = place_with(&[("cargo-generate.toml", CONFIG)]);
    let assert = place
        .kiln("new a --yes --train --template t")
        .assert()
        .code(2);
    assert.stderr_eq(str![[r#"
  × the template has no `Cargo.toml`, so there is nothing to train
  help: remove `--train`

"#]]);
    assert!(!place.join("a").exists());
}

#[test]
fn the_template_chooses_the_version_control() {
    let config = format!("{CONFIG}vcs = \"None\"\n");
    let place = place_with(&[("cargo-generate.toml", &config)]);
    let made = |args: &str| {
        place.kiln(args).assert().success();
    };
    made("new a --yes --template t");
    assert!(!place.join("a/.git").exists());
    made("new b --yes --template t --vcs git");
    assert!(place.join("b/.git/HEAD").exists());
    place.put("t/cargo-generate.toml", CONFIG);
    made("new c --yes --template t");
    assert!(place.join("c/.git/HEAD").exists());
}

#[test]
fn an_example_is_of_kilns_template() {
    let place = place_with(&[("cargo-generate.toml", CONFIG)]);
    place
        .kiln("new a --template t --example keras-cnn")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × the argument `--template <FOLDER>` cannot be used with `--example <EXAMPLE>`
   ╭─[command line:1:12]
 1 │ kiln new a --template t --example keras-cnn
   ·            ─────┬────
   ·                 ╰── here
   ╰────
  help: usage: kiln new --template <FOLDER> <NAME>
        for more information, try `--help`.

"#]]);
}

#[test]
fn no_folder_of_a_template() {
    let place = Place::new();
    place.put("file", "");
    place.put("house/README.md", "");
    place.put("house/template/cargo-generate.toml", CONFIG);
    place.put("empty/README.md", "");
    let mut said = String::new();
    for template in [
        "absent",
        "file",
        "house",
        "empty",
        "https://example.org/team/template.git",
        "git@example.org:team/template.git",
        "gh:team/template",
    ] {
        for command in ["new a --yes --template", "options --template"] {
            let output = place
                .kiln(&format!("{command} {template}"))
                .output()
                .unwrap();
            let code = if ["house", "empty"].contains(&template) {
                4
            } else {
                2
            };
            assert_eq!(output.status.code(), Some(code), "{template}");
            let text = String::from_utf8(output.stderr).unwrap();
            if command.starts_with("new") {
                said.push_str(&text);
            } else {
                assert!(said.ends_with(&text), "{text}");
            }
        }
    }
    assert_data_eq!(
        said,
        str![[r#"
  × there is no folder `absent`
  help: give the folder that has the `cargo-generate.toml`
  × the template `file` is not a folder
  help: give the folder that has the `cargo-generate.toml`
  × `house` has no `cargo-generate.toml`
  help: there is a template in `house/template`
  × `empty` has no `cargo-generate.toml`
  help: a template needs this file for its options and rules; an empty `[placeholders]`, and
        `[template]` with `fmt = false`, are enough
  × `https://example.org/team/template.git` is a repository, but `--template` requires a folder
  help: clone it first (`git clone https://example.org/team/template.git`), then give the folder
        of the template in it
  × `git@example.org:team/template.git` is a repository, but `--template` requires a folder
  help: clone it first (`git clone git@example.org:team/template.git`), then give the folder of
        the template in it
  × `gh:team/template` is a repository, but `--template` requires a folder
  help: clone it first (`git clone https://github.com/team/template`), then give the folder of the
        template in it

"#]]
    );
    assert!(!place.join("a").exists());
}

/// Features of cargo-generate that Kiln does not support, and mistakes that cargo-generate ignores.
#[test]
fn what_kiln_does_not_do() {
    let configs = [
        "[template]\n",
        "[template]\nfmt = false\nsub_templates = [\"a\", \"b\"]\n",
        "[template]\nfmt = false\ninit = true\n",
        "[template]\nfmt = false\nvcs = \"git\"\n",
        "[template]\nfmt = false\ncargo_generate_version = \">=0.30\"\n",
        "[template]\nfmt = false\ncargo_generate_version = \"new\"\n",
        "[template]\nfmt = false\ninclude = [\"f.txt\"]\nexclude = [\"g.txt\"]\n",
        "[template]\nfmt = false\n[hooks]\npre = [\"ask.rhai\"]\n",
        "[template]\nfmt = false\n[conditional.'crate_type == \"lib\"'.placeholders.x]\nprompt = \"?\"\n",
        "[template]\nfmt = false\n[placeholders]\nx = { prompt = \"?\", type = \"int\" }\n",
        "[template]\nfmt = false\n[placeholders]\nx = { prompt = \"?\", regex = \"[\" }\n",
        "[template]\nfmt = false\n[placeholders]\nx = { prompt = \"?\", type = \"bool\", regex = \"a\" }\n",
        "[template]\nfmt = false\n[placeholders]\nx = { prompt = \"?\", choices = [\"a\"], regex = \"a\" }\n",
    ];
    let mut said = String::new();
    for config in configs {
        let place = place_with(&[
            ("cargo-generate.toml", config),
            ("f.txt", ""),
            ("g.txt", ""),
        ]);
        said.push_str(&refusal(&place, 4));
    }
    let ignored = place_with(&[("cargo-generate.toml", CONFIG), (".genignore", "f.txt\n")]);
    said.push_str(&refusal(&ignored, 4));
    let script = "{{ \"name.rhai\" | rhai }}\n";
    let scripted = place_with(&[("cargo-generate.toml", CONFIG), ("f.txt", script)]);
    said.push_str(&refusal(&scripted, 4));
    assert_data_eq!(
        said,
        str![[r#"
  × `t/cargo-generate.toml` requests formatting of the generated files
  help: set `fmt = false` in `[template]` and format the files of the template
  × Kiln does not support sub-templates
   ╭─[t/cargo-generate.toml:3:1]
 2 │ fmt = false
 3 │ sub_templates = ["a", "b"]
   · ──────┬──────
   ·       ╰── not supported
   ╰────
  help: use options, `include`, `exclude`, `ignore` and `[conditional]` rules
  × Kiln always creates a new folder
   ╭─[t/cargo-generate.toml:3:1]
 2 │ fmt = false
 3 │ init = true
   · ──┬─
   ·   ╰── not supported
   ╰────
  help: use options, `include`, `exclude`, `ignore` and `[conditional]` rules
  × "git" is not a version control system
   ╭─[t/cargo-generate.toml:3:7]
 2 │ fmt = false
 3 │ vcs = "git"
   ·       ──┬──
   ·         ╰── here
   ╰────
  help: did you mean `Git`? they are `None`, `Git`
  × the template requires cargo-generate >=0.30; Kiln implements the rules of 0.26.0
   ╭─[t/cargo-generate.toml:3:26]
 2 │ fmt = false
 3 │ cargo_generate_version = ">=0.30"
   ·                          ────┬───
   ·                              ╰── here
   ╰────
  help: widen the requirement if the template renders correctly
  × `new` is not a version requirement: unexpected character 'n' while parsing major version
  │ number
   ╭─[t/cargo-generate.toml:3:26]
 2 │ fmt = false
 3 │ cargo_generate_version = "new"
   ·                          ──┬──
   ·                            ╰── here
   ╰────
  × `exclude` has no effect next to `include`
   ╭─[t/cargo-generate.toml:4:12]
 3 │ include = ["f.txt"]
 4 │ exclude = ["g.txt"]
   ·            ───┬───
   ·               ╰── has no effect
   ╰────
  help: `include` lists every file to render: remove `exclude`
  × hooks are not run by Kiln
   ╭─[t/cargo-generate.toml:3:2]
 2 │ fmt = false
 3 │ [hooks]
   ·  ──┬──
   ·    ╰── not supported
 4 │ pre = ["ask.rhai"]
   ╰────
  help: use options, `include`, `exclude`, `ignore` and `[conditional]` rules
  × Kiln does not support conditional options
   ╭─[t/cargo-generate.toml:3:36]
 2 │ fmt = false
 3 │ [conditional.'crate_type == "lib"'.placeholders.x]
   ·                                    ──────┬─────
   ·                                          ╰── not supported
 4 │ prompt = "?"
   ╰────
  help: use options, `include`, `exclude`, `ignore` and `[conditional]` rules
  × an option cannot be of type `int` without choices
   ╭─[t/cargo-generate.toml:4:1]
 3 │ [placeholders]
 4 │ x = { prompt = "?", type = "int" }
   · ┬
   · ╰── this option
   ╰────
  help: there are `string`, also with choices; `text` and `editor`; `array` with choices; and
        `bool`
  × the regex of `x` is invalid
   ╭─[t/cargo-generate.toml:4:30]
 3 │ [placeholders]
 4 │ x = { prompt = "?", regex = "[" }
   ·                              ┬
   ·                              ╰── unclosed character class
   ╰────
  help: use the syntax of the crate `regex`: https://docs.rs/regex
  × only a string without choices can have a `regex`
   ╭─[t/cargo-generate.toml:4:44]
 3 │ [placeholders]
 4 │ x = { prompt = "?", type = "bool", regex = "a" }
   ·                                            ─┬─
   ·                                             ╰── here
   ╰────
  help: remove `regex`, or make the option a string without choices
  × only a string without choices can have a `regex`
   ╭─[t/cargo-generate.toml:4:46]
 3 │ [placeholders]
 4 │ x = { prompt = "?", choices = ["a"], regex = "a" }
   ·                                              ─┬─
   ·                                               ╰── here
   ╰────
  help: remove `regex`, or make the option a string without choices
  × `t` has a `.genignore`, which Kiln does not support
  help: list its entries as `ignore` in the `[template]` table instead
  × `t/f.txt` is not valid Liquid: Unknown filter; requested filter=rhai
   ╭─[t/f.txt:1:1]
 1 │ {{ "name.rhai" | rhai }}
   · ────────────┬───────────
   ·             ╰── here
   ╰────
  help: Kiln does not run scripts: use options, `[conditional]` rules and Liquid

"#]]
    );
}

#[cfg(unix)]
#[test]
fn a_symbolic_link_in_it() {
    let place = place_with(&[("cargo-generate.toml", CONFIG), ("f.txt", "")]);
    std::os::unix::fs::symlink("f.txt", place.join("t/link")).unwrap();
    assert_data_eq!(
        refusal(&place, 4),
        str![[r#"
  × `t/link` is neither a file nor a folder and would be missing from every project
  help: replace a symbolic link by a copy of its target

"#]]
    );
}

#[test]
fn errors_in_its_files_and_answers() {
    let place = place_with(&[
        ("cargo-generate.toml", CONFIG),
        ("src/main.rs", "fn main() {\n    {{ projet-name }}\n}\n"),
    ]);
    assert_data_eq!(
        refusal(&place, 4),
        str![[r#"
  × there is no variable `projet-name` in `t/src/main.rs`
   ╭─[t/src/main.rs:2:8]
 1 │ fn main() {
 2 │     {{ projet-name }}
   ·        ─────┬─────
   ·             ╰── unknown
 3 │ }
   ╰────
  help: did you mean `project-name`? the variables are `crate_name`, `crate_type`, `is_init`, `os-
        arch`, `project-name`, `authors`, `username`, `within_cargo_project`

"#]]
    );
    let asks = format!("{CONFIG}[placeholders.owner]\nprompt = \"?\"\nregex = \"^@\"\n");
    let place = place_with(&[("cargo-generate.toml", &asks)]);
    assert_data_eq!(
        refusal(&place, 2),
        str![[r#"
  × the option `owner` has no default
  help: add `--define owner=VALUE`

"#]]
    );
}

/// Linux allows all of these names.
#[cfg(target_os = "linux")]
#[test]
fn names_that_not_every_system_takes() {
    use snapbox::IntoData as _;

    let place = |names: &[&str]| {
        let files: Vec<_> = names.iter().map(|name| (*name, "")).collect();
        place_with(&[&[("cargo-generate.toml", CONFIG)], &files[..]].concat())
    };
    let mut said = String::new();
    for names in [
        &["Makefile", "makefile"][..],
        &["src/Ä.rs.liquid", "src/ä.rs"],
        &["Src/a.rs", "src/b.rs"],
        &["{{word}}/A", "{{word}}/a"],
        &["docs/con.tar.gz"],
        &["LPT9"],
        &["nul .txt"],
        &["Aux/a.rs"],
        &["a."],
        &["{{word}} /b"],
        &["a {{word | append: \":\"}}?"],
        &["a\\b"],
        &["a\nb"],
    ] {
        said.push_str(&refusal(&place(names), 4));
    }
    assert_data_eq!(
        said,
        str![[r#"
  × `Makefile` and `makefile` are the same path on Windows and macOS
   ╭─[t/makefile:1:1]
 1 │ makefile
   · ────┬───
   ·     ╰── differs only in case
   ╰────
  help: rename one of the two
  × `src/Ä.rs` and `src/ä.rs` are the same path on Windows and macOS
   ╭─[t/src/ä.rs:1:5]
 1 │ src/ä.rs
   ·     ──┬─
   ·       ╰── differs only in case
   ╰────
  help: rename one of the two
  × `Src` and `src` are the same path on Windows and macOS
   ╭─[t/src:1:1]
 1 │ src
   · ─┬─
   ·  ╰── differs only in case
   ╰────
  help: rename one of the two
  × `{{word}}/A` and `{{word}}/a` are the same path on Windows and macOS
   ╭─[t/{{word}}/a:1:10]
 1 │ {{word}}/a
   ·          ┬
   ·          ╰── differs only in case
   ╰────
  help: rename one of the two
  × `con.tar.gz` is not a valid file name on Windows
   ╭─[t/docs/con.tar.gz:1:6]
 1 │ docs/con.tar.gz
   ·      ─┬─
   ·       ╰── a reserved device name
   ╰────
  help: rename the file: projects must be the same on every system
  × `LPT9` is not a valid file name on Windows
   ╭─[t/LPT9:1:1]
 1 │ LPT9
   · ──┬─
   ·   ╰── a reserved device name
   ╰────
  help: rename the file: projects must be the same on every system
  × `nul .txt` is not a valid file name on Windows
   ╭─[t/nul .txt:1:1]
 1 │ nul .txt
   · ─┬─
   ·  ╰── a reserved device name
   ╰────
  help: rename the file: projects must be the same on every system
  × `Aux` is not a valid file name on Windows
   ╭─[t/Aux/a.rs:1:1]
 1 │ Aux/a.rs
   · ─┬─
   ·  ╰── a reserved device name
   ╰────
  help: rename the file: projects must be the same on every system
  × `a.` is not a valid file name on Windows
   ╭─[t/a.:1:2]
 1 │ a.
   ·  ┬
   ·  ╰── not allowed at the end
   ╰────
  help: rename the file: projects must be the same on every system
  × `{{word}} ` is not a valid file name on Windows
   ╭─[t/{{word}} /b:1:9]
 1 │ {{word}} /b
   ·         ┬
   ·         ╰── not allowed at the end
   ╰────
  help: rename the file: projects must be the same on every system
  × `a {{word | append: ":"}}?` is not a valid file name on Windows
   ╭─[t/a {{word | append: ":"}}?:1:25]
 1 │ a {{word | append: ":"}}?
   ·                         ┬
   ·                         ╰── not allowed in a name
   ╰────
  help: rename the file: projects must be the same on every system
  × `a\b` is not a valid file name on Windows
   ╭─[t/a\b:1:2]
 1 │ a\b
   ·  ┬
   ·  ╰── not allowed in a name
   ╰────
  help: rename the file: projects must be the same on every system
  × `a\nb` is not a valid file name on Windows
   ╭─[t/a\nb:1:2]
 1 │ a\nb
   ·  ─┬
   ·   ╰── not allowed in a name
   ╰────
  help: rename the file: projects must be the same on every system

"#]]
        .raw()
    );
    let taken = [
        "{{word | append: \"a:b\"}}.rs",
        "{{WORD}}.md",
        "{{word}}.md",
        "console",
        "com10",
        "a.con",
        ".gitignore",
        "é b",
        "own/CON",
        "own/con",
        "own/a?",
    ];
    let place = place(&taken);
    let config = format!("{CONFIG}ignore = [\"own\"]\n");
    place.put("t/cargo-generate.toml", &config);
    let template = Template::from_folder(&place.join("t")).unwrap();
    template.check().unwrap();
}

/// A folder without a template may be large, so only the next two levels are searched.
#[test]
fn a_template_further_down() {
    let place = place_with(&[("a/b/c/cargo-generate.toml", CONFIG)]);
    let said = refusal(&place, 4);
    assert!(said.contains("a template needs this file"), "{said}");
    for (path, inner) in [("b/in", "t/b/in"), ("c", "t/c")] {
        place.put(&format!("t/{path}/cargo-generate.toml"), CONFIG);
        let said = refusal(&place, 4);
        let hint =
            format!("`t` has no `cargo-generate.toml`\n  help: there is a template in `{inner}`");
        assert!(said.contains(&hint), "{said}");
    }
}

/// Other files are not read, so their errors do not matter.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_is_no_template_is_not_read() {
    use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt};

    let place = place_with(&[("a/b/c", "")]);
    fs::write(place.join("t/a").join(OsStr::from_bytes(b"\xff")), "").unwrap();
    let output = place.kiln("new a --yes --template t").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("`t` has no `cargo-generate.toml`"), "{said}");
}

/// Neither may contain the other.
#[test]
fn a_project_and_its_template_lie_apart() {
    let place = place_with(&[("cargo-generate.toml", CONFIG), ("f.txt", "")]);
    let before = place.tree();
    let mut said = String::new();
    for args in [
        "new a --yes --template t --path t/a",
        "new a --yes --template t --path t/../t/x/a",
        "new a --yes --template t --path x/../t/x/a",
        "new a --yes --force --template t --path t",
        "new a --yes --force --template t --path .",
        "new a --yes --template ./t/../t --path t/sub",
    ] {
        let output = place.kiln(args).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args}");
        assert_eq!(place.tree(), before, "{args}");
        said.push_str(&String::from_utf8(output.stderr).unwrap());
    }
    assert_data_eq!(
        said,
        str![[r#"
  × the project `t/a` would lie inside its template `t`
  help: give another folder with `--path`
  × the project `t/../t/x/a` would lie inside its template `t`
  help: give another folder with `--path`
  × the project `x/../t/x/a` would lie inside its template `t`
  help: give another folder with `--path`
  × the project `t` would lie inside its template `t`
  help: give another folder with `--path`
  × the template `t` lies inside the project's folder `.`
  help: give another folder with `--path`
  × the project `t/sub` would lie inside its template `./t/../t`
  help: give another folder with `--path`

"#]]
    );
    let within = place
        .kiln("new a --yes --template . --path a")
        .current_dir(place.join("t"));
    within.assert().code(2);
    assert_eq!(place.tree(), before);
    place.kiln("new t2 --yes --template t").assert().success();
}

#[cfg(unix)]
#[test]
fn a_link_to_the_template_is_the_template() {
    let place = place_with(&[("cargo-generate.toml", CONFIG)]);
    std::os::unix::fs::symlink("t", place.join("link")).unwrap();
    let before = place.tree();
    for args in ["--template link --path t/a", "--template t --path link/a"] {
        place.kiln(&format!("new a --yes {args}")).assert().code(2);
    }
    assert_eq!(place.tree(), before);
    place.kiln("new a --yes --template link").assert().success();
}

#[test]
fn its_options() {
    let team = team();
    let place = Place::new();
    let options = |template: &str| {
        place
            .kiln(&format!("options --template {template}"))
            .assert()
    };
    options(&team).success().stdout_eq(str![[r#"
owner: Which team owns the project?
  @vision (default)
  must match the regex ^@[a-z]+$

size: How large is the model?
  small (default)
  large
    changes Cargo.toml

logo: Shall it have a logo?
  false
    removes logo.png
  true (default)

Set them with --define KEY=VALUE or in a --values file.

"#]]);
    let config = "[placeholders.owner]\nprompt = \"Who?\"\n[placeholders.ci]\nprompt = \"CI?\"\n\
        choices = [\"no\", \"yes\"]\n";
    place.put("t/cargo-generate.toml", &format!("{CONFIG}{config}"));
    place.put("t/f.txt", "{{owner}} {{ci}}");
    options("t").success().stdout_eq(str![[r#"
owner: Who?
  any text
  no default

ci: CI?
  no
  yes
    changes f.txt
  no default

Set them with --define KEY=VALUE or in a --values file.

"#]]);
    let config = "[placeholders.key]\nprompt = \"Key?\"\nregex = '^[0-9]{20}$'\n";
    place.put("t/cargo-generate.toml", &format!("{CONFIG}{config}"));
    place.put("t/f.txt", "");
    options("t").success().stdout_eq(str![[r#"
key: Key?
  no default
  must match the regex ^[0-9]{20}$

The effect of values is not shown: `key` has neither default nor known values.

Set them with --define KEY=VALUE or in a --values file.

"#]]);
    place.put("t/cargo-generate.toml", CONFIG);
    options("t").success().stdout_eq(str![[r#"
The template has no options.

"#]]);
}
