//! Snapshots of rendered projects: a change that nobody meant shows in a review.
//! `INSTA_UPDATE=always cargo test` writes them anew. And that it compiles and trains.

use std::fs;

use kiln::{
    assert_snapshot,
    project::todo,
    snapshot::{Entry, Project},
};

/// The template's folder.
const TEMPLATE: &str = "template";
/// The files that the house wrote. Those of Kiln are in the list of files only.
const OWN: [&str; 4] = [
    "CODEOWNERS",
    "DATA_CARD.md",
    "src/callbacks.rs",
    "tests/contract/house.rs",
];

#[test]
fn the_default_project() {
    let project = Project::render(TEMPLATE, &[]).showing(&OWN);
    assert_snapshot!(project, "the_default_project");
}

#[test]
fn what_it_renders_compiles_and_trains() {
    let project = Project::render(TEMPLATE, &[]);
    project.assert_works();
    for replicas in ["1", "2"] {
        let log = project.train(&["--replicas", replicas]);
        let test = log.last().expect("a test after the training");
        assert!(test["accuracy"].as_f64() >= Some(0.97), "{test}");
    }
    fs::write(project.path().join("data/more.csv"), "").unwrap();
    let output = project.try_cargo(&["test", "--test", "contract", "house"]);
    let output = output.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{said}");
    let expected = "DATA_CARD.md does not tell of data/more.csv";
    assert!(
        said.contains("TODO(house.data-card)") && said.contains(expected),
        "{said}"
    );
}

#[test]
fn the_owner_is_an_option() {
    let project = Project::render(TEMPLATE, &[("owner", "@speech/core")]);
    let owners = project.tree().get("CODEOWNERS").map(Entry::text);
    assert_eq!(owners.as_deref(), Some("* @speech/core\n"));
}

#[test]
#[should_panic(expected = "not a value of the option `owner`")]
fn an_owner_is_a_team() {
    let _ = Project::render(TEMPLATE, &[("owner", "nobody")]);
}

#[test]
fn every_site_is_marked_where_the_list_says() {
    let project = Project::render(TEMPLATE, &[]);
    let scan = todo::scan(project.path()).unwrap();
    let marked: Vec<_> = scan
        .todos
        .iter()
        .map(|todo| (&todo.id, &todo.file))
        .collect();
    let sites = todo::read_sites(project.path()).unwrap();
    let listed: Vec<_> = sites.iter().map(|site| (&site.id, &site.file)).collect();
    assert_eq!(marked, listed);
    assert!(scan.warnings.is_empty());
}
