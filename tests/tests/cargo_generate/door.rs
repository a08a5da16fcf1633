//! Kinds of templates that strangers write: both tools render the same files, or Kiln says all reasons
//! why it does not.

use std::{panic, path::PathBuf};

use kiln::{
    error::Kind,
    name::Name,
    template::{Reading, Template, answers::Answers},
};
use kiln_tests::{NAME, combinations};

use crate::peer::{
    Peer, Tool, assert_same,
    folders::{assert_parity, folder, put, refusal},
};

const MANIFEST: (&str, &str) = (
    "Cargo.toml",
    "[package]\nname = \"{{project-name}}\"\nedition = \"2024\"\n",
);
const MAIN: (&str, &str) = ("src/main.rs", "fn main() {}\n");
const PLAIN: &str = "[template]\nfmt = false\n";

/// The kinds whose folder is the template, each with its files.
const KINDS: &[(&str, &[(&str, &str)])] = &[
    (
        "no configuration",
        &[
            MANIFEST,
            MAIN,
            ("README.md", "# {{ crate_name }} by {{ authors }}\n"),
            (".gitignore", "/target\n"),
        ],
    ),
    (
        "an empty configuration, and what cargo leaves",
        &[
            MANIFEST,
            MAIN,
            ("cargo-generate.toml", "\n"),
            (".cargo-ok", ""),
        ],
    ),
    (
        "the only configuration lies further down",
        &[
            ("README.md", "of the repository"),
            ("templates/rust/cargo-generate.toml", PLAIN),
            ("templates/rust/Cargo.toml", "name = \"{{project-name}}\"\n"),
            ("other/f.txt", "{{ not read"),
        ],
    ),
    (
        ".genignore",
        &[
            ("cargo-generate.toml", PLAIN),
            (
                ".genignore",
                "# comment\n*.log\n!kept.log\n/docs\nbuild/\nfoo/**/bar\n\\#odd\ntrailing \n",
            ),
            ("a.log", "{{ wrong"),
            ("sub/b.log", "{{ wrong"),
            ("kept.log", "{{ project-name }}"),
            ("docs/a.md", "{{ wrong"),
            ("sub/docs/a.md", "kept"),
            ("build/x", "{{ wrong"),
            ("sub/build/kept.log", "{{ wrong"),
            ("not/build", "a file, so kept"),
            ("foo/one/two/bar/x", "{{ wrong"),
            ("only/c.log", "the folder stays"),
            ("#odd", "{{ wrong"),
            ("trailing", "{{ wrong"),
            ("page.md.liquid", "{{ project-name }}"),
        ],
    ),
    (
        ".genignore in subfolders",
        &[
            (".genignore", "*.tmp\n"),
            ("sub/.genignore", "!a.tmp\n/b.txt\n"),
            ("a.tmp", "gone"),
            ("sub/a.tmp", "kept"),
            ("sub/b.tmp", "gone"),
            ("sub/b.txt", "gone"),
            ("sub/deep/a.tmp", "kept"),
            ("sub/deep/b.txt", "kept"),
            ("b.txt", "kept"),
        ],
    ),
    (
        ".genignore only in a subfolder has no effect",
        &[("sub/.genignore", "*.tmp\n"), ("sub/a.tmp", "kept")],
    ),
    (
        ".genignore with suffix, and with a mark and other line ends",
        &[
            (".genignore.liquid", "\u{feff}a.txt\r\nc.txt\r\n"),
            ("a.txt", "gone"),
            ("b.txt", "kept"),
            ("c.txt.liquid", "gone"),
        ],
    ),
    (
        "patterns that match nothing",
        &[
            (
                "cargo-generate.toml",
                "[template]\nfmt = false\nexclude = [\"*.png\", \"absent/**\"]\nignore = [\"absent\", \"*.md\", \
                 \"./a/b\", \".genignore\"]\n[conditional.'crate_type == \"lib\"']\nexclude = [\"*.svg\"]\nignore = [\"x\"]\n",
            ),
            ("README.md", "{{ project-name }}"),
        ],
    ),
    (
        "inclusions that match nothing",
        &[
            (
                "cargo-generate.toml",
                "[template]\nfmt = false\ninclude = [\"README.md\", \"*.toml\"]\n",
            ),
            ("README.md", "{{ project-name }}"),
            ("a.txt", "{{ copied"),
        ],
    ),
    (
        "both include and exclude",
        &[
            (
                "cargo-generate.toml",
                "[template]\nfmt = false\ninclude = [\"*.md\"]\nexclude = [\"README.md\"]\n",
            ),
            ("README.md", "{{ project-name }}"),
            ("a.txt", "{{ copied"),
        ],
    ),
    (
        "options of a condition",
        &[
            (
                "cargo-generate.toml",
                r#"[template]
fmt = false
[placeholders.net]
type = "bool"
prompt = "Network?"
default = false
[conditional.'net'.placeholders]
host = { prompt = "Host?", default = "localhost", regex = "^[a-z.]+$" }
proto = { prompt = "Protocol?", choices = ["http", "mqtt"], default = "http" }
[conditional.'!net']
ignore = ["net.txt"]
"#,
            ),
            ("net.txt", "{{ proto }}://{{ host }}"),
            (
                "all.txt",
                "{% if net %}{{ proto }}{% endif %}{% if proto == 'mqtt' %}!{% endif %}",
            ),
        ],
    ),
    (
        "conditions on options of conditions",
        &[
            (
                "cargo-generate.toml",
                r#"[template]
fmt = false
[placeholders]
kind = { prompt = "?", choices = ["bin", "lib"], default = "lib" }
[conditional.'net && host == "own"'.placeholders]
url = { prompt = "?", default = "a.b" }
[conditional.'kind == "bin"'.placeholders]
net = { prompt = "?", type = "bool", default = true }
[conditional.'kind == "bin" && net']
ignore = ["plain.txt"]
[conditional.'kind == "bin" && net'.placeholders]
host = { prompt = "?", choices = ["own", "other"], default = "own" }
"#,
            ),
            ("plain.txt", "{{ kind }}"),
            (
                "f.txt",
                "{% if net %}{% if url %}{{ url }}{% else %}none{% endif %}{% endif %}",
            ),
        ],
    ),
    (
        "an option that conditions define differently",
        &[
            (
                "cargo-generate.toml",
                r#"[template]
fmt = false
[placeholders]
family = { prompt = "?", choices = ["esp", "stm"], default = "esp" }
[conditional.'family == "esp"'.placeholders]
mcu = { prompt = "?", choices = ["esp32", "esp32c3"], default = "esp32" }
[conditional.'family == "stm"'.placeholders]
mcu = { prompt = "?", choices = ["f103", "f411"], default = "f411" }
"#,
            ),
            ("{{mcu}}.x", "{{ family }} {{ mcu }}"),
        ],
    ),
    (
        "only options of conditions",
        &[
            (
                "cargo-generate.toml",
                r#"[template]
fmt = false
[conditional.'crate_type == "bin"'.placeholders]
port = { prompt = "?", default = "80" }
[conditional.'crate_type == "lib"'.placeholders]
other = { prompt = "?", default = "no" }
[conditional.'other == "no"']
ignore = ["f.txt"]
"#,
            ),
            ("f.txt", "{{ port }}"),
        ],
    ),
    (
        "options that do not apply are empty once they are used",
        &[
            (
                "cargo-generate.toml",
                r#"[template]
fmt = false
[placeholders]
ci = { prompt = "?", type = "bool", default = false }
[conditional.'ci'.placeholders]
runner = { prompt = "?", default = "linux" }
"#,
            ),
            (
                "f.txt",
                "[{{ runner }}] {% if runner %}set{% else %}unset{% endif %}",
            ),
            (
                "a/g.txt",
                "{% if runner %}set{% else %}unset{% endif %} {{ ci }}",
            ),
        ],
    ),
    (
        "conditions on lists",
        &[
            (
                "cargo-generate.toml",
                r#"[template]
fmt = false
[placeholders]
parts = { prompt = "?", type = "array", choices = ["db", "web"], default = [] }
[conditional.'"web" in parts'.placeholders]
theme = { prompt = "?", choices = ["dark", "light"], default = "dark" }
[conditional.'!("db" in parts)']
ignore = ["db"]
"#,
            ),
            ("db/f.txt", "{{ parts | join: '+' }}"),
            ("web.txt", "{% if theme %}{{ theme }}{% endif %}"),
        ],
    ),
    (
        "a hook that only talks, and its folder",
        &[
            (
                "cargo-generate.toml",
                "[template]\nfmt = false\n[hooks]\ninit = [\"hooks/hello.rhai\"]\npre = [\"scripts/pre.rhai\"]\npost = [\"./bye.rhai\"]\n",
            ),
            (".genignore", "*.toml\nhooks/\n"),
            ("a.toml", "{{ wrong"),
            ("hooks/hello.rhai", "print(\"hello\");"),
            (
                "scripts/pre.rhai",
                "print(variable::get(\"project-name\"));",
            ),
            ("bye.rhai", "print(\"bye\");"),
            ("f.txt", "{{ project-name }}"),
        ],
    ),
    (
        "scripts as filters",
        &[
            (
                "cargo-generate.toml",
                "[template]\nfmt = false\n[placeholders]\nlist = { prompt = \"?\", type = \"array\", choices = [\"a\", \"b\"], default = [\"a\"] }\n",
            ),
            (
                "f.txt",
                "{{ \"name.rhai\" | rhai }}, {{ 'scripts/list.rhai' | rhai | append: '!' }}",
            ),
            ("{{ \"name.rhai\" | rhai }}.md", "x"),
            (
                "name.rhai",
                "#!/usr/bin/env rhai\n// no file::delete(\"f.txt\")\nlet name = variable::get(\"project-name\");\nto_shouty_snake_case(name) + to_title_case(\" a b\")\n",
            ),
            (
                "scripts/list.rhai",
                "let text = \"\"; for one in variable::get(\"list\") { text += `<${one}>`; }\nif variable::is_set(\"nothing\") { text += \"?\"; }\ntext + variable::get(\"nothing\") + variable::get(\"is_init\")",
            ),
            ("unused.rhai", "1 + 1"),
        ],
    ),
];

#[test]
fn kinds() {
    let mut differ = Vec::new();
    for (kind, files) in KINDS {
        if panic::catch_unwind(|| same(files)).is_err() {
            differ.push(*kind);
        }
    }
    assert!(differ.is_empty(), "these kinds differ: {differ:?}");
}

/// Checks that both tools render the same files from every combination of answers.
fn same(files: &[(&str, &str)]) {
    let template = folder(files);
    let hooked = Template::read(
        template.path(),
        Reading {
            skip_hooks: true,
            ..Reading::default()
        },
    )
    .unwrap();
    let peer = Peer::new();
    for combination in combinations(&hooked, NAME) {
        assert_same(&peer, template.path(), &combination.answers);
    }
}

const SUB_TEMPLATES: &[(&str, &str)] = &[
    (
        "cargo-generate.toml",
        "[template]\nfmt = false\nsub_templates = [\"./own\", \"inherits\", \"nested\"]\nexclude = [\"*.md\"]\n\
         [placeholders]\nword = { prompt = \"?\", default = \"of the root\" }\n",
    ),
    ("root.txt", "{{ not part of any"),
    (".genignore", "f.txt\n"),
    (
        "own/cargo-generate.toml",
        "[template]\nfmt = false\n[placeholders]\nnumber = { prompt = \"?\", default = \"1\" }\n",
    ),
    ("own/f.txt", "{{ number }}"),
    ("own/g.md", "{{ number }}"),
    ("inherits/f.txt", "{{ word }}"),
    ("inherits/g.md", "{{ word }}"),
    (
        "nested/cargo-generate.toml",
        "[template]\nsub_templates = [\"only\"]\n",
    ),
    ("nested/only/cargo-generate.toml", PLAIN),
    ("nested/only/f.txt", "{{ project-name }}"),
];

/// The tools name one in different ways: `--path FOLDER SUB`, and `--template FOLDER/SUB`.
#[test]
fn sub_templates() {
    let source = folder(SUB_TEMPLATES);
    for sub in ["own", "inherits", "nested", "nested/only"] {
        println!("{sub}");
        let named = format!("{}//{sub}", source.path().display());
        assert_parity(&PathBuf::from(named));
    }
    assert!(!refused(&source, Kind::Input).contains("inherits\n"));
    assert_eq!(
        Template::choices(source.path()).unwrap(),
        ["own", "inherits", "nested"]
    );
    // Without prompts, cargo-generate takes the first.
    let made = Peer::new().generate(Tool::CargoGenerate, source.path(), NAME, &[]);
    assert!(made.unwrap().contains_key("f.txt"));
}

/// The message of the error for a folder.
fn refused(source: &tempfile::TempDir, kind: Kind) -> String {
    let error = Template::from_folder(source.path()).unwrap_err();
    assert_eq!(error.kind(), kind);
    error.to_string()
}

#[test]
fn several_templates_that_nothing_lists() {
    let source = folder(&[
        ("b/cargo-generate.toml", PLAIN),
        ("b/f.txt", "b"),
        ("a/x/cargo-generate.toml", PLAIN),
        ("a/x/f.txt", "a {{ project-name }}"),
        ("a/x/y/cargo-generate.toml", PLAIN),
    ]);
    assert_eq!(Template::choices(source.path()).unwrap(), ["a/x", "b"]);
    assert!(refused(&source, Kind::Input).ends_with("has 2 templates"));
    for sub in ["a", "a/x", "b"] {
        let named = format!("{}//{sub}", source.path().display());
        assert_parity(&PathBuf::from(named));
    }
}

#[test]
fn wrong_sub_templates() {
    for (given, expected) in [
        (
            "../x",
            "3:18: the sub-template `../x` is not a folder below the template's",
        ),
        (
            "/etc",
            "3:18: the sub-template `/etc` is not a folder below the template's",
        ),
        (
            ".",
            "3:18: the sub-template `.` is not a folder below the template's",
        ),
        (
            "absent",
            "3:18: there is no folder of the sub-template `absent`",
        ),
        (
            "f.txt",
            "3:18: there is no folder of the sub-template `f.txt`",
        ),
    ] {
        let config = format!("{PLAIN}sub_templates = [\"{given}\", \"a\"]\n");
        let source = folder(&[
            ("cargo-generate.toml", &*config),
            ("f.txt", ""),
            ("a/f", ""),
        ]);
        assert_eq!(refusal(&source), format!("cargo-generate.toml:{expected}"));
    }
}

/// The built-in hook formats even a template that says `fmt = false`.
#[test]
fn the_hook_that_formats() {
    for hooks in ["post = [\"fmt\"]", "pre = [\"fmt\"]"] {
        let config = format!("[template]\nfmt = false\n[hooks]\n{hooks}\n");
        same(&[
            ("cargo-generate.toml", &config),
            (
                "Cargo.toml",
                "[package]\nname = \"{{project-name}}\"\nedition = \"2024\"\n",
            ),
            ("src/main.rs", "fn   main( ) { }\n"),
        ]);
    }
}

/// Kiln refuses scripts that change files, ask, or run programs, each by its name.
#[test]
fn hooks() {
    let source = folder(&[
        (
            "cargo-generate.toml",
            "[template]\nfmt = false\n[hooks]\npost = [\"fmt\", \"post.rhai\"]\npre = [\"pre.rhai\", \"absent.rhai\"]\n",
        ),
        ("pre.rhai", "variable::set(\"a\", \"b\");"),
        (
            "post.rhai",
            "file::rename(\"f.txt\", \"g.txt\");\nsystem::command(\"make\");",
        ),
        ("f.txt", "{{ a }} {{ project-name }}"),
    ]);
    assert_eq!(
        refusal(&source),
        "cargo-generate.toml:5:8: the `pre` hook `pre.rhai` is a script, and Kiln runs none\n\
         cargo-generate.toml:5:20: the `pre` hook `absent.rhai` does not exist\n\
         cargo-generate.toml:4:16: the `post` hook `post.rhai` is a script, and Kiln runs none\n\
         f.txt:1:4: there is no variable `a` in `f.txt`"
    );
    let said = Template::from_folder(source.path())
        .unwrap_err()
        .draw(false);
    for part in [
        "`variable::set(\"a\", \"b\")` in line 1",
        "`system::command(\"make\")` in line 2",
        "instead of `file::rename`: a path with placeholders",
        "`--skip-hooks`",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let only_fmt = folder(&[
        (
            "cargo-generate.toml",
            "[template]\nfmt = false\n[hooks]\npre = [\"fmt\"]\n",
        ),
        ("f.txt", "{{ project-name }}"),
    ]);
    assert_parity(only_fmt.path());
}

/// Functions that a script of a filter cannot call.
#[test]
fn scripts_that_do_more_than_return_a_text() {
    let cases = [
        (
            "system::command(\"ls\")",
            "uses `system::command` in line 1, which Kiln does not run",
        ),
        (
            "let x = 1;\nfile::exists(\"f.txt\")",
            "uses `file::exists` in line 2, which Kiln does not run",
        ),
        (
            "variable::set(\"a\", \"b\")",
            "uses `variable::set` in line 1, which Kiln does not run",
        ),
        (
            "`${env::working_directory}`",
            "uses `env::working_directory` in line 1, which Kiln does not run",
        ),
        (
            "import \"x\" as x; \"\"",
            "uses `import` in line 1, which Kiln does not run",
        ),
        (
            "loop {}",
            "failed: Too many operations (line 1, position 6)",
        ),
        (
            "abort(\"no\")",
            "failed: Runtime error: no (line 1, position 1)",
        ),
        (
            "eval(\"system::command(1)\")",
            "failed: Module not found: system (line 1, position 1)",
        ),
    ];
    for (script, expected) in cases {
        let source = folder(&[
            ("cargo-generate.toml", PLAIN),
            ("f.txt", "a\n{{ 's.rhai' | rhai }}"),
            ("s.rhai", script),
        ]);
        let said = refusal(&source);
        let expected =
            format!("f.txt:2:1: `f.txt` cannot be rendered: the script `s.rhai` {expected}");
        assert!(said.starts_with(&expected), "{said}");
    }
    let outside = folder(&[
        ("cargo-generate.toml", PLAIN),
        (
            "f.txt",
            "{{ '../s.rhai' | rhai }}{{ 'absent.rhai' | rhai }}",
        ),
    ]);
    let said = refusal(&outside);
    assert!(
        said.contains("the script `../s.rhai` lies outside the template"),
        "{said}"
    );
    put(outside.path(), "f.txt", b"{{ 'absent.rhai' | rhai }}");
    assert!(refusal(&outside).contains("there is no script `absent.rhai`"));
}

/// One error has all reasons: of the configuration, the rules, the hooks and the files.
#[test]
fn all_reasons_at_once() {
    let source = folder(&[
        (
            "cargo-generate.toml",
            "[template]\nfmt = false\ninit = true\ninlude = []\nignore = [\"../x\"]\nexclude = [\"a{b\"]\n\
             [hooks]\npre = [\"h.rhai\"]\n[conditional.'true']\nfmt = true\n",
        ),
        ("h.rhai", "abort(\"\")"),
        ("aux.txt", ""),
        ("f.txt", "{{ nothing }}"),
    ]);
    assert_eq!(
        refusal(&source),
        "cargo-generate.toml:3:1: Kiln always creates a new folder\n\
         cargo-generate.toml:4:1: unknown key `inlude` in `cargo-generate.toml`\n\
         cargo-generate.toml:10:1: unknown key `fmt` in `cargo-generate.toml`\n\
         cargo-generate.toml:8:8: the `pre` hook `h.rhai` is a script, and Kiln runs none\n\
         cargo-generate.toml:6:12: `a{b` is not a valid pattern: error parsing glob 'a{b': unclosed alternate group; missing '}' (maybe escape '{' with '[{]'?)\n\
         cargo-generate.toml:5:11: `ignore` refers to a path outside the template: `../x`\n\
         aux.txt:1:1: `aux.txt` is not a valid file name on Windows"
    );
    // Errors of several files, and of options, whose uses are not errors then.
    let files = folder(&[
        (
            "cargo-generate.toml",
            "[template]\nfmt = false\n[placeholders]\nx = { prompt = \"?\", default = \"1\" }\n",
        ),
        ("a.txt", "{{ y }}"),
        ("b.txt", "{{ x }} {{ z }} {% if %}"),
    ]);
    assert_eq!(refusal(&files).lines().count(), 2);
    let config = "[template]\nfmt = false\n[placeholders]\nx = { prompt = 1 }\ny = { prompt = \"?\", type = \"int\" }\n";
    put(files.path(), "cargo-generate.toml", config.as_bytes());
    let said = refusal(&files);
    assert!(
        said.lines().count() == 2 && !said.contains(".txt"),
        "{said}"
    );
}

/// An option whose condition is false has no value.
#[test]
fn an_option_that_does_not_apply() {
    let (_, files) = KINDS
        .iter()
        .find(|(kind, _)| *kind == "options of a condition")
        .unwrap();
    let source = folder(files);
    let template = Template::from_folder(source.path()).unwrap();
    let answers = Answers::defaults(&template, Name::parse(NAME).unwrap()).unwrap();
    assert_eq!(answers.get("host"), None);
    let error = answers.clone().with(&template, "host", "a").unwrap_err();
    assert_eq!(
        error.to_string(),
        "the option `host` only applies if `net`, which is false here"
    );
    let answers = answers.with(&template, "net", "true").unwrap();
    let answers = answers.with(&template, "host", "a.b").unwrap();
    assert_eq!(answers.get("host").unwrap().to_string(), "a.b");
    let answers = answers.with(&template, "net", "false").unwrap();
    assert_eq!(answers.values().count(), 1);
}
