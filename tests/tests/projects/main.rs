//! Projects compile, pass their tests and train. In one program: while the programs of one project run, another one
//! compiles, which leaves a core idle for a third of its time. Tests whose time is limited are programs of their own.

mod abilities;
mod bad_input;
mod check;
mod configuration;
mod examples;
mod filled_in;
mod memory;
mod rendered;
mod sweep;
mod update;
mod weights;
mod wrong_edits;

use std::fs;

use kiln_tests::repository;

/// The TODO sites of the template.
fn sites() -> Vec<toml::Value> {
    let sites = fs::read_to_string(repository().join("template/todos.toml")).unwrap();
    let mut sites: toml::Table = sites.parse().unwrap();
    match sites.remove("site") {
        Some(toml::Value::Array(sites)) => sites,
        other => panic!("no sites: {other:?}"),
    }
}
