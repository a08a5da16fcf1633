//! `kiln check` on rendered projects.

use std::process::Command;

use serde_json::Value;

use crate::{
    rendered::Project,
    running::{self, BUILD},
};

/// The checks, in order.
pub const CHECKS: [&str; 5] = [
    "build",
    "contract tests",
    "one replica",
    "two replicas",
    "resume",
];

/// Runs `kiln check` with the program `kiln`; returns whether all checks passed, from the exit status, and the
/// report.
///
/// # Panics
/// The report is not JSON, or the exit status is neither 0 nor 1.
#[track_caller]
pub fn check(kiln: &str, project: &Project) -> (bool, Value) {
    let mut command = Command::new(kiln);
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

/// Runs `kiln check`, of which every check must pass; none may be skipped. Returns the report.
///
/// # Panics
/// A check fails or is skipped.
#[track_caller]
pub fn passes(kiln: &str, project: &Project) -> Value {
    let (passed, report) = check(kiln, project);
    assert!(passed, "{report:#}");
    assert_eq!(problems(&report), CHECKS.map(|check| (check, None)));
    report
}

/// The problem of each check.
///
/// # Panics
/// The report has no checks.
pub fn problems(report: &Value) -> Vec<(&str, Option<&str>)> {
    let checks = report["checks"].as_array().expect("checks").iter();
    checks
        .map(|check| {
            let name = check["check"].as_str().expect("a name");
            (name, check["problem"].as_str())
        })
        .collect()
}
