//! Each kind of hardware compiles where there is none of it.

use kiln_tests::rendered::Project;

#[test]
fn each_hardware_feature_compiles() {
    let project = Project::default_answers();
    for feature in ["cuda", "rocm", "vulkan", "metal", "wgpu"] {
        // A crate below Burn would download LLVM to link with. Only its build script heeds this.
        project.cargo_with(&["check", "--features", feature], &[("DOCS_RS", "1")]);
    }
}
