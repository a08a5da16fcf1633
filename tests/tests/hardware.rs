//! Each kind of hardware compiles where there is none of it.

use kiln_tests::rendered::{HARDWARE, Project};

#[test]
fn each_hardware_feature_compiles() {
    let project = Project::default_answers();
    for kind in HARDWARE {
        project.check(&["check", "--all-targets"], kind, &[]);
    }
}
