//! `--template`: a team's own template, with the same rules and errors as Kiln's.

use std::{fs, path::Path};

use crate::common::Place;
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

/// The error of `new a --strict --template t`, which must not create a project.
fn refusal(place: &Place, code: i32) -> String {
    let before = place.tree();
    let new = "new a --yes --strict --template t";
    let output = place.kiln(new).output().unwrap();
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
  cargo run
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
  × the argument `--template <TEMPLATE>` cannot be used with `--example <EXAMPLE>`
   ╭─[command line:1:12]
 1 │ kiln new a --template t --example keras-cnn
   ·            ─────┬────
   ·                 ╰── here
   ╰────
  help: usage: kiln new --template <TEMPLATE> <NAME>
        for more information, try `--help`.

"#]]);
}

#[test]
fn no_folder_of_a_template() {
    let place = Place::new();
    place.put("file", "");
    fs::create_dir(place.join("empty")).unwrap();
    let mut said = String::new();
    for template in ["absent", "file", "empty"] {
        for command in ["new a --yes --template", "options --template"] {
            let output = place
                .kiln(&format!("{command} {template}"))
                .output()
                .unwrap();
            let code = if template == "empty" { 4 } else { 2 };
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
  × there is no folder or favourite `absent`
  help: give the folder that has the `cargo-generate.toml`, a URL, or `owner/name` on GitHub
  × the template `file` is not a folder
  help: give the folder that has the `cargo-generate.toml`
  × `empty` has no files
  help: give the folder of a template: its files, and its options in a `cargo-generate.toml`

"#]]
    );
    assert!(!place.join("a").exists());
}

/// Features of cargo-generate that Kiln does not support, and mistakes that cargo-generate ignores.
#[test]
fn what_kiln_does_not_do() {
    let configs = [
        "[template]\nfmt = false\ninit = true\n",
        "[template]\nfmt = false\nvcs = \"git\"\n",
        "[template]\nfmt = false\ncargo_generate_version = \">=0.30\"\n",
        "[template]\nfmt = false\ncargo_generate_version = \"new\"\n",
        "[template]\nfmt = false\n[hooks]\npre = [\"ask.rhai\"]\n",
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
    let script = "{{ \"name.rhai\" | rhai }}\n";
    let scripted = place_with(&[("cargo-generate.toml", CONFIG), ("f.txt", script)]);
    said.push_str(&refusal(&scripted, 4));
    assert_data_eq!(
        said,
        str![[r#"
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
  × the `pre` hook `ask.rhai` does not exist
   ╭─[t/cargo-generate.toml:4:8]
 3 │ [hooks]
 4 │ pre = ["ask.rhai"]
   ·        ─────┬────
   ·             ╰── no file
   ╰────
  help: correct the path, or remove the hook
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
  × `t/f.txt` cannot be rendered: there is no script `name.rhai`; filter=rhai; input="name.rhai"
   ╭─[t/f.txt:1:1]
 1 │ {{ "name.rhai" | rhai }}
   · ────────────┬───────────
   ·             ╰── here
   ╰────
  help: use options, `[conditional]` rules and Liquid instead of the script

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
  help: did you mean `project-name`? the variables are `crate_name`, `crate_type`, `is_init`,
        `os-arch`, `project-name`, `authors`, `username`, `within_cargo_project`

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
  × `t` cannot be rendered, for 3 reasons:
  × `{{word}}/A` and `{{word}}/a` are the same path on Windows and macOS
   ╭─[t/{{word}}/a:1:10]
 1 │ {{word}}/a
   ·          ┬
   ·          ╰── differs only in case
   ╰────
  help: rename one of the two
  × there is no variable `word` in `t/{{word}}/A`
   ╭─[t/{{word}}/A:1:3]
 1 │ {{word}}
   ·   ──┬─
   ·     ╰── unknown
   ╰────
  help: the variables are `crate_name`, `crate_type`, `is_init`, `os-arch`, `project-name`,
        `authors`, `username`, `within_cargo_project`
  × there is no variable `word` in `t/{{word}}/a`
   ╭─[t/{{word}}/a:1:3]
 1 │ {{word}}
   ·   ──┬─
   ·     ╰── unknown
   ╰────
  help: the variables are `crate_name`, `crate_type`, `is_init`, `os-arch`, `project-name`,
        `authors`, `username`, `within_cargo_project`
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
  × `t` cannot be rendered, for 2 reasons:
  × `{{word}} ` is not a valid file name on Windows
   ╭─[t/{{word}} /b:1:9]
 1 │ {{word}} /b
   ·         ┬
   ·         ╰── not allowed at the end
   ╰────
  help: rename the file: projects must be the same on every system
  × there is no variable `word` in `t/{{word}} /b`
   ╭─[t/{{word}} /b:1:3]
 1 │ {{word}} 
   ·   ──┬─
   ·     ╰── unknown
   ╰────
  help: the variables are `crate_name`, `crate_type`, `is_init`, `os-arch`, `project-name`,
        `authors`, `username`, `within_cargo_project`
  × `t` cannot be rendered, for 2 reasons:
  × `a {{word | append: ":"}}?` is not a valid file name on Windows
   ╭─[t/a {{word | append: ":"}}?:1:25]
 1 │ a {{word | append: ":"}}?
   ·                         ┬
   ·                         ╰── not allowed in a name
   ╰────
  help: rename the file: projects must be the same on every system
  × there is no variable `word` in `t/a {{word | append: ":"}}?`
   ╭─[t/a {{word | append: ":"}}?:1:5]
 1 │ a {{word | append: ":"}}?
   ·     ──┬─
   ·       ╰── unknown
   ╰────
  help: the variables are `crate_name`, `crate_type`, `is_init`, `os-arch`, `project-name`,
        `authors`, `username`, `within_cargo_project`
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

/// As in cargo-generate, the only configuration makes its folder the template.
#[test]
fn a_template_further_down() {
    let place = place_with(&[("a/b/c/cargo-generate.toml", CONFIG), ("a/b/c/f.txt", "")]);
    let made = place.kiln("new a --yes --vcs none --template t");
    made.assert().success();
    assert!(place.join("a/f.txt").exists());
    place.put("t/c/cargo-generate.toml", CONFIG);
    let output = place.kiln("new b --yes --template t").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    let hint = "`t` has 2 templates\n  help: choose one: `--template t/a/b/c`, `--template t/c`";
    assert!(said.contains(hint), "{said}");
}

/// Other files are not read, so their errors do not matter.
#[cfg(target_os = "linux")]
#[test]
fn files_outside_the_template_are_not_read() {
    use std::{ffi::OsStr, os::unix::ffi::OsStrExt};

    let place = place_with(&[("a/b", ""), ("x/cargo-generate.toml", CONFIG)]);
    fs::write(place.join("t/a").join(OsStr::from_bytes(b"\xff")), "").unwrap();
    let made = place.kiln("new a --yes --vcs none --template t");
    made.assert().success();
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
  × `x/../t/x/a` leads back out of `x`, which does not exist
  help: write `t/x/a`
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
  text in the form of `@vision`, with the regex `^@[a-z]+$`

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
  text in the template's form, with the regex `^[0-9]{20}$`

The effect of values is not shown: `key` has neither default nor known values.

Set them with --define KEY=VALUE or in a --values file.

"#]]);
    place.put("t/cargo-generate.toml", CONFIG);
    options("t").success().stdout_eq(str![[r#"
The template has no options.

"#]]);
}

const PACKAGE: &str = "[package]\nname = \"{{project-name}}\"\nedition = \"2021\"\n";

/// A workflow of GitHub is copied with a warning, as cargo-generate copies it.
#[test]
fn mistakes_that_cargo_generate_renders() {
    let place = place_with(&[
        ("cargo-generate.toml", CONFIG),
        (
            ".github/workflows/ci.yml",
            "on: push\nos: ${{ matrix.os }}\n",
        ),
        ("README.md", "{{ crate_nam }}{{crate_name}}\n"),
    ]);
    let said = str![[r#"
warning: t/.github/workflows/ci.yml:2:9: there is no variable `matrix`, so nothing in the file is rendered
warning: t/README.md:1:4: there is no variable `crate_nam`, so it is empty; did you mean `crate_name`?
help: put text that is not Liquid between `{% raw %}` and `{% endraw %}`, or list its file in `exclude` of `cargo-generate.toml`; `kiln new --strict` refuses such files

"#]];
    let new = "new a --yes --vcs none --template t";
    let dry = format!("{new} --dry-run");
    place.kiln(&dry).assert().success().stderr_eq(said.clone());
    assert!(!place.join("a").exists());
    place.kiln(new).assert().success().stderr_eq(said);
    let read = |path: &str| fs::read_to_string(place.join(path)).unwrap();
    assert_eq!(
        read("a/.github/workflows/ci.yml"),
        read("t/.github/workflows/ci.yml")
    );
    assert_eq!(read("a/README.md"), "a\n");

    let strict = place.kiln("new b --yes --vcs none --strict --template t");
    strict.assert().code(4).stderr_eq(str![[r#"
  × `t` cannot be rendered, for 2 reasons:
  × there is no variable `matrix` in `t/.github/workflows/ci.yml`
   ╭─[t/.github/workflows/ci.yml:2:9]
 1 │ on: push
 2 │ os: ${{ matrix.os }}
   ·         ───┬──
   ·            ╰── unknown
   ╰────
  help: the variables are `crate_name`, `crate_type`, `is_init`, `os-arch`, `project-name`,
        `authors`, `username`, `within_cargo_project`
  × there is no variable `crate_nam` in `t/README.md`
   ╭─[t/README.md:1:4]
 1 │ {{ crate_nam }}{{crate_name}}
   ·    ────┬────
   ·        ╰── unknown
   ╰────
  help: did you mean `crate_name`? the variables are `crate_name`, `crate_type`, `is_init`,
        `os-arch`, `project-name`, `authors`, `username`, `within_cargo_project`

"#]]);
    assert!(!place.join("b").exists());

    for number in 10..22 {
        place.put(&format!("t/{number}.txt"), "{{ nope }}");
    }
    let output = place.kiln(&dry.replace("new a", "new c")).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 12, "{said}");
    assert!(
        said.contains("warning: and 4 more of this kind\n"),
        "{said}"
    );
}

#[test]
fn rust_files_are_formatted() {
    let place = place_with(&[
        (
            "cargo-generate.toml",
            "[template]\ninclude = [\"Cargo.toml\"]\n",
        ),
        ("Cargo.toml", PACKAGE),
        ("src/main.rs", "fn  main(){}\n"),
        ("src/part.rs", "let x;\n"),
    ]);
    place
        .kiln("new a --yes --vcs none --template t")
        .assert()
        .success()
        .stderr_eq(str![[r#"
warning: src/part.rs:1:1: rustfmt: expected item, found keyword `let`
help: rustfmt leaves such a file as it is; correct it, or set `fmt = false` in `[template]` of `cargo-generate.toml`

"#]]);
    let read = |path: &str| fs::read_to_string(place.join(path)).unwrap();
    assert_eq!(read("a/src/main.rs"), "fn main() {}\n");
    assert_eq!(read("a/src/part.rs"), "let x;\n");

    let bare = place
        .kiln("new b --yes --vcs none --template t")
        .env("PATH", "");
    bare.assert().success().stderr_eq(str![[r#"
warning: rustfmt: not found
help: the Rust files are not formatted: install rustfmt (`rustup component add rustfmt`), or set `fmt = false` in `[template]` of `cargo-generate.toml`

"#]]);
    assert_eq!(read("b/src/main.rs"), "fn  main(){}\n");
}

/// Both sides of a merge are formatted, so that an update changes what the template changed.
#[test]
fn an_update_formats_both_sides() {
    let record = "kiln = \"1\"\ntemplate = \"t\"\nname = \"a\"\n";
    let place = place_with(&[
        (
            "cargo-generate.toml",
            "[template]\ninclude = [\"Cargo.toml\"]\n",
        ),
        ("Cargo.toml", PACKAGE),
        (".kiln.toml", record),
        ("src/main.rs", "fn  main(){  a( 1 ) }\nfn  a(x:u8){ }\n"),
        ("src/same.rs", "fn  b(){  }\n"),
    ]);
    place
        .kiln("new a --yes --vcs none --template t")
        .assert()
        .success();
    for file in [
        "cargo-generate.toml",
        "Cargo.toml",
        ".kiln.toml",
        "src/same.rs",
    ] {
        let text = fs::read_to_string(place.join(&format!("t/{file}"))).unwrap();
        place.put(&format!("u/{file}"), &text);
    }
    place.put("u/src/main.rs", "fn  main(){  a( 2 ) }\nfn  a(x:u8){ }\n");
    let main = "fn main() {\n    a(1)\n}\nfn a(x: u8) {}\n";
    assert_eq!(
        fs::read_to_string(place.join("a/src/main.rs")).unwrap(),
        main
    );
    place.put("a/src/main.rs", &format!("{main}// mine\n"));
    let update = "update a --from t --template u --allow-dirty --format json";
    let output = place.kiln(update).output().unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    let merged = fs::read_to_string(place.join("a/src/main.rs")).unwrap();
    assert_eq!(merged, format!("{}// mine\n", main.replace('1', "2")));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(!said.contains("same.rs"), "{said}");
}
