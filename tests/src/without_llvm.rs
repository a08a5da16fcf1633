//! Builds for CUDA that do not fetch LLVM: kernels are compiled by CubeCL's C++ backend and NVRTC.
//!
//! CubeCL links its other backend, too, which is never called: the functions of LLVM that it needs are stubs.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use kiln::snapshot::read_tree;
use serde_json::Value;

use crate::{
    rendered::{Project, replace_in, text},
    running::{BUILD, succeeds},
    shared_target,
};

/// The environment variable with which, as for documentation, the build script of LLVM fetches nothing. No other
/// build script reads it.
pub(crate) const AS_FOR_DOCUMENTATION: (&str, &str) = ("DOCS_RS", "1");

/// The library of stubs.
const STUBS: &str = "llvm_stubs";

/// The crates that declare functions of LLVM and of CubeCL's own C++, with the beginnings of their names.
const DECLARED: [(&str, &str); 2] = [("llvm-sys", "LLVM"), ("cubecl-llvm", "cubecl_")];

/// The project, which has the feature `cuda`, built without LLVM.
///
/// # Panics
/// A crate of LLVM is missing, or there is no C compiler.
pub fn without_llvm(project: Project) -> Project {
    let burn = "\nburn = {";
    let backend = "\ncubecl-cuda = { version = \"0.11.3\", features = [\"cpp\"] }";
    let manifest = project.path().join("Cargo.toml");
    replace_in(&manifest, burn, &format!("{backend}{burn}"));
    let project = project.with_variables([AS_FOR_DOCUMENTATION]);
    let packages = packages(&project);
    let folder = write_stubs(&packages);
    let links = package(&packages, "llvm-sys")["links"].as_str();
    // In place of the output of the build script that links LLVM.
    let script = format!("target.{}.{}", host(), links.expect("a library"));
    let search = format!("native={}", folder.display());
    project.with_settings([
        format!("{script}.rustc-link-search=[{search:?}]"),
        format!("{script}.rustc-link-lib=[\"static={STUBS}\"]"),
    ])
}

/// The packages of a project with the feature `cuda`, by `cargo metadata`.
fn packages(project: &Project) -> Vec<Value> {
    let output = project.try_cargo(&["metadata", "--format-version=1", "--features=cuda"]);
    assert!(output.status.success(), "{}", text(&output));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    match metadata["packages"].take() {
        Value::Array(packages) => packages,
        other => panic!("no packages: {other}"),
    }
}

fn package<'a>(packages: &'a [Value], name: &str) -> &'a Value {
    let mut packages = packages.iter();
    packages
        .find(|package| package["name"] == name)
        .expect(name)
}

/// Writes the library, unless it is there, and returns its folder.
fn write_stubs(packages: &[Value]) -> PathBuf {
    let mut names = BTreeSet::new();
    for (crate_name, beginning) in DECLARED {
        let manifest = package(packages, crate_name)["manifest_path"].as_str();
        let folder = Path::new(manifest.expect("a path")).with_file_name("src");
        names.extend(functions(&folder, beginning));
    }
    assert!(
        names.len() > 1_000,
        "llvm-sys declares {} functions",
        names.len()
    );
    let folder = shared_target().join("without-llvm");
    fs::create_dir_all(&folder).expect("a folder");
    let [source, object] = ["stubs.c", "stubs.o"].map(|name| folder.join(name));
    let library = folder.join(format!("lib{STUBS}.a"));
    let stubs = stubs(&names);
    // With another time, what has it would be built anew.
    if library.is_file() && fs::read_to_string(&source).is_ok_and(|text| text == stubs) {
        return folder;
    }
    fs::write(&source, stubs).expect("a source");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-c", "-w", "-ffunction-sections", "-o"])
        .args([&object, &source]);
    succeeds(&mut compiler, BUILD);
    let mut archiver = Command::new("ar");
    succeeds(archiver.arg("rcs").args([&library, &object]), BUILD);
    folder
}

/// The functions of these names that the Rust sources in a folder declare.
fn functions(folder: &Path, beginning: &str) -> BTreeSet<String> {
    let tree = read_tree(folder).expect("sources");
    let texts: Vec<String> = tree.values().map(|entry| entry.text()).collect();
    let words = texts.iter().flat_map(|text| text.split("fn "));
    let names = words.filter_map(|rest| {
        rest.split(|next: char| !next.is_alphanumeric() && next != '_')
            .next()
    });
    let names = names.filter(|name| name.starts_with(beginning));
    names.map(str::to_owned).collect()
}

/// The source of functions that end the program.
fn stubs(names: &BTreeSet<String>) -> String {
    let mut source = "#include <stdio.h>\n#include <stdlib.h>\n".to_owned();
    for name in names {
        let message = format!("{name} was called, and LLVM is missing\\n");
        source += &format!("void {name}(void) {{ fputs(\"{message}\", stderr); abort(); }}\n");
    }
    source
}

/// The name of this platform, for cargo's configuration.
fn host() -> String {
    let output = Command::new("rustc").arg("-vV").output().expect("rustc");
    let version = String::from_utf8(output.stdout).expect("text");
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("a platform").to_owned()
}
