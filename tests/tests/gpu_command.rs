//! `tests/gpu/run.py`, which measures programs on a GPU, as far as a machine without one can tell.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use kiln_tests::{
    gpu_measurement::{WORK, gather_scripts},
    python,
    rendered::text,
    repository,
    running::{TRAINING, output, succeeds, write_program},
};
use serde_json::Value;

/// The command, which without `PATH` does not find the programs of a GPU.
fn run(python: &Path, options: &[&str]) -> Command {
    script(python, "run.py", options)
}

fn script(python: &Path, name: &str, options: &[&str]) -> Command {
    let mut command = Command::new(python);
    command
        // No folder of compiled Python beside the sources.
        .arg("-B")
        .arg(repository().join("tests/gpu").join(name))
        .args(options)
        .env("PATH", "");
    command
}

#[test]
fn without_a_gpu_nothing_is_measured_and_nothing_fails() {
    let Some(python) = python::interpreter() else {
        return;
    };
    let printed = succeeds(&mut run(&python, &[]), TRAINING);
    assert!(printed.contains("no CUDA GPU here"), "{printed}");
    let refused = output(&mut run(&python, &["--dry-run"]), TRAINING);
    assert_eq!(refused.status.code(), Some(1));
    assert!(
        text(&refused).contains("manifest.json is missing"),
        "{}",
        text(&refused)
    );
}

/// Programs and tests that hang have 3 seconds together, and all parts are reported.
#[test]
fn what_hangs_does_not_exceed_the_time_limit() {
    let Some(python) = python::interpreter() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    gather_scripts(folder.path(), "flex");
    for (project, programs) in [
        ("digits", &["program", "unit", "contract"][..]),
        ("cnn", &["program"]),
        ("dense", &["program"]),
        ("cyclegan", &["program"]),
        ("decoder", &["program"]),
    ] {
        fs::create_dir(folder.path().join(project)).expect("a folder");
        for name in programs {
            let path = folder.path().join(project).join(name);
            write_program(&path, "exec /bin/sleep 100");
        }
    }
    let mut script = Command::new(python);
    script
        .args(["-B", "run.py", "--dry-run", "--minutes", "0.05"])
        .current_dir(folder.path())
        .env("PATH", "");
    let started = Instant::now();
    let printed = succeeds(&mut script, TRAINING);
    // Less than one of the programs takes.
    assert!(started.elapsed() < Duration::from_secs(60), "{printed}");
    let results = fs::read_to_string(folder.path().join("results.json")).expect("results");
    let results: Value = serde_json::from_str(&results).expect("JSON");
    let names = |list: &str, name: &str| -> Vec<String> {
        let parts = results[list].as_array().expect("a list").iter();
        let names = parts.map(|part| part[name].as_str().expect("a name").to_owned());
        names.collect()
    };
    assert_eq!(names("work", "work"), WORK, "{printed}");
    assert_eq!(names("tests", "tests"), ["unit", "contract"], "{printed}");
    for line in [
        "- digits: no step at the first start within ",
        "- digits, 1 epochs: stopped after 0 epochs",
        "- unit tests: 0 passed, 0 failed of 0, stopped after ",
        "- contract tests: 0 passed, 0 failed of 0, stopped after ",
    ] {
        assert!(printed.contains(line), "{line}: {printed}");
    }
}

/// Among the results: a rate that is missing in a round, a start that was stopped, a program and a test that
/// failed, and tests that were stopped.
#[test]
fn results_are_printed_as_a_table() {
    let Some(python) = python::interpreter() else {
        return;
    };
    let fixtures = repository().join("tests/fixtures/gpu");
    let results = fixtures.join("results.json");
    let options = ["--table", results.to_str().expect("a path in UTF-8")];
    let printed = succeeds(&mut run(&python, &options), TRAINING);
    let expected = fs::read_to_string(fixtures.join("table.md")).expect("a fixture");
    assert_eq!(printed, expected);
}

/// Among the records, from an H100: a kernel that was loaded, and an operation whose result was not kept.
#[test]
fn records_tell_what_a_start_compiled_and_tuned() {
    let Some(python) = python::interpreter() else {
        return;
    };
    let fixtures = repository().join("tests/fixtures/gpu");
    let folder = fixtures.to_str().expect("a path in UTF-8");
    let printed = succeeds(&mut script(&python, "records.py", &[folder]), TRAINING);
    let first = printed.lines().next().unwrap_or_default();
    assert_eq!(
        first,
        "4 kernels compiled in 219.5 s, the longest in 146.9 s; 1 operations tuned in 9.5 s, the longest in 9.5 s"
    );
    let longest = printed.lines().nth(1).unwrap_or_default();
    assert!(
        longest.starts_with("  146.86 s  kernels  cubek_matmul::"),
        "{longest}"
    );
    let missing = script(&python, "records.py", &["missing"])
        .output()
        .expect("Python");
    assert_eq!(text(&missing).trim(), "no records in missing");
}

#[test]
fn damaged_records_are_named() {
    let Some(python) = python::interpreter() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let database = folder.path().join("default.db");
    fs::write(
        &database,
        "no database, but long enough for a header of one",
    )
    .expect("a file");
    let options = [folder.path().to_str().expect("a path in UTF-8")];
    let refused = output(&mut script(&python, "records.py", &options), TRAINING);
    assert_eq!(refused.status.code(), Some(1));
    let expected = format!("the database {} is damaged", database.display());
    assert!(text(&refused).contains(&expected), "{}", text(&refused));
}
