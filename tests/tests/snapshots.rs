//! Snapshots of the projects of all combinations of options: the default project in full, and the
//! differences of each other combination.

use std::sync::Mutex;

use kiln::{assert_snapshot, snapshot::Project, template::Template};
use kiln_tests::{Combination, NAME, combinations, parallel};

/// The combinations with a snapshot, defaults first: those that differ from the defaults in at most
/// two options, as more would be redundant. Parity with cargo-generate is tested for all.
fn with_snapshots(template: &Template) -> Vec<Combination> {
    let mut all = combinations(template, NAME);
    all.retain(|combination| combination.changes.len() <= 2);
    all
}

#[test]
fn every_combination() {
    let template = Template::embedded().unwrap();
    let all = with_snapshots(&template);
    let (first, others) = all.split_first().unwrap();
    let default = Project::of_template(&template, &first.answers);
    assert_snapshot!(default, first.label());
    let missing = Mutex::new(Vec::new());
    parallel::for_each(others, |combination| {
        let project = Project::of_template(&template, &combination.answers);
        let changes = project.changes_from(&default);
        if changes.is_empty() {
            missing.lock().unwrap().push(combination.label());
        }
        assert_snapshot!(changes, combination.label());
    });
    let missing = missing.into_inner().unwrap();
    assert!(
        missing.is_empty(),
        "these options change nothing: {missing:?}"
    );
}

/// No snapshot of a removed combination is left.
#[test]
fn no_other_snapshots() {
    let template = Template::embedded().unwrap();
    let mut expected: Vec<_> = with_snapshots(&template)
        .iter()
        .map(|combination| format!("snapshots__{}.snap", combination.label()))
        .collect();
    assert!(expected.contains(&"snapshots__default.snap".to_owned()));
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
