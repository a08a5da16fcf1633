//! `kiln check` on rendered projects: a correct project passes, including one with another task,
//! and problems are reported. Tests with fake programs are in the generator's crate.

use std::process::Command;

use kiln_tests::{
    filled_in::own_training_state,
    rendered::Project,
    running::{self, BUILD},
};
use serde_json::Value;

const CHECKS: [&str; 5] = [
    "build",
    "contract tests",
    "one replica",
    "two replicas",
    "resume",
];

/// Whether all checks passed, from the exit status, and the report.
fn check(project: &Project) -> (bool, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kiln_command"));
    command
        .args(["check", "--format", "json"])
        .current_dir(project.path())
        .envs(project.build_environment());
    let output = running::output(&mut command, BUILD);
    let report = serde_json::from_slice(&output.stdout);
    let report = report.unwrap_or_else(|error| panic!("{error}: {output:?}"));
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    (output.status.success(), report)
}

/// The problem of each check.
fn problems(report: &Value) -> Vec<(&str, Option<&str>)> {
    let checks = report["checks"].as_array().unwrap().iter();
    checks
        .map(|check| {
            let name = check["check"].as_str().unwrap();
            (name, check["problem"].as_str())
        })
        .collect()
}

#[test]
#[ignore = "long"]
fn a_rendered_project_passes() {
    let project = Project::default_answers();
    let (passed, report) = check(&project);
    assert!(passed, "{report:#}");
    assert_eq!(problems(&report), CHECKS.map(|check| (check, None)));
    assert_eq!(report["sites"], report["sites_left"]);
    assert!(!project.path().join("runs").exists());
}

/// An example with other models, losses, callbacks and options.
#[test]
#[ignore = "long"]
fn a_filled_in_project_passes() {
    let (passed, report) = check(&Project::example("callbacks"));
    assert!(passed, "{report:#}");
    assert_eq!(problems(&report), CHECKS.map(|check| (check, None)));
}

#[test]
#[ignore = "long"]
fn a_wrong_edit_fails_and_is_named() {
    let project = Project::to_edit();
    let whole_batch = "replica_context()?.examples_in_update()";
    let own_part = "replica_context().map(|_| per_example_losses.dims()[0])?";
    project.edit("loss.rs", whole_batch, own_part);
    let (passed, report) = check(&project);
    assert!(!passed, "{report:#}");
    let problems = problems(&report);
    let contract = problems[1].1.unwrap();
    assert!(contract.contains("TODO(loss.compute): "), "{contract}");
    // The project still trains, with wrong results.
    assert_eq!(problems[2..], CHECKS.map(|check| (check, None))[2..]);
}

#[test]
#[ignore = "long"]
fn an_optimizer_that_no_checkpoint_holds_is_noticed() {
    let project = Project::to_edit();
    let update = "let gradients = gradients.take(&self.model);
        self.model = self.optimizer.update(self.model, gradients);";
    own_training_state(&project, "", update, "Vec::new()");
    let (passed, report) = check(&project);
    assert!(!passed, "{report:#}");
    let problems = problems(&report);
    assert_eq!(problems[2..4], CHECKS.map(|check| (check, None))[2..4]);
    let resume = problems[4].1.unwrap();
    assert!(resume.contains(" after a resume but "), "{resume}");
}
