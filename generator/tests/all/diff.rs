//! `kiln diff`.

use std::{collections::BTreeMap, fs, process::Command};

use crate::common::Place;
use kiln::{
    name::Name,
    render::render,
    template::{Template, answers::Answers, option::Value},
};
use snapbox::str;

fn diff(args: &str) -> String {
    let place = Place::new();
    let output = place.kiln(&format!("diff {args}")).output().unwrap();
    assert!(output.status.success(), "{args}: {output:?}");
    assert_eq!(output.stderr, b"");
    assert_eq!(place.tree().len(), 0, "it writes nothing");
    String::from_utf8(output.stdout).unwrap()
}

/// The files of the default project with another value of one option.
fn files(option: &str, value: &Value) -> BTreeMap<String, Vec<u8>> {
    let template = Template::embedded().unwrap();
    let answers = Answers::defaults(&template, Name::parse("my-model").unwrap())
        .and_then(|answers| answers.with(&template, option, &value.to_string()))
        .unwrap();
    let rendered = render(&template, &answers).unwrap();
    let file = |file: &kiln::render::RenderedFile<'_>| {
        let path = file.path.to_str().unwrap().to_owned();
        (path, file.contents.to_vec())
    };
    rendered.files.iter().map(file).collect()
}

fn write(place: &Place, files: &BTreeMap<String, Vec<u8>>) {
    for (path, contents) in files {
        place.put(path, "");
        fs::write(place.join(path), contents).unwrap();
    }
}

fn read(place: &Place) -> BTreeMap<String, Vec<u8>> {
    let mut tree = place.tree();
    tree.retain(|path, _| !path.ends_with('/'));
    tree
}

/// Each option with two adjacent values, in both orders.
fn pairs() -> Vec<(String, Value, Value)> {
    let template = Template::embedded().unwrap();
    let mut pairs = Vec::new();
    for option in template.options() {
        let mut values = option.values();
        if values.len() == 1 {
            values.push(option.parse("Another_text").unwrap());
        }
        for two in values.windows(2) {
            let pair = |one: usize, other: usize| {
                (option.name.clone(), two[one].clone(), two[other].clone())
            };
            pairs.extend([pair(0, 1), pair(1, 0)]);
        }
    }
    pairs
}

#[test]
fn git_makes_one_side_of_the_other() {
    for (option, one, other) in pairs() {
        let args = [
            "diff".to_owned(),
            "--define".to_owned(),
            format!("{option}={other}"),
            "--against".to_owned(),
            format!("{option}={one}"),
        ];
        let place = Place::new();
        let output = place.command().args(&args).output().unwrap();
        assert!(output.status.success(), "{args:?}");
        let (before, after) = (files(&option, &one), files(&option, &other));
        assert_ne!(before, after, "{args:?}");
        write(&place, &before);
        let outside = Place::new();
        let patch = outside.join("patch");
        fs::write(&patch, output.stdout).unwrap();
        let git = Command::new("git")
            .args(["apply", "-p1"])
            .arg(&patch)
            .current_dir(place.path())
            .env("GIT_CEILING_DIRECTORIES", place.path().parent().unwrap())
            .output()
            .unwrap();
        assert!(git.status.success(), "{args:?}: {git:?}");
        assert_eq!(read(&place), after, "{args:?}");
    }
}

#[test]
fn a_changed_file() {
    let text = diff("--define strategy=one-device src/strategy.rs");
    snapbox::assert_data_eq!(
        text,
        str![[r#"
strategy: "mirrored" -> "one-device"
1 file changed.

changed src/strategy.rs ([..] -> [..] bytes)
--- a/src/strategy.rs
+++ b/src/strategy.rs
@@ [..] @@
...
-[..]mirrored[..]
+[..]one-device[..]
...
"#]]
    );
}

#[test]
fn added_and_removed_files() {
    let text = diff("-d cluster=slurm -a cluster=kubernetes");
    assert!(
        text.starts_with("cluster: \"kubernetes\" -> \"slurm\"\n"),
        "{text}"
    );
    for line in [
        "2 files changed, 1 file added, 2 files removed.",
        "--- /dev/null\n+++ b/launch/slurm.sh",
        "--- a/launch/Dockerfile\n+++ /dev/null",
    ] {
        assert!(text.contains(line), "{line}:\n{text}");
    }
    // In reverse.
    let text = diff("-d cluster=kubernetes -a cluster=slurm");
    assert!(
        text.contains("2 files changed, 2 files added, 1 file removed."),
        "{text}"
    );
}

#[test]
fn both_sides_start_from_the_defaults() {
    assert_eq!(
        diff("-d hardware=cuda"),
        diff("-d hardware=cuda -a hardware=flex")
    );
    assert_eq!(
        diff("-a hardware=cuda"),
        diff("-d hardware=flex -a hardware=cuda")
    );
    let two = diff("-d hardware=cuda -d ci=github -a ci=none");
    assert!(two.starts_with("hardware: \"flex\" -> \"cuda\"\nci: \"none\" -> \"github\"\n"));
}

#[test]
fn nothing_differs() {
    assert_eq!(diff("-d hardware=flex"), "Nothing differs.\n");
    assert_eq!(
        diff("-d hardware=cuda src/main.rs tests"),
        "hardware: \"flex\" -> \"cuda\"\nNothing differs in src/main.rs, tests.\n"
    );
}

#[test]
fn only_some_files() {
    let one = diff("-d hardware=cuda Cargo.toml");
    assert!(one.contains("+++ b/Cargo.toml"), "{one}");
    assert!(!one.contains("README.md"), "{one}");
    assert_eq!(diff("-d hardware=cuda ./Cargo.toml"), one);
    let folder = diff("-d cluster=slurm launch/");
    assert!(folder.contains("+++ b/launch/slurm.sh"), "{folder}");
    assert!(!folder.contains("README.md"), "{folder}");
}

#[test]
fn of_an_example() {
    // Both sides start from the example's answers.
    let text = diff("--example cyclegan -d ci=github");
    assert!(text.starts_with("ci: \"none\" -> \"github\"\n"), "{text}");
    assert!(!text.contains("description:"), "{text}");
    let nothing = diff("--example cyclegan -d ci=none");
    assert_eq!(nothing, "Nothing differs.\n");
}

#[test]
fn as_json() {
    let text = diff("-d cluster=slurm -a cluster=kubernetes --format json");
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        json["options"],
        serde_json::json!([{"name": "cluster", "against": "kubernetes", "define": "slurm"}])
    );
    let files = json["files"].as_array().unwrap();
    let find = |path: &str| files.iter().find(|file| file["path"] == path).unwrap();
    let added = find("launch/slurm.sh");
    assert_eq!(added["change"], "added");
    assert_eq!(added["against"], serde_json::Value::Null);
    assert!(added["define"]["bytes"].as_u64().unwrap() > 0);
    let patch = added["diff"].as_str().unwrap();
    assert!(
        patch.starts_with("--- /dev/null\n+++ b/launch/slurm.sh\n@@ -0,0 +1,"),
        "{patch}"
    );
    assert_eq!(find("launch/Dockerfile")["change"], "removed");
    assert_eq!(find("README.md")["change"], "changed");

    let nothing = diff("-d ci=none --format json");
    let json: serde_json::Value = serde_json::from_str(&nothing).unwrap();
    assert_eq!(json, serde_json::json!({"options": [], "files": []}));
}

#[test]
fn what_is_refused() {
    let place = Place::new();
    let refused = |args: &str, message: &str| {
        let output = place.kiln(&format!("diff {args}")).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{args}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(message), "{args}: {said}");
    };
    refused("-d hardwear=cuda", "did you mean `hardware`?");
    refused("-a hardware=coda", "did you mean `cuda`?");
    refused("-d hardware", "has no `=`");
    refused("-d ci=github Cargo.tml", "did you mean `Cargo.toml`?");
    refused("-d ci=github ..", "no file or folder `..`");
    refused("-d ci=github launch", "no file or folder `launch`");
    refused("-d ci=github --example cyclgan", "did you mean `cyclegan`?");
    refused("-d ci=github --example house-template", "has no options");
}

#[cfg(unix)]
#[test]
fn whoever_reads_may_stop_early() {
    let output = Command::new("sh")
        .args([
            "-c",
            "{ sleep 0.3; \"$0\" diff -d cluster=slurm; echo $? >&2; } | true",
        ])
        .arg(snapbox::cmd::cargo_bin!("kiln"))
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "0\n");
}

/// Colours are printed only on a terminal.
#[cfg(unix)]
#[test]
fn colors() {
    let place = Place::new();
    for (variables, colors) in [
        (&[("TERM", "xterm-256color")][..], true),
        (&[("TERM", "dumb")], false),
        (&[("TERM", "xterm-256color"), ("NO_COLOR", "1")], false),
    ] {
        let args = ["diff", "-d", "cluster=slurm"];
        let terminal = crate::terminal::Terminal::start_with(place.path(), &args, variables);
        let (_, log) = terminal.end();
        assert!(log.contains("+++ b/launch/slurm.sh"), "{log}");
        assert_eq!(
            log.contains("\u{1b}[32m+"),
            colors,
            "{variables:?}: {log:?}"
        );
        assert_eq!(log.contains('\u{1b}'), colors, "{variables:?}: {log:?}");
    }
    assert!(!diff("-d cluster=slurm").contains('\u{1b}'));
}
