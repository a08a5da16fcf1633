//! `kiln check` on rendered projects: a correct project passes, including one with another task,
//! and problems are reported. Tests with fake programs are in the generator's crate.

use kiln_tests::{
    check::{CHECKS, passes, problems},
    filled_in::own_training_state,
    rendered::Project,
};
use serde_json::Value;

const KILN: &str = env!("CARGO_BIN_EXE_kiln_command");

fn check(project: &Project) -> (bool, Value) {
    kiln_tests::check::check(KILN, project)
}

#[test]
#[ignore = "long"]
fn a_rendered_project_passes() {
    let project = Project::default_answers();
    let report = passes(KILN, &project);
    assert_eq!(report["sites"], report["sites_left"]);
    assert!(!project.path().join("runs").exists());
}

/// An example with other models, losses, callbacks and options.
#[test]
#[ignore = "long"]
fn a_filled_in_project_passes() {
    passes(KILN, &Project::example("callbacks"));
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
