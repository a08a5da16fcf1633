//! Templates that strangers wrote: what Kiln says about them.

// Messages of the file system, and terminals, differ on Windows.
#![cfg(unix)]

use crate::common::Place;
use crate::terminal::Terminal;
use snapbox::{IntoData, assert_data_eq, str};

/// A folder with these files.
fn place_with(files: &[(&str, &str)]) -> Place {
    let place = Place::new();
    for (file, text) in files {
        place.put(file, text);
    }
    place
}

fn read(place: &Place, path: &str) -> String {
    std::fs::read_to_string(place.join(path)).unwrap()
}

const DEAD: &[(&str, &str)] = &[
    (
        "t/cargo-generate.toml",
        "[template]\nfmt = false\nexclude = [\"*.png\", \"!a\"]\nignore = [\"old\", \"*.md\", \"b.txt.liquid\"]\n\
         [conditional.'crate_type == \"lib\"']\nexclude = [\"*.svg\"]\n",
    ),
    ("t/.genignore", "a{b\nc.txt\n"),
    ("t/b.txt.liquid", "{{ project-name }}"),
    ("t/c.txt", "{{ left out"),
];

#[test]
fn patterns_that_match_nothing_are_warnings() {
    let place = place_with(DEAD);
    let made = place.kiln("new a --yes --vcs none --template t");
    made.assert().success().stderr_eq(str![[r#"
warning: `a{b` is not a valid pattern (t/.genignore:1): error parsing glob 'a{b': unclosed alternate group; missing '}' (maybe escape '{' with '[{]'?)
warning: `*.png` matches no file of the template (t/cargo-generate.toml:3:12): correct or remove it
warning: `old` matches no file of the template (t/cargo-generate.toml:4:11): correct or remove it
warning: `*.md` matches no file of the template (t/cargo-generate.toml:4:18): `ignore` lists paths, not patterns
warning: `b.txt.liquid` matches no file of the template (t/cargo-generate.toml:4:26): names are without `.liquid` here
warning: `*.svg` matches no file of the template (t/cargo-generate.toml:6:12): correct or remove it

"#]]);
    assert_eq!(read(&place, "a/b.txt"), "a");
    assert!(!place.join("a/c.txt").exists());
    let listed = place.kiln("options --template t").output().unwrap();
    let said = String::from_utf8(listed.stderr).unwrap();
    assert_eq!(said.matches("warning: ").count(), 6, "{said}");
}

const HOOKS: &[(&str, &str)] = &[
    (
        "t/cargo-generate.toml",
        "[template]\nfmt = false\n[hooks]\npre = [\"hooks/pre.rhai\"]\npost = [\"post.rhai\", \"fmt\"]\n",
    ),
    (
        "t/hooks/pre.rhai",
        "// Asks for the licence.\nlet licence = variable::prompt(\"Licence?\", \"MIT\", [\"MIT\", \"Apache\"]);\n\
         if licence == \"MIT\" {\n    file::delete(\"LICENSE-APACHE\");\n}\nfile::rename(\"main.rs\", `src/${variable::get(\"crate_name\")}.rs`);\n\
         if licence.len() == 0 { abort(\"no licence\") }\n",
    ),
    ("t/post.rhai", "system::command(\"cargo\", [\"fmt\"]);"),
    ("t/main.rs", "// {{ project-name }}\n"),
];

#[test]
fn hooks_are_named_with_what_they_would_do() {
    let place = place_with(HOOKS);
    let before = place.tree();
    let output = place.kiln("new a --yes --template t").output().unwrap();
    assert_eq!(output.status.code(), Some(4));
    assert_eq!(place.tree(), before);
    assert_data_eq!(
        String::from_utf8(output.stderr).unwrap(),
        str![[r#"
  × `t` cannot be rendered, for 2 reasons:
  × the `pre` hook `hooks/pre.rhai` is a script, and Kiln runs none
   ╭─[t/cargo-generate.toml:4:8]
 3 │ [hooks]
 4 │ pre = ["hooks/pre.rhai"]
   ·        ────────┬───────
   ·                ╰── not run
 5 │ post = ["post.rhai", "fmt"]
   ╰────
  help: it would call
          `variable::prompt("Licence?", "MIT", ["MIT", "Apache"])` in line 2
          `file::delete("LICENSE-APACHE")` in line 4
          `file::rename("main.rs", `src/${variable::get("crate_name")}.rs`)` in line 6
          `abort("no licence")` in line 7
        instead of `variable::prompt`: an option in `[placeholders]`, or in
        `[conditional.'EXPRESSION'.placeholders]`
        instead of `file::rename`: a path with placeholders, such as `src/{{crate_name}}.rs`
        instead of `file::delete`: `ignore` with the path, under `[conditional.'EXPRESSION']`
        instead of `abort`: a `regex` or `choices` of the option
        to render without the hooks, as they are now, add `--skip-hooks`
  × the `post` hook `post.rhai` is a script, and Kiln runs none
   ╭─[t/cargo-generate.toml:5:9]
 4 │ pre = ["hooks/pre.rhai"]
 5 │ post = ["post.rhai", "fmt"]
   ·         ─────┬─────
   ·              ╰── not run
   ╰────
  help: it would call
          `system::command("cargo", ["fmt"])` in line 1
        instead of `system::command`: a line in the README: what the user is to run
        to render without the hooks, as they are now, add `--skip-hooks`

"#]]
        .raw()
    );
    let made = place.kiln("new a --yes --vcs none --template t --skip-hooks");
    made.assert().success().stderr_eq(str![[r#"
warning: the `pre` hook `hooks/pre.rhai` is not run; it would call `variable::prompt("Licence?", "MIT", ["MIT", "Apache"])` (line 2), `file::delete("LICENSE-APACHE")` (line 4), `file::rename("main.rs", `src/${variable::get("crate_name")}.rs`)` (line 6), `abort("no licence")` (line 7)
warning: the `post` hook `post.rhai` is not run; it would call `system::command("cargo", ["fmt"])` (line 1)

"#]].raw());
    assert_eq!(read(&place, "a/main.rs"), "// a\n");
    assert!(!place.join("a/post.rhai").exists() && !place.join("a/hooks/pre.rhai").exists());
    place.kiln("options --template t").assert().code(4);
    place
        .kiln("options --template t --skip-hooks")
        .assert()
        .success();
    place.kiln("new b --skip-hooks").assert().code(2);
}

#[test]
fn a_hook_that_only_prints_is_left_out() {
    let place = place_with(&[
        (
            "t/cargo-generate.toml",
            "[template]\nfmt = false\n[hooks]\npost = [\"post.rhai\"]\n",
        ),
        (
            "t/post.rhai",
            "print(\"Next: cd \" + variable::get(\"project-name\"));\n",
        ),
        ("t/main.rs", "// {{ project-name }}\n"),
    ]);
    let made = place.kiln("new a --yes --vcs none --template t");
    made.assert().success().stderr_eq(str![[r#"
warning: the `post` hook `post.rhai` is not run; it changes no file and no variable

"#]]);
    assert_eq!(read(&place, "a/main.rs"), "// a\n");
    assert!(!place.join("a/post.rhai").exists());
}

const SEVERAL: &[(&str, &str)] = &[
    (
        "t/cargo-generate.toml",
        "[template]\nfmt = false\nsub_templates = [\"one\", \"two\"]\n[placeholders]\nword = { prompt = \"Which word?\", default = \"root\" }\n",
    ),
    ("t/one/cargo-generate.toml", "[template]\nfmt = false\n"),
    ("t/one/f.txt", "one"),
    ("t/two/f.txt", "two {{ word }}"),
];

#[test]
fn a_hook_that_runs_other_code_is_not_harmless() {
    for script in [
        "import \"other\" as other;",
        "eval(\"f\" + \"ile::delete()\");",
    ] {
        let place = place_with(HOOKS);
        place.put("t/hooks/pre.rhai", script);
        let output = place.kiln("new a --yes --template t").assert().code(4);
        let said = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
        assert!(
            said.contains("instead of `import`") || said.contains("instead of `eval`"),
            "{said}"
        );
    }
}

#[test]
fn wrong_conditions_are_said_at_once() {
    let place = place_with(&[
        (
            "t/cargo-generate.toml",
            "[conditional.'a =='.placeholders]\nx = {}\n[conditional.'b ==']\nignore = []\n",
        ),
        ("t/a.txt", ""),
    ]);
    let output = place.kiln("new a --yes --template t").assert().code(4);
    let said = String::from_utf8_lossy(&output.get_output().stderr).into_owned();
    for part in [
        "for 3 reasons",
        "`a ==` is invalid",
        "`b ==` is invalid",
        "`x` has no prompt",
    ] {
        assert!(said.contains(part), "no {part:?} in {said}");
    }
}

#[test]
fn every_link_of_a_template_is_named() {
    let place = place_with(&[("t/a.txt", "")]);
    for link in ["t/one", "t/two"] {
        std::os::unix::fs::symlink("a.txt", place.join(link)).unwrap();
    }
    let made = place.kiln("new a --yes --vcs none --template t");
    made.assert().success().stderr_eq(str![[r#"
warning: t/one: neither a file nor a folder, so projects do not have it
warning: t/two: neither a file nor a folder, so projects do not have it
help: replace a symbolic link by a copy of its target

"#]]);
}

#[test]
fn several_templates() {
    let place = place_with(SEVERAL);
    for command in ["new a --yes --template t", "options --template t"] {
        let refused = place.kiln(command).assert().code(2);
        refused.stderr_eq(str![[r#"
  × `t` has 2 templates
  help: choose one: `--template t/one`, `--template t/two`

"#]]);
    }
    for (name, text) in [("one", "one"), ("two", "two root")] {
        let line = format!("new {name} --yes --vcs none --template t/{name}");
        place.kiln(&line).assert().success().stderr_eq("");
        assert_eq!(read(&place, &format!("{name}/f.txt")), text);
    }
}

#[test]
fn the_wizard_asks_for_the_template_first() {
    let place = place_with(SEVERAL);
    let args = ["new", "a", "--vcs", "none", "--template", "t"];
    let mut terminal = Terminal::start_with(place.path(), &args, &[("TERM", "dumb")]);
    terminal.wait("Which template? [one]:");
    terminal.send("two\n");
    terminal.wait("Which word? [root]:");
    terminal.send("own\n");
    terminal.wait("Create the project?");
    assert!(terminal.log().contains("--template=t/two -d word=own"));
    terminal.send("\n");
    terminal.end();
    assert_eq!(read(&place, "a/f.txt"), "two own");
}

const CONDITIONAL: &str = "[template]\nfmt = false\n[placeholders]\n\
    net = { prompt = \"Network?\", type = \"bool\", default = false }\n\
    [conditional.'net'.placeholders]\n\
    host = { prompt = \"Which host?\", default = \"local\" }\n\
    proto = { prompt = \"Which protocol?\", choices = [\"http\", \"mqtt\"], default = \"http\" }\n";

const RECORD: &str = "kiln = \"1\"\ntemplate = \"t\"\nname = \"{{project-name}}\"\n[options]\nnet = {{net}}\n\
    {% if net %}host = \"{{host}}\"\nproto = \"{{proto}}\"\n{% endif %}";

fn conditional() -> Place {
    place_with(&[
        ("t/cargo-generate.toml", CONDITIONAL),
        ("t/.kiln.toml.liquid", RECORD),
        (
            "t/f.txt",
            "1{% if net %} {{ proto }}://{{ host }}{% endif %}\n",
        ),
    ])
}

#[test]
fn options_of_a_condition_without_prompts() {
    let place = conditional();
    let mut said = String::new();
    for args in [
        "-d host=a",
        "-d net=false -d proto=mqtt",
        "-d net=true -d proto=ftp",
        "-d net=true -d hots=a",
    ] {
        let line = format!("new a --yes --vcs none --template t {args}");
        let output = place.kiln(&line).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args}");
        said.push_str(&String::from_utf8(output.stderr).unwrap());
    }
    assert_data_eq!(
        said,
        str![[r#"
  × the option `host` only applies if `net`, which is false here
  help: remove it, or change the options of the condition
  × the option `proto` only applies if `net`, which is false here
  help: remove it, or change the options of the condition
  × "ftp" is not a value of the option `proto`
   ╭─[--define:1:7]
 1 │ proto=ftp
   ·       ─┬─
   ·        ╰── this value
   ╰────
  help: did you mean `http`? its values are `http`, `mqtt`
  × there is no option `hots`
   ╭─[--define:1:1]
 1 │ hots=a
   · ──┬─
   ·   ╰── no option
   ╰────
  help: did you mean `host`? the options are `net`, `host`, `proto`

"#]]
        .raw()
    );
    let made = |name: &str, args: &str| {
        let line = format!("new {name} --yes --vcs none --template t {args}");
        place.kiln(&line).assert().success();
        read(&place, &format!("{name}/f.txt"))
    };
    assert_eq!(made("a", ""), "1\n");
    assert_eq!(made("b", "-d net=true"), "1 http://local\n");
    place.put("v.toml", "net = true\nproto = \"mqtt\"\n");
    assert_eq!(made("c", "--values v.toml -d host=x"), "1 mqtt://x\n");
    let listed = place.kiln("options --template t").assert().success();
    listed.stdout_eq(str![[r#"
net: Network?
  false (default)
  true
    changes f.txt

host: Which host?
  only if net
  local (default)
  any other text

proto: Which protocol?
  only if net
  http (default)
  mqtt

Set them with --define KEY=VALUE or in a --values file.

"#]]);
}

#[test]
fn options_of_a_condition_in_the_wizard() {
    let place = conditional();
    let args = ["new", "a", "--vcs", "none", "--template", "t"];
    let mut terminal = Terminal::start_with(place.path(), &args, &[("TERM", "dumb")]);
    terminal.wait("Network? [false]:");
    terminal.send("yes\n");
    terminal.wait("Which host? [local]:");
    terminal.send("own\n");
    terminal.wait("Which protocol? [http]:");
    terminal.send("mqtt\n");
    terminal.wait("Create the project?");
    let command = "-d net=true -d host=own -d proto=mqtt --vcs none";
    assert!(terminal.log().contains(command), "{}", terminal.log());
    // Without network, the other answers are not asked and not used.
    terminal.send("change\n");
    terminal.wait("Which answer?");
    terminal.send("net\n");
    terminal.wait("Network? [true]:");
    terminal.send("no\n");
    terminal.wait_until("another summary", |screen| {
        screen.matches("Create the project?").count() == 2
    });
    terminal.send("\n");
    terminal.end();
    assert_eq!(read(&place, "a/f.txt"), "1\n");
}

#[test]
fn options_of_a_condition_in_the_record() {
    let place = conditional();
    let made = "new a --yes --vcs none --template t -d net=true -d host=own -d proto=mqtt";
    place.kiln(made).assert().success();
    assert!(read(&place, "a/.kiln.toml").contains("host = \"own\""));
    for file in [".kiln.toml.liquid", "cargo-generate.toml"] {
        place.put(&format!("n/{file}"), &read(&place, &format!("t/{file}")));
    }
    place.put(
        "n/f.txt",
        "2{% if net %} {{ proto }}://{{ host }}{% endif %}\n",
    );
    let update = "update a --from t --template n";
    place.kiln(update).assert().success();
    assert_eq!(read(&place, "a/f.txt"), "2 mqtt://own\n");
    // The new version asks for the host only with mqtt, and the protocol is another one.
    let config = CONDITIONAL
        .replace("\"http\", \"mqtt\"", "\"http\", \"coap\"")
        .replace(
            "[conditional.'net'.placeholders]\nhost",
            "[conditional.'net && proto == \"mqtt\"'.placeholders]\nhost",
        )
        .replace("\nproto", "\n[conditional.'net'.placeholders]\nproto");
    place.put("o/cargo-generate.toml", &config);
    place.put(
        "o/.kiln.toml.liquid",
        &RECORD.replace("host = \"{{host}}\"\n", ""),
    );
    place.put(
        "o/f.txt",
        "3{% if net %} {{ proto }}:{% if host %}{{ host }}{% endif %}{% endif %}\n",
    );
    let update = "update a --from n --template o";
    let updated = place.kiln(update).assert().success();
    let said = String::from_utf8(updated.get_output().stdout.clone()).unwrap();
    assert_eq!(read(&place, "a/f.txt"), "3 http:\n");
    for option in ["host", "proto"] {
        assert!(
            said.contains(&format!("the option `{option}` no longer")),
            "{said}"
        );
    }
    let refused = place.kiln("update a --from o --template o -d host=x");
    refused.assert().code(2);
    let added = place.kiln("add net=false --path a --from o").assert();
    added.success();
    assert_eq!(read(&place, "a/f.txt"), "3\n");
}
