//! The published crate contains the whole template and all examples, and builds alone.

use std::{fs, process::Command};

use kiln_tests::{
    Entry, Tree, cargo_outside, diff, read_tree, repository,
    running::{BUILD, succeeds},
};

fn files(tree: Tree) -> Tree {
    let files = tree
        .into_iter()
        .filter(|(_, entry)| *entry != Entry::Folder);
    files.collect()
}

#[test]
#[ignore = "long"]
fn holds_template_and_examples_and_builds_alone() {
    let place = tempfile::tempdir().unwrap();
    let package = [
        "package",
        "--package",
        "burn-kiln",
        "--allow-dirty",
        "--no-verify",
    ];
    succeeds(
        cargo_outside(&package, &repository()).env("CARGO_TARGET_DIR", place.path()),
        BUILD,
    );
    let archive = format!("package/burn-kiln-{}.crate", env!("CARGO_PKG_VERSION"));
    let unpacked = Command::new("tar")
        .args(["-xzf", &archive])
        .current_dir(place.path())
        .status()
        .unwrap();
    assert!(unpacked.success());
    let root = place
        .path()
        .join(format!("burn-kiln-{}", env!("CARGO_PKG_VERSION")));

    for folder in ["template", "examples"] {
        let packed = root.join(folder);
        assert!(!fs::symlink_metadata(&packed).unwrap().is_symlink());
        let packed = files(read_tree(&packed).unwrap());
        let source = files(read_tree(&repository().join(folder)).unwrap());
        assert!(packed == source, "{}", diff(&source, &packed));
    }

    let readme = fs::read(repository().join("README.md")).unwrap();
    assert_eq!(fs::read(root.join("README.md")).unwrap(), readme);

    let made = place.path().join("a");
    let path = made.to_str().unwrap();
    let new = ["new", "a", "--yes", "--vcs", "none", "--path", path];
    let run = [&["run", "--locked", "--"], &new[..]].concat();
    succeeds(&mut cargo_outside(&run, &root), BUILD);
    let copied = made.join("src/main.rs");
    let expected = fs::read(repository().join("template/src/main.rs")).unwrap();
    assert_eq!(fs::read(copied).unwrap(), expected);
}
