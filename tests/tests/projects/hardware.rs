//! Each hardware option compiles without the hardware, the CPU compiles without optional features, and a program for
//! CUDA says on a machine without it what is missing.

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use kiln_tests::{
    hardware,
    job::Job,
    rendered::{HARDWARE, Project, text},
    running::{TRAINING, output},
};
use tempfile::TempDir;

/// The time in which a program says that it has no GPU, and trains two steps on the CPU.
const SOON: Duration = Duration::from_secs(10);

/// A training of two steps.
const SHORT: [&str; 5] = ["--epochs", "1", "--steps-per-epoch", "2", "train"];

/// NVIDIA's driver on a machine whose GPUs are hidden or have failed.
const NO_GPU: &str = "int cuInit(unsigned flags) { return 100; }";

/// One that is too old: it lacks all functions that open a GPU.
const OLD: &str = "int cuInit(unsigned flags) { return 0; }
                   int cuDeviceGetCount(int *count) { *count = 1; return 0; }";

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

/// On a machine with a GPU, CUDA's is hidden.
#[test]
#[ignore = "long"]
fn without_a_gpu_a_program_for_cuda_says_what_is_missing() {
    let (job, _folder) = Job::apart(hardware::project(), &["weights"], "mirrored");
    the_cpu_is_used_with_a_warning(&job);
    a_driver_without_a_gpu_is_told_from_a_missing_one(&job);
    a_driver_that_is_too_old_is_an_error(&job);
}

/// A start of the program; `driver` is the source of a library in place of that of NVIDIA's driver.
fn started(job: &Job, driver: Option<&str>, options: &[&str]) -> (Option<i32>, String) {
    let mut command = job.alone();
    command.args(options).env("CUDA_VISIBLE_DEVICES", "");
    let folder = driver.map(compiled);
    if let Some(folder) = &folder {
        command.env("LD_LIBRARY_PATH", folder.path());
    }
    let start = Instant::now();
    let output = output(&mut command, TRAINING);
    let printed = text(&output);
    assert!(start.elapsed() < SOON, "{:?}: {printed}", start.elapsed());
    (output.status.code(), printed)
}

/// A folder with the library of a driver, by the name that is looked for first.
fn compiled(source: &str) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("driver.c");
    fs::write(&file, source).expect("a source");
    compile(&file, &folder.path().join("libcuda.so"));
    folder
}

fn compile(source: &Path, library: &Path) {
    let mut compiler = Command::new("cc");
    compiler
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([library, source]);
    let status = compiler.status().expect("a C compiler");
    assert!(status.success());
}

#[track_caller]
fn assert_contains(printed: &str, expected: &[&str]) {
    for message in expected {
        assert!(printed.contains(message), "{message}: {printed}");
    }
}

fn the_cpu_is_used_with_a_warning(job: &Job) {
    let output_dir = ["--output-dir", "runs/no-cuda"];
    let (status, printed) = started(job, None, &[&output_dir[..], &SHORT].concat());
    assert_eq!(status, Some(0), "{printed}");
    let missing =
        "this program is built for cuda, wgpu, and no such GPU was found (NVIDIA's driver ";
    assert_contains(&printed, &["warning: ", missing, "`kiln doctor`"]);
    // A checkpoint is read, and predictions are made, on the CPU as well.
    let resumed = [&output_dir[..], &["--resume", "--epochs", "2"], &SHORT[2..]].concat();
    let (status, printed) = started(job, None, &resumed);
    assert_eq!(status, Some(0), "{printed}");
    assert_contains(&printed, &["resumed from"]);
    let (status, printed) = started(job, None, &[&output_dir[..], &["test"]].concat());
    assert_eq!(status, Some(0), "{printed}");
    // Nobody who asks for a GPU trains on the CPU.
    for (options, expected) in [
        (["--devices", "1"], "--devices 1: there is no such device; "),
        (["--cross-device-ops", "nccl"], "several CUDA GPUs"),
    ] {
        let (status, printed) = started(job, None, &options);
        assert_eq!(status, Some(1), "{printed}");
        assert_contains(&printed, &["error: ", expected, missing]);
        assert!(!printed.contains("panicked"), "{printed}");
    }
}

fn a_driver_without_a_gpu_is_told_from_a_missing_one(job: &Job) {
    let options = [&["--output-dir", "runs/no-gpu"], &SHORT[..]].concat();
    let (status, printed) = started(job, Some(NO_GPU), &options);
    assert_eq!(status, Some(0), "{printed}");
    let reason = "(NVIDIA's driver reports CUDA_ERROR_NO_DEVICE)";
    assert_contains(&printed, &["warning: ", reason, "CUDA_VISIBLE_DEVICES"]);
}

fn a_driver_that_is_too_old_is_an_error(job: &Job) {
    let (status, printed) = started(job, Some(OLD), &SHORT);
    assert_eq!(status, Some(1), "{printed}");
    assert!(!printed.contains("panicked"), "{printed}");
    let expected = "the NVIDIA driver is too old for this build, and lacks cu";
    assert_contains(
        &printed,
        &["error: ", expected, "CUDARC_CUDA_VERSION", "`kiln doctor`"],
    );
}
