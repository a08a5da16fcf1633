//! `kiln new --dry-run` lists the files and writes nothing.

use std::{collections::BTreeMap, fs};

use crate::common::Place;
use snapbox::str;

/// Runs a dry run and checks that nothing has changed.
fn dry_run(place: &Place, args: &str) -> String {
    let before = place.tree();
    let command = place.kiln(&format!("new {args} --dry-run"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stderr, b"");
    assert_eq!(place.tree(), before);
    String::from_utf8(output.stdout).unwrap()
}

/// The files that a dry run lists, by path, with the rest of each line.
fn listed(text: &str) -> BTreeMap<String, String> {
    let mut above: Vec<&str> = Vec::new();
    let mut files = BTreeMap::new();
    for line in text.lines().filter(|line| line.starts_with("  ")) {
        let depth = (line.len() - line.trim_start().len()) / 2 - 1;
        above.truncate(depth);
        let (name, rest) = line.trim().split_once("  ").unwrap_or((line.trim(), ""));
        if name.ends_with('/') {
            above.push(name);
        } else {
            files.insert(format!("{}{name}", above.concat()), rest.trim().to_owned());
        }
    }
    files
}

fn written(place: &Place, folder: &str) -> BTreeMap<String, usize> {
    let tree = place.tree().into_iter();
    tree.filter(|(path, _)| !path.ends_with('/'))
        .filter_map(|(path, bytes)| {
            let path = path.strip_prefix(folder)?.strip_prefix('/')?;
            Some((path.to_owned(), bytes.len()))
        })
        .collect()
}

#[test]
fn lists_the_files_that_the_real_one_writes() {
    for args in [
        "a",
        "a --define cluster=slurm --define ci=github",
        "a --example cyclegan",
        "a --example house-template",
        "a --path some/where/b",
    ] {
        let place = Place::new();
        let listed = listed(&dry_run(&place, args));
        let command = format!("new {args} --yes --vcs none");
        place.kiln(&command).assert().success();
        let folder = args.split("--path ").nth(1).unwrap_or("a");
        let written = written(&place, folder);
        let names: Vec<_> = listed.keys().collect();
        assert_eq!(names, written.keys().collect::<Vec<_>>(), "{args}");
        for (path, size) in written.iter().filter(|(_, size)| **size < 1_000) {
            assert_eq!(listed[path], format!("{size} B"), "{args}: {path}");
        }
    }
}

#[test]
fn says_where_how_much_and_that_nothing_was_written() {
    let place = Place::new();
    let text = dry_run(&place, "MyModel --path x/y");
    snapbox::assert_data_eq!(
        text,
        str![[r#"
x/y: [..] files, [..] MB, and a git repository

  .gitattributes                          135 B
...
  src/
...

Dry run: nothing was written.

"#]]
    );
    let text = dry_run(&place, "a --vcs none");
    assert!(!text.contains("git repository"), "{text}");
    // A values file is applied too.
    place.put("values.toml", "ci = \"github\"");
    let text = dry_run(&place, "a --values values.toml");
    assert!(text.contains(".github/"), "{text}");
}

#[test]
fn says_what_would_become_of_each_file() {
    let place = Place::new();
    place.kiln("new a --yes --vcs none").assert().success();
    place.put("a/README.md", "mine");
    place.put("a/mine.txt", "mine");
    fs::remove_file(place.join("a/Cargo.toml")).unwrap();
    let text = dry_run(&place, "a --force");
    let fates = listed(&text);
    for (path, rest) in &fates {
        let fate = match path.as_str() {
            "README.md" => "replaced",
            "Cargo.toml" => "created",
            _ => "unchanged",
        };
        assert!(rest.ends_with(&format!("  {fate}")), "{path}: {rest}");
    }
    assert!(!fates.contains_key("mine.txt"));
    let unchanged = format!("{} unchanged, 1 replaced", fates.len() - 2);
    assert!(text.contains(&unchanged), "{text}");

    // The real run has these outcomes.
    let made = place
        .kiln("new a --yes --vcs none --force")
        .output()
        .unwrap();
    let said = String::from_utf8(made.stdout).unwrap();
    assert!(said.contains(&format!("1 file, {unchanged}")), "{said}");
}

#[test]
fn refuses_what_the_real_one_refuses() {
    let place = Place::new();
    place.put("taken/Cargo.toml", "");
    place.put("blocked/src", "a file in the way of a folder");
    place.put("bad.toml", "stratergy = \"mirrored\"");
    for args in [
        "1st",
        "burn",
        "taken",
        "blocked --force",
        "a --path taken/Cargo.toml/b",
        "a --define strategy=many",
        "a --define none",
        "a --values bad.toml",
        "a --values missing.toml",
        "a --example missing",
        "a --example house-template --define ci=none",
    ] {
        let before = place.tree();
        let real = place.kiln(&format!("new {args} --yes")).output().unwrap();
        let dry = place
            .kiln(&format!("new {args} --dry-run"))
            .output()
            .unwrap();
        assert_eq!(dry.status.code(), Some(2), "{args}");
        assert_eq!(dry.status, real.status, "{args}");
        assert_eq!(dry.stderr, real.stderr, "{args}");
        assert_eq!(dry.stdout, b"", "{args}");
        assert_eq!(place.tree(), before, "{args}");
    }
}

#[cfg(unix)]
#[test]
fn writes_nothing_even_where_it_may_not() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.put("there/file", "mine");
    let folder = place.join("there");
    let allow = |mode| fs::set_permissions(&folder, fs::Permissions::from_mode(mode)).unwrap();
    allow(0o555);
    dry_run(&place, "a --path there --force");
    dry_run(&place, "a --path there/b");
    allow(0o755);
}

#[test]
fn cannot_be_trained() {
    Place::new()
        .kiln("new a --dry-run --train")
        .assert()
        .code(2)
        .stderr_eq(str![[r#"
  × the argument `--dry-run` cannot be used with `--train`
   ╭─[command line:1:12]
 1 │ kiln new a --dry-run --train
   ·            ────┬────
   ·                ╰── here
   ╰────
  help: usage: kiln new --dry-run <NAME>
        for more information, try `--help`.

"#]]);
}
