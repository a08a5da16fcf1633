//! A template that uses every feature, rendered by both tools; and mistakes that Kiln refuses and
//! cargo-generate ignores.

use std::{fs, path::Path};

use kiln::{
    name::Name,
    template::{Template, answers::Answers},
};
use kiln_tests::NAME;
use tempfile::TempDir;

use crate::peer::{
    Peer, Tool, assert_same,
    folders::{assert_parity, put, put_all, refusal},
};

const PLACEHOLDERS: &str = r#"
[placeholders]
text = { type = "string", prompt = "A text?", default = "some Text here" }
style = { prompt = "A style?", choices = ["plain", { value = "fancy", label = "Very fancy" }], default = "plain" }
flag = { type = "bool", prompt = "A flag?", default = false }
parts = { type = "array", prompt = "Parts?", choices = ["one", "two"], default = ["two"] }

[conditional.'flag && style == "fancy"']
ignore = ["docs/fancy.md", "only"]

[conditional.'!("one" in parts)']
ignore = ["parts/one.txt"]

[conditional.'crate_type == "bin" && !is_init']
ignore = ["lib-only.txt"]
"#;

const EXCLUDING: &str = r#"
[template]
fmt = false
cargo_generate_version = ">=0.23.0"
exclude = ["*.bin", "raw/", "tool-*.sh", "!raw/rendered.txt"]
ignore = ["internal", "notes/private.md", "./notes/absent.md"]
[conditional.'style == "fancy"']
exclude = ["fancy-is-copied.txt"]
"#;

const INCLUDING: &str = r#"
[template]
fmt = false
include = ["*.rs", "filters.txt", "/docs/**", "parts", "builtins.txt", "control.txt"]
[conditional."style == \"fancy\""]
include = ["fancy-is-copied.txt"]
"#;

/// The files of both variants; the variant with templated folders has additional files.
const FILES: &[(&str, &str)] = &[
    (
        "Cargo.toml.liquid",
        "[package]\nname = \"{{project-name}}\"\n",
    ),
    ("src/main.rs", "// {{crate_name}}\nfn main() {}\n"),
    ("src/{{crate_name}}.rs", "// {{ text | upcase }}\n"),
    (
        "src/plain.rs",
        "let x = '{'; // nothing { { for % } liquid\n",
    ),
    (
        "src/raw.rs",
        "{% raw %}format!(\"{{}}\", x => {{ y }}){% endraw %}\n",
    ),
    ("twin.txt", "the plain twin"),
    ("twin.txt.liquid", "the liquid twin {{style}}"),
    ("stripped-once.txt.liquid.liquid", "once"),
    ("folder.liquid/kept.txt", "a folder keeps its name"),
    (
        "docs/fancy.md",
        "{% if flag %}flag{% else %}no flag{% endif %}",
    ),
    ("docs/deep/er/file.md", "{{ text }} — naïve ✓\n"),
    ("only/file.txt", "in a folder of its own"),
    (
        "parts/one.txt",
        "{% for part in parts %}{{forloop.index}}:{{part}} {% endfor %}",
    ),
    (
        "parts/list.txt",
        "{{ parts | join: ', ' }} {{ parts | size }}{% if parts contains 'two' %} {{ parts.first }}{% endif %}",
    ),
    ("lib-only.txt", "never in a binary"),
    (
        "builtins.txt",
        "{{project-name}} {{crate_name}} {{crate_type}} {{os-arch}} {{authors}} {{username}} {{is_init}} {{within_cargo_project}}",
    ),
    (
        "filters.txt",
        "{{text|kebab_case}} {{text|snake_case}} {{text|lower_camel_case}} {{text|upper_camel_case}} \
         {{text|pascal_case}} {{text|title_case}} {{text|shouty_kebab_case}} {{text|shouty_snake_case}} \
         {{ text | replace: 'e', 'E' | split: ' ' | last }} {{ 3 | plus: 4 }} {{ flag | kebab_case }}",
    ),
    (
        "control.txt",
        "{%- assign n = 2 -%}\n  {%- capture c %}<{{style}}>{% endcapture %}\n{{c}}\n\n  {%- if flag and style == 'fancy' %}\nboth\n{%- elsif flag or style == 'fancy' %}\none\n{%- else %}\nnone\n{%- endif %}\n\
         {% case style %}{% when 'fancy' %}F{% else %}P{% endcase %}{% unless flag %}U{% endunless %}\
         {% comment %} {{ unseen }} {% endcomment %}{% for i in (1..3) %}{{i}}{% if i == n %}{% break %}{% endif %}{% endfor %}\
         {% increment k %}{% increment k %}{{ '{{' }}{% cycle 'a', 'b' %}\n",
    ),
    ("crlf.txt", "one\r\n{{style}}\r\n"),
    ("no-newline.txt", "{{style}}"),
    ("empty.txt", ""),
    ("fancy-is-copied.txt", "{{ style }}"),
    ("odd name:*?.txt", "sanitised"),
    ("notes/private.md", "ignored where it says so"),
    ("notes/public.md", "kept"),
    ("internal/a/b.txt", "ignored where it says so"),
    ("nested/cargo-generate.toml", "kept = true\n"),
    (".cargo-ok", ""),
    (".hidden/.file", "{{style}}"),
    (".github/workflows/ci.yml", "name: {{project-name}}\n"),
    (
        "target-like/CACHEDIR.TAG",
        "Signature: 8a477f597d28d172789f06886806bc55\n",
    ),
    ("target-like/built.txt", "{{ not liquid"),
    ("not-quite/CACHEDIR.TAG", "Signature: something else\n"),
    ("sub/.git/config", "{{ skipped"),
];

const TEMPLATED_FOLDERS: &[(&str, &str)] = &[
    ("{{project-name}}/{{style}}/deep.txt", "{{style}}"),
    ("{{project-name}}/fixed.txt", "fixed"),
    ("{% if flag %}yes{% else %}no{% endif %}.txt", "{{flag}}"),
    ("raw/rendered.txt", "{{style}}"),
    ("raw/verbatim.txt", "{{style}}"),
];

const EXECUTABLE: &[(&str, &str)] = &[
    ("run.sh", "#!/bin/sh\necho {{style}}\n"),
    ("plain.sh", "#!/bin/sh\n"),
    ("run-{{style}}.sh", "#!/bin/sh\n"),
    ("tool-{{style}}.sh", "#!/bin/sh\n{{style}}\n"),
];

#[cfg(unix)]
fn add_unix(root: &Path) {
    use std::os::unix::fs::{PermissionsExt, symlink};
    put_all(root, EXECUTABLE);
    for (path, _) in EXECUTABLE {
        let mode = fs::Permissions::from_mode(0o755);
        fs::set_permissions(root.join(path), mode).unwrap();
    }
    symlink("src/main.rs", root.join("link.rs")).unwrap();
}

#[cfg(not(unix))]
fn add_unix(_: &Path) {}

fn fixture(config: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    put(
        root,
        "cargo-generate.toml",
        format!("{config}{PLACEHOLDERS}").as_bytes(),
    );
    put_all(root, FILES);
    put(root, "image.bin", &[0, 159, 146, 150, b'{', b'{']);
    fs::create_dir_all(root.join("empty/deeper")).unwrap();
    add_unix(root);
    folder
}

#[test]
fn a_template_that_excludes() {
    let source = fixture(EXCLUDING);
    put_all(source.path(), TEMPLATED_FOLDERS);
    assert_parity(source.path());
}

#[test]
fn a_template_that_includes() {
    let source = fixture(INCLUDING);
    assert_parity(source.path());
}

/// A template of these files, with two options and `fmt = false`.
fn small(rules: &str, files: &[(&str, &str)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        "[template]\nfmt = false\n{rules}\n[placeholders]\n\
         style = {{ prompt = \"?\", choices = [\"plain\", \"fancy\"], default = \"plain\" }}\n\
         text = {{ prompt = \"?\", default = \"t\", regex = \"^[a-z/ ]*$\" }}\n"
    );
    put(folder.path(), "cargo-generate.toml", config.as_bytes());
    put_all(folder.path(), files);
    folder
}

/// Invalid Liquid and Kiln's errors; cargo-generate ignores the first mistakes.
#[test]
fn wrong_liquid() {
    let cases = [
        (
            "a\n  {{ stile }}\n",
            "f.txt:2:6: there is no variable `stile` in `f.txt`",
        ),
        (
            "{% if nope %}x{% endif %}",
            "f.txt:1:7: there is no variable `nope` in `f.txt`",
        ),
        (
            "x\n{{ 'a' | append: style }}${{ matrix.os }}",
            "f.txt:2:30: there is no variable `matrix` in `f.txt`",
        ),
        (
            "ok\n{{ style | divided_by: 0 }}",
            "f.txt:2:1: `f.txt` cannot be rendered: Invalid argument; argument=operand; cause=Can't divide by zero; filter=divided_by : 0; input=\"plain\"",
        ),
        (
            "é {{ style | shout }}",
            "f.txt:1:4: `f.txt` is not valid Liquid: Unknown filter; requested filter=shout",
        ),
        (
            "\n\n{% if style %}",
            "f.txt:3:1: `f.txt` is not valid Liquid: Unclosed block. {% endif %} tag expected",
        ),
        (
            "x => {{",
            "f.txt:1:8: `f.txt` is not valid Liquid: expected Value",
        ),
        (
            "format!(\"{{}}\")",
            "f.txt:1:12: `f.txt` is not valid Liquid: expected Value",
        ),
        (
            "{% nonsense %}",
            "f.txt:1:4: `f.txt` is not valid Liquid: Unknown tag; requested=nonsense",
        ),
    ];
    let mut wrong = Vec::new();
    for (text, expected) in cases {
        let said = refusal(&small("", &[("f.txt", text)]));
        if said != expected {
            wrong.push(format!(
                "{text:?}\n  expected {expected}\n  said     {said}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Invalid rules and options, and Kiln's errors.
#[test]
fn wrong_configurations() {
    let cases = [
        (
            "include = [\"g.txt\"]",
            "f.txt:1:1: `f.txt` is never rendered",
        ),
        (
            "ignore = [\"../f.txt\"]",
            "cargo-generate.toml:3:11: `ignore` refers to a path outside the template: `../f.txt`",
        ),
        (
            "ignore = [\"/etc\"]",
            "cargo-generate.toml:3:11: `ignore` refers to a path outside the template: `/etc`",
        ),
        (
            "exclude = [\"a{b\"]",
            "cargo-generate.toml:3:12: `a{b` is not a valid pattern: error parsing glob 'a{b': unclosed alternate group; missing '}' (maybe escape '{' with '[{]'?)",
        ),
        (
            "excludes = []",
            "cargo-generate.toml:3:1: unknown key `excludes` in `cargo-generate.toml`",
        ),
        (
            "sub_templates = []",
            "cargo-generate.toml:3:17: `sub_templates` is empty",
        ),
        (
            "init = true",
            "cargo-generate.toml:3:1: Kiln always creates a new folder",
        ),
        (
            "[hooks]\npre = [\"x.rhai\"]",
            "cargo-generate.toml:4:8: the `pre` hook `x.rhai` does not exist",
        ),
        (
            "[conditional.'style == ']\nignore = []",
            "cargo-generate.toml:3:23: the condition `style == ` is invalid",
        ),
        (
            "[conditional.'stile == \"x\"']\nignore = []",
            "cargo-generate.toml:3:15: the condition `stile == \"x\"` is invalid",
        ),
        (
            "[conditional.'style']\nignore = []",
            "cargo-generate.toml:3:15: the condition `style` is invalid",
        ),
        (
            "include = 3",
            "cargo-generate.toml:3:11: `include` should be an array of strings",
        ),
        (
            "include = [",
            "cargo-generate.toml:5:1: `cargo-generate.toml` is not valid TOML: missing comma between array elements, expected `,`",
        ),
    ];
    let mut wrong = Vec::new();
    for (rules, expected) in cases {
        let said = refusal(&small(rules, &[("f.txt", "{{style}}"), ("g.txt", "")]));
        if said != expected {
            wrong.push(format!(
                "{rules:?}\n  expected {expected}\n  said     {said}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn wrong_files() {
    let two = small("", &[("{{style}}.txt", "a"), ("plain.txt", "b")]);
    assert_eq!(
        refusal(&two),
        "`plain.txt` and `{{style}}.txt` render to the same path"
    );

    let empty = small("", &[("{{text | remove: 't'}}/f.txt", "a")]);
    let part = "{{text | remove: 't'}}";
    assert_eq!(
        refusal(&empty),
        format!(
            "{part}/f.txt:1:1: the part `{part}` of the path `{part}/f.txt` renders to an empty name"
        )
    );

    let binary = small("", &[]);
    put(binary.path(), "image.png", &[b'a', 0xff, 0xfe]);
    assert_eq!(
        refusal(&binary),
        "image.png:1:2: `image.png` is not UTF-8 (byte 1), so it cannot be rendered"
    );

    let none = tempfile::tempdir().unwrap();
    let root = none.path().display().to_string();
    assert_eq!(refusal(&none), format!("`{root}` has no files"));
}

/// If cargo-generate fails, Kiln must fail too.
#[test]
fn a_templated_folder_that_is_not_rendered() {
    let source = small(
        "include = [\"g.txt\"]",
        &[("{{style}}/f.txt", "a"), ("g.txt", "")],
    );
    let theirs = Peer::new().generate(Tool::CargoGenerate, source.path(), NAME, &[]);
    assert!(theirs.is_err());
    assert_eq!(
        refusal(&source),
        "cargo-generate cannot rename the folder `{{style}}`, which is not rendered"
    );
}

#[test]
fn names_that_reach_out_stay_inside() {
    let source = small("", &[("{{text}}.txt", "a"), ("{{text}}/f", "b")]);
    let template = Template::from_folder(source.path()).unwrap();
    let defaults = Answers::defaults(&template, Name::parse(NAME).unwrap()).unwrap();
    for text in ["a/b", "//", "/ /etc/passwd"] {
        let answers = defaults.clone().with(&template, "text", text).unwrap();
        assert_same(&Peer::new(), source.path(), &answers);
    }
}
