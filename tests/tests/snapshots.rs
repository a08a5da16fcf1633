//! What every combination of options makes, in snapshots: the default tree in full, and of each
//! other combination the difference from it.

use std::fmt::Write as _;

use kiln::{option::Answers, template::Template};
use kiln_tests::{Combination, Entry, NAME, Tree, combinations, diff, generate, read_tree};

fn tree(template: &Template, answers: &Answers) -> Tree {
    let folder = tempfile::tempdir().unwrap();
    let project = folder.path().join("project");
    generate(template, answers, &project).unwrap();
    read_tree(&project).unwrap()
}

/// The list of all paths, then the contents of all files; of data files the hash.
fn full(tree: &Tree) -> String {
    let mut text = String::new();
    for (path, entry) in tree {
        let mark = match entry {
            Entry::Folder => "/",
            Entry::File {
                executable: true, ..
            } => " (executable)",
            Entry::File { .. } => "",
        };
        let _ = writeln!(text, "{path}{mark}");
    }
    for (path, entry) in tree {
        if let Entry::File { .. } = entry {
            let _ = write!(text, "\n==== {path}\n{}", entry.text());
        }
    }
    text
}

/// The snapshot file of a combination; `default` for that of the defaults.
fn file_name(label: &str) -> String {
    label
        .chars()
        .map(|c| if c == ',' { '+' } else { c })
        .collect()
}

#[test]
fn the_default_tree() {
    let template = Template::embedded().unwrap();
    let default = combinations(&template, NAME).remove(0);
    assert_eq!(default.label, "default");
    insta::assert_snapshot!("default", full(&tree(&template, &default.answers)));
}

/// The combinations with a snapshot: those that differ from the default in up to two options, as
/// more would say the same again. Parity with cargo-generate is tested for all.
fn with_snapshots(template: &Template) -> Vec<Combination> {
    let mut all = combinations(template, NAME);
    all.retain(|combination| combination.label.split(',').count() <= 2);
    all
}

#[test]
fn every_other_combination() {
    let template = Template::embedded().unwrap();
    let mut all = with_snapshots(&template).into_iter();
    let default = tree(&template, &all.next().unwrap().answers);
    let mut missing = Vec::new();
    for combination in all {
        let changed = tree(&template, &combination.answers);
        if changed == default {
            missing.push(combination.label.clone());
        }
        insta::with_settings!({ description => combination.label.clone() }, {
            insta::assert_snapshot!(file_name(&combination.label), diff(&default, &changed));
        });
    }
    assert!(
        missing.is_empty(),
        "these options change nothing: {missing:?}"
    );
}

/// No snapshot is left of a combination that is gone.
#[test]
fn no_other_snapshots() {
    let template = Template::embedded().unwrap();
    let mut expected: Vec<_> = with_snapshots(&template)
        .iter()
        .map(|combination| format!("snapshots__{}.snap", file_name(&combination.label)))
        .collect();
    expected.sort();
    let folder = kiln_tests::repository().join("tests/tests/snapshots");
    let mut found: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".snap"))
        .collect();
    found.sort();
    assert_eq!(found, expected);
}
