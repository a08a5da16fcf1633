//! The crate that is published holds the whole template and all examples, and builds alone.

use std::{fs, path::Path, process::Command};

use kiln_tests::{Entry, Tree, diff, read_tree, repository, shared_target};

fn cargo(args: &[&str], folder: &Path, target: &Path) {
    let output = Command::new(env!("CARGO"))
        .args(args)
        .current_dir(folder)
        .env("CARGO_TARGET_DIR", target)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "cargo {args:?}: {said}");
}

fn files(tree: Tree) -> Tree {
    let files = tree
        .into_iter()
        .filter(|(_, entry)| *entry != Entry::Folder);
    files.collect()
}

#[test]
fn holds_template_and_examples_and_builds_alone() {
    let place = tempfile::tempdir().unwrap();
    let package = [
        "package",
        "--package",
        "kiln",
        "--allow-dirty",
        "--no-verify",
    ];
    cargo(&package, &repository(), place.path());
    let archive = format!("package/kiln-{}.crate", env!("CARGO_PKG_VERSION"));
    let unpacked = Command::new("tar")
        .args(["-xzf", &archive])
        .current_dir(place.path())
        .status()
        .unwrap();
    assert!(unpacked.success());
    let root = place
        .path()
        .join(format!("kiln-{}", env!("CARGO_PKG_VERSION")));

    for folder in ["template", "examples"] {
        let packed = root.join(folder);
        assert!(!fs::symlink_metadata(&packed).unwrap().is_symlink());
        let packed = files(read_tree(&packed).unwrap());
        let source = files(read_tree(&repository().join(folder)).unwrap());
        assert!(packed == source, "{}", diff(&source, &packed));
    }

    // The dependencies are built once for all runs; the crate itself always anew.
    let target = shared_target().join("package");
    cargo(&["build", "--locked", "--quiet"], &root, &target);
    let made = Command::new(target.join("debug/kiln"))
        .args(["new", "a", "--yes", "--vcs", "none"])
        .current_dir(place.path())
        .status()
        .unwrap();
    assert!(made.success());
    let copied = place.path().join("a/src/main.rs");
    let expected = fs::read(repository().join("template/src/main.rs")).unwrap();
    assert_eq!(fs::read(copied).unwrap(), expected);
}
