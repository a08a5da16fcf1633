//! Projects compile, pass their tests and train, on the CPU and on a GPU. In one program: while the programs of one
//! project run, another one compiles, which leaves a core idle for a third of its time. Tests that have seconds to end
//! are programs of their own.

mod abilities;
mod bad_input;
mod check;
mod checkpoints;
mod configuration;
mod ema;
mod examples;
mod filled_in;
mod gpu;
mod hardware;
mod memory;
mod model_parallel;
mod output_folder;
mod package;
mod rendered;
mod right_edits;
mod sweep;
mod trackers;
mod update;
mod weights;
mod wrong_edits;

use std::{collections::BTreeSet, fs, path::PathBuf};

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
    test_programs(project, &printed).remove(0)
}

/// The programs of `cargo test --no-run`, by what it printed.
fn test_programs(project: &Project, printed: &str) -> Vec<PathBuf> {
    let lines = printed.lines().map(str::trim_start);
    let programs = lines.filter_map(|line| {
        let (_, path) = line.strip_prefix("Executable ")?.split_once('(')?;
        Some(project.path().join(path.strip_suffix(')')?))
    });
    let programs: Vec<PathBuf> = programs.collect();
    assert!(!programs.is_empty(), "{printed}");
    programs
}
