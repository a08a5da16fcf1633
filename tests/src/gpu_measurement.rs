//! `tests/gpu/run.py` on a built program, as a dry run.

use std::{fs, os::unix::fs::symlink, path::Path, process::Command, time::Duration};

use serde_json::{Value, json};

use crate::{
    job::Job,
    python, repository,
    running::{succeeds, write_program},
};

/// The time limit of the script, which it keeps by itself, and of its process.
const MINUTES: &str = "5";
const LIMIT: Duration = Duration::from_secs(360);

/// All trainings that the script measures, the digits first.
pub const WORK: [&str; 8] = [
    "digits",
    "CNN of 28x28",
    "CNN of 28x28, large batch",
    "dense",
    "dense, large batch",
    "CycleGAN of 16x16",
    "decoder, float32",
    "decoder, bfloat16",
];

/// What a dry run of the digits alone does not measure, besides the other trainings.
const NOT_MEASURED: [&str; 4] = [
    "unit tests",
    "contract tests",
    "memory of the GPU",
    "PyTorch",
];

/// Measures the digits with the default project of `job` on the GPU in software that `variables` ask for, and
/// checks that the table has each figure, and for what it lacks the reason. Kernels are those of `bundle`, as tuning
/// takes a minute there: this is no measurement. Skipped without Python.
///
/// # Panics
/// The script fails, or a figure or a reason is missing.
pub fn is_tried(job: &Job, bundle: &Path, variables: &[(&str, &str)]) {
    let Some(python) = python::interpreter() else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    gather(job, bundle, folder.path());
    let mut script = Command::new(python);
    script
        .args(["-B", "run.py", "--dry-run", "--only", "digits"])
        .args(["--minutes", MINUTES])
        .current_dir(folder.path())
        .envs(variables.iter().copied());
    let printed = succeeds(&mut script, LIMIT);
    let results = fs::read_to_string(folder.path().join("results.json")).expect("results");
    let results: Value = serde_json::from_str(&results).expect("JSON");
    check_table(&printed, &results);
}

/// What the benchmark `gpu` gathers, for the digits only and without tests.
fn gather(job: &Job, bundle: &Path, folder: &Path) {
    gather_scripts(folder, "wgpu");
    let digits = folder.join("digits");
    fs::create_dir(&digits).expect("a folder");
    symlink(job.folder.join("data"), digits.join("data")).expect("a link");
    let program = format!(
        "exec '{}' --kernels '{}' \"$@\"",
        job.programs.join("program").display(),
        bundle.display()
    );
    write_program(&digits.join("program"), &program);
}

/// Copies the scripts into `folder`, with a manifest of programs for the hardware `features`.
///
/// # Panics
/// A file cannot be written.
pub fn gather_scripts(folder: &Path, features: &str) {
    let scripts = fs::read_dir(repository().join("tests/gpu")).expect("the scripts");
    for entry in scripts {
        let path = entry.expect("a script").path();
        if path.extension().is_some_and(|extension| extension == "py") {
            // The script looks for programs beside itself, and follows links.
            fs::copy(&path, folder.join(path.file_name().expect("a file"))).expect("a script");
        }
    }
    let manifest = json!({
        "commit": "tested",
        "date": "today",
        "features": features,
        "tuned": true,
    });
    fs::write(folder.join("manifest.json"), manifest.to_string()).expect("a manifest");
}

fn check_table(printed: &str, results: &Value) {
    assert_eq!(results["failures"], json!([]), "{printed}");
    assert!(
        printed.contains("Dry run, not a measurement. in software,"),
        "{printed}"
    );
    let rows: Vec<Vec<&str>> = printed.lines().filter_map(cells).collect();
    let [header, _, digits] = &rows[..] else {
        panic!("not one row: {printed}");
    };
    let has_torch = results["torch"].is_object();
    for (name, value) in header.iter().zip(digits).skip(1) {
        let is_measured = match *name {
            "batch" | "Kiln ms" | "first start s" | "later start s" => true,
            "Kiln MiB" => false,
            // Those of PyTorch, which a dry run uses on the CPU and may lack parts.
            _ if has_torch => continue,
            _ => false,
        };
        let number = value.replace(',', "").parse::<f64>();
        let is_number = number.is_ok_and(|number| number > 0.0);
        assert_eq!(is_number, is_measured, "{name}: {printed}");
        assert_eq!(value.is_empty(), !is_measured, "{name}: {printed}");
    }
    assert_eq!(digits[..2], ["digits", "16"], "{printed}");
    let training = printed
        .lines()
        .find(|line| line.starts_with("- digits, 1 epochs: "));
    assert!(
        training.is_some_and(|line| line.contains(" s, test accuracy 0.")),
        "{printed}"
    );
    for what in WORK.into_iter().skip(1).chain(NOT_MEASURED) {
        let reason = format!("- not measured: {what}: ");
        let is_told = printed.lines().any(|line| line.starts_with(&reason));
        assert_eq!(
            is_told,
            what != "PyTorch" || !has_torch,
            "{what}: {printed}"
        );
    }
}

/// The cells of a row of a table.
fn cells(line: &str) -> Option<Vec<&str>> {
    let row = line.strip_prefix('|')?.strip_suffix('|')?;
    Some(row.split('|').map(str::trim).collect())
}
