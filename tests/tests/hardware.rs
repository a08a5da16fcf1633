//! Each hardware option compiles without the hardware, and the CPU compiles without optional features.

use kiln_tests::rendered::{HARDWARE, Project};

#[test]
#[ignore = "long"]
fn each_hardware_feature_compiles() {
    let project = Project::default_answers();
    for kind in HARDWARE {
        project.check(&["check", "--all-targets"], kind, &[]);
    }
}

#[test]
#[ignore = "long"]
fn it_compiles_without_convolutions_of_its_own() {
    let project = Project::default_answers();
    let command = ["clippy", "--all-targets", "--no-default-features"];
    project.check(&command, "flex", &["--", "-D", "warnings"]);
}
