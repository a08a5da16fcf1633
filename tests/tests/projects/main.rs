//! Projects compile, pass their tests and train. In one program: while the programs of one project run, another one
//! compiles, which leaves a core idle for a third of its time. Tests whose time is limited are programs of their own.

mod abilities;
mod bad_input;
mod check;
mod configuration;
mod ema;
mod examples;
mod filled_in;
mod memory;
mod model_parallel;
mod output_folder;
mod package;
mod rendered;
mod right_edits;
mod sweep;
mod update;
mod weights;
mod wrong_edits;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use kiln_tests::{
    rendered::{Project, text},
    repository,
};

/// The TODO sites of the template.
fn sites() -> Vec<toml::Value> {
    let sites = fs::read_to_string(repository().join("template/todos.toml")).unwrap();
    let mut sites: toml::Table = sites.parse().unwrap();
    match sites.remove("site") {
        Some(toml::Value::Array(sites)) => sites,
        other => panic!("no sites: {other:?}"),
    }
}

/// Checks that the sites of edits are those of the template, each at least once.
#[track_caller]
fn are_all_sites<'a>(edited: impl Iterator<Item = &'a str>) {
    let sites = sites();
    let ids = sites.iter().map(|site| site["id"].as_str().unwrap());
    assert_eq!(
        edited.collect::<BTreeSet<_>>(),
        ids.collect::<BTreeSet<_>>()
    );
}

/// Builds the contract tests of a project; returns their program.
fn contract_tests(project: &Project) -> PathBuf {
    let output = project.try_cargo(&["test", "--test", "contract", "--no-run"]);
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    let (_, rest) = printed
        .split_once("Executable tests/contract/main.rs (")
        .expect(&printed);
    let (program, _) = rest.split_once(')').expect(&printed);
    project.path().join(Path::new(program))
}
