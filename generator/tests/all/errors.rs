//! The error messages of Kiln, collected in `errors.txt` for review. Each has a message, its place and help.

// The messages of the file system differ on Windows.
#![cfg(unix)]

use std::{
    fmt::Write as _,
    fs, io,
    process::{Command, Stdio},
};

use crate::common::Place;
use kiln::{
    error::Result,
    name::Name,
    render::render,
    template::{Reading, Template, answers::Answers},
};
use snapbox::file;

/// Arguments with the expected exit status.
const ARGUMENTS: &[(&str, i32)] = &[
    // Refused by clap.
    ("nwe", 2),
    ("new", 2),
    ("new a b", 2),
    ("new a --forse", 2),
    ("new a --path", 2),
    ("new a --vcs=gitt", 2),
    ("new a --yes --yes", 2),
    ("todos --format jsn", 2),
    ("completions tcsh", 2),
    ("explain --example keras-cnn", 2),
    // Names.
    ("new --yes 2d-net", 2),
    ("new --yes -- -", 2),
    ("new --yes _", 2),
    ("new --yes a.b", 2),
    ("new --yes my/2d-net", 2),
    ("new --yes naïve", 2),
    ("new --yes struct", 2),
    ("new --yes Test", 2),
    ("new --yes core", 2),
    ("new --yes incremental", 2),
    ("new --yes COM1", 2),
    ("new --yes Serde-Json", 2),
    // Definitions.
    ("new a --yes -d strtegy=mirrored", 2),
    ("new a --yes -d nonsense=1", 2),
    ("new a --yes -d strategy=mirored", 2),
    ("new a --yes -d strategy=", 2),
    ("new a --yes -d strategy", 2),
    ("new a --yes -d description=\"hi\"", 2),
    ("new a --yes -d project-name=x", 2),
    ("new a --yes -d =x", 2),
    ("new a --yes --define=", 2),
    (
        "new a --yes -d hardware=cuda -d ci=github -d hardware=wgpu",
        2,
    ),
    // Templates.
    ("new a --yes --template absent", 2),
    ("new a --yes --template file", 2),
    ("new a --yes --template=-x", 2),
    ("new a --yes --template ext::sh", 2),
    ("new a --yes --template ftp://h/a", 2),
    ("new a --yes --template ssh://-oX=y/a", 2),
    ("new a --yes --template gh:a/b --tag a..b", 2),
    ("new a --yes --template gh:a/b --subfolder ../x", 2),
    ("new a --yes --template gh:a/b --tag x --rev y", 2),
    ("new a --yes --tag v1", 2),
    // Later life.
    ("update --continue --abort", 2),
    ("update --abort --dry-run", 2),
    // Examples and sites.
    ("new a --yes --example keras-cn", 2),
    ("new a --example house-template --train", 2),
    ("new a --example house-template -d ci=none", 2),
    ("explain model.architectur", 2),
    ("explain strategy.devices --example cyclegan", 2),
    ("explain model.split --example keras-cnn", 2),
    // Folders and files.
    ("new a --yes --path full", 2),
    ("new a --yes --path file", 2),
    ("new my/net --yes --path file", 2),
    ("new a --yes --workspace member", 2),
    ("new a --yes --path file/a", 2),
    ("new a --yes --path link", 2),
    ("new a --yes --path blocked --force", 2),
    ("new a --yes --path linked --force", 2),
    ("new a --yes --values absent.toml", 2),
    ("new a --yes --values full", 2),
    ("new a --yes --values latin1.toml", 2),
    ("todos absent", 2),
    ("explain --path full", 2),
    ("man file", 3),
];

/// Invalid values files (exit status 2).
const VALUES: &[&str] = &[
    "strategy = \"mirrored\"\nhardware = [\n",
    "strategy = 'mirrored'\nhardwear = 'cuda'\n",
    "hardware = 'coda'\n",
    "strategy = 3.5\n",
    "[values]\nci = 'none'\n[other]\n",
    "values = 3\n",
    "ci = 'none'\nci = 'none'\n",
];

/// Invalid lists of TODO sites (exit status 2).
const SITES: &[&str] = &[
    "[[site]]\nid = \"a\"\n",
    "[[site]]\nid = 3\nfile = \"f\"\nwhat = \"w\"\nnow = \"n\"\ntest = []\n",
    "[[site]]\nid = \"a\"\nfile = \"f\"\nwhat = \"w\"\nnow = \"n\"\ntest = \"t\"\n",
    "[[site]]\nid = \"a\"\nfle = \"f\"\n",
    "site = 1\n",
    "[[sites]]\n",
    "[[site]\n",
    "[[site]]\nid = \"a\"\nfile = \"f\"\nwhat = \"w\"\nnow = \"n\"\ntest = []\n\n\
     [[site]]\nid = \"a\"\nfile = \"f\"\nwhat = \"w\"\nnow = \"n\"\ntest = []\n",
];

/// Invalid rules and options of a template with the options `style` and `text`.
const RULES: &[&str] = &[
    "include = [\"g.txt\"]",
    "ignore = [\"../f.txt\"]",
    "exclude = [\"a{b\"]",
    "excludes = []",
    "sub_templates = []",
    "init = true",
    "[hooks]\npre = [\"x.rhai\"]",
    "[hook]",
    "[conditional.'style == ']\nignore = []",
    "[conditional.'stile == \"x\"']\nignore = []",
    "[conditional.'style']\nignore = []",
    "[conditional.'true'.placeholders.x]\nprompt = \"?\"",
    "include = 3",
    "fmt = \"no\"",
    "include = [",
    "[placeholders.authors]\nprompt = \"?\"",
    "[placeholders.x]\ndefault = \"a\"",
    "[placeholders.x]\nprompt = \"?\"\ntype = \"bool\"\nchoices = [\"a\"]",
    "[placeholders.x]\nprompt = \"?\"\nchoices = []",
    "[placeholders.x]\nprompt = \"?\"\nchoices = [{ label = \"A\" }]",
    "[placeholders.x]\nprompt = \"?\"\nchoices = [\"a\", \"b\"]\ndefault = \"c\"",
    "[placeholders.x]\nprompt = \"?\"\nregex = \"^[a-z+$\"",
    "[placeholders.x]\nprompt = \"?\"\nregex = '\\p{Nothing}'",
    "[placeholders.x]\nprompt = \"?\"\nregex = \"^a$\"\ndefault = \"b\"",
    "[placeholders.x]\nprompt = \"?\"\nchoice = [\"a\"]",
    "[placeholders.x]\nprompt = \"?\"",
];

/// Files with invalid Liquid in the same template.
const LIQUID: &[&str] = &[
    "a\n  {{ stile }}\n",
    "x\n{{ 'a' | append: style }}${{ matrix.os }}",
    "ok\n{{ style | divided_by: 0 }}",
    "é {{ style | upcas }}",
    "\n\n{% if style %}",
    "x => {{",
    "{% iff style %}{% endif %}",
    "a comment\n{%- comment %}{% raw %}{% endcomment %}",
    "{{ style }}\n{% if style == 99999999999999999999 %}{% endif %}",
];

/// Invalid paths in the same template.
const PATHS: &[&[&str]] = &[
    &["{{style}}.txt", "plain.txt"],
    &["{{text | remove: 't'}}/f.txt"],
    &["aux.c"],
];

struct Report {
    text: String,
    without_help: Vec<String>,
}

impl Report {
    /// Adds the output for an input.
    fn add(&mut self, input: &str, status: i32, said: &str) {
        if !said.contains("help: ") {
            self.without_help.push(input.to_owned());
        }
        let _ = writeln!(self.text, "$ {input}    [{status}]\n{}\n", said.trim_end());
    }

    fn run(&mut self, place: &Place, input: &str, args: &[&str], status: i32) {
        let before = place.tree();
        let output = place.command().args(args).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{input}");
        assert!(output.stdout.is_empty(), "{input}");
        assert!(place.tree() == before, "{input} changed something");
        self.add(input, status, &String::from_utf8_lossy(&output.stderr));
    }

    /// Adds the error for a template.
    fn template(&mut self, input: &str, rules: &str, files: &[(&str, &[u8])]) {
        let place = Place::new();
        let options = "style = { prompt = \"?\", choices = [\"plain\"], default = \"plain\" }\n\
                       text = { prompt = \"?\", default = \"t\" }";
        let (own, more) = match rules.find("[placeholders.") {
            Some(at) => rules.split_at(at),
            None => (rules, ""),
        };
        let config = format!("[template]\nfmt = false\n{own}\n[placeholders]\n{options}\n{more}\n");
        place.put(
            "t/cargo-generate.toml",
            &config.replace("fmt = false\nfmt", "fmt"),
        );
        for (path, contents) in files {
            place.put(&format!("t/{path}"), "");
            fs::write(place.join(&format!("t/{path}")), contents).unwrap();
        }
        let error = refusal(&place).expect_err(input);
        let root = format!("{}/", place.path().display());
        let said = error.draw(false).replace(&root, "");
        let status = i32::from(error.kind().exit_status());
        self.add(&format!("template: {input}"), status, &said);
    }
}

fn refusal(place: &Place) -> Result<()> {
    // Lines of messages break where they do in any temporary folder.
    let reading = Reading {
        label: Some("t"),
        ..Reading::default()
    };
    let template = Template::read(&place.join("t"), reading)?;
    template.check()?;
    let answers = Answers::defaults(&template, Name::parse("a")?)?;
    render(&template, &answers).map(drop)
}

/// A folder with obstacles.
fn obstacles() -> Place {
    let place = Place::new();
    place.put("full/file", "");
    place.put("full/Cargo.toml", "");
    place.put("file", "");
    place.put("blocked/src", "a file");
    place.put("linked/Cargo.toml", "");
    fs::write(place.join("latin1.toml"), b"# one\nci = \"n\xe4ht\"\n").unwrap();
    std::os::unix::fs::symlink("full", place.join("link")).unwrap();
    std::os::unix::fs::symlink("../full", place.join("linked/src")).unwrap();
    place
}

#[test]
fn every_message_says_what_where_and_what_to_do() {
    let mut report = Report {
        text: String::new(),
        without_help: Vec::new(),
    };
    let place = obstacles();
    for (line, status) in ARGUMENTS {
        let args: Vec<_> = line.split(' ').collect();
        report.run(&place, &format!("kiln {line}"), &args, *status);
    }
    let place = Place::new();
    for text in VALUES {
        place.put("v.toml", text);
        let args = ["new", "a", "--yes", "--values", "v.toml"];
        report.run(&place, &format!("v.toml: {text:?}"), &args, 2);
    }
    for text in SITES {
        place.put("p/todos.toml", text);
        report.run(&place, &format!("todos.toml: {text:?}"), &["todos", "p"], 2);
    }
    let files: &[(&str, &[u8])] = &[("f.txt", b"{{style}}"), ("g.txt", b"")];
    for rules in RULES {
        report.template(&format!("{rules:?}"), rules, files);
    }
    for liquid in LIQUID {
        report.template(&format!("{liquid:?}"), "", &[("f.txt", liquid.as_bytes())]);
    }
    for paths in PATHS {
        let files: Vec<(&str, &[u8])> = paths.iter().map(|path| (*path, &b"x"[..])).collect();
        report.template(&format!("{paths:?}"), "", &files);
    }
    report.template("not UTF-8", "", &[("f.txt", b"a\nb\xff\n")]);
    assert_eq!(report.without_help, [""; 0], "these say no way out");
    snapbox::assert_data_eq!(report.text, file!["errors.txt"].raw());
}

/// Failures of programs that Kiln calls.
#[test]
fn programs_that_fail_end_with_3() {
    let place = Place::new();
    let failed = place
        .kiln("new a --yes --vcs git")
        .env("PATH", "")
        .assert()
        .code(3);
    failed.stderr_eq(snapbox::str![[r#"
  × `git init` failed: No such file or directory (os error 2)
  help: use `--vcs none`; nothing was written

"#]]);
    let failed = place
        .kiln("new a --yes --vcs none --train")
        .env("CARGO", "no-cargo")
        .assert()
        .code(3);
    failed.stderr_eq(snapbox::str![[r#"
  × cannot run `no-cargo`: No such file or directory (os error 2)
  help: install Rust, then run `cargo run` in the new folder

"#]]);
}

/// All commands that print; `made` is a project.
const PRINTING: &[&str] = &[
    "--help",
    "--version",
    "help new",
    "options",
    "examples",
    "explain",
    "explain model.architecture",
    "explain --path made --format json",
    "todos made",
    "todos made --format json",
    "diff -d hardware=cuda",
    "diff -d hardware=cuda --format json",
    "new a --dry-run",
    "update made --dry-run",
    "update made --dry-run --format json",
    "add ci=github --path made --dry-run",
    "doctor",
    "doctor --format json",
    "completions bash",
    "man",
];

/// The exit status and standard error of a command whose standard output is redirected.
fn printing_to(place: &Place, line: &str, output: impl Into<Stdio>) -> (Option<i32>, String) {
    let output = Command::new(snapbox::cmd::cargo_bin!("kiln"))
        .args(line.split(' '))
        .current_dir(place.path())
        .stdout(output)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

fn with_project() -> Place {
    let place = Place::new();
    let made = place.kiln("new made --yes --vcs none");
    made.assert().success();
    place
}

/// A closed pipe, as `head` leaves it, is not an error.
#[test]
fn output_that_is_not_read() {
    let place = with_project();
    for line in PRINTING {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let ended = printing_to(&place, line, writer);
        let all = place.command().args(line.split(' ')).output().unwrap();
        assert_eq!(ended, (all.status.code(), String::new()), "{line}");
    }
}

#[test]
fn output_that_cannot_be_written() {
    let Ok(full) = fs::File::create("/dev/full") else {
        println!("skipped: there is no /dev/full here");
        return;
    };
    let place = with_project();
    for line in PRINTING {
        let (status, said) = printing_to(&place, line, full.try_clone().unwrap());
        assert_eq!(status, Some(3), "{line}: {said}");
        assert!(
            said.contains("cannot write to standard output") && said.contains("help: "),
            "{line}: {said}"
        );
    }
}

/// Without standard error, the exit status still reports the error.
#[test]
fn messages_that_are_not_read() {
    let place = Place::new();
    for (line, status) in [("new a --vcs", 2), ("todos absent", 2), ("explain x", 2)] {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let ended = Command::new(snapbox::cmd::cargo_bin!("kiln"))
            .args(line.split(' '))
            .current_dir(place.path())
            .stderr(writer)
            .status()
            .unwrap();
        assert_eq!(ended.code(), Some(status), "{line}");
    }
}
