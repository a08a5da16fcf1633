//! Tuned kernels of a GPU: the fastest of several, which are kept for later starts and shipped to other machines.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use kiln_tests::{
    gpu_measurement, hardware,
    job::{Job, Signal, fails, signal},
    python,
    rendered::text,
    repository,
    running::{Running, TRAINING, succeeds},
    vulkan,
};

use super::{SHORT, on_gpu, training::a_gpu_goes_on_where_the_cpu_stopped, variables};

/// In messages of what was tuned.
const TUNED: &str = "operations tuned";

/// The options of a program with the kernels of the first start: batches of 16 are tuned.
const KEPT: [&str; 2] = ["--kernel-cache", "first"];

/// The kernels of the first start, in the project's folder.
const BUNDLE: &str = "kernels.bundle";

#[test]
#[ignore = "long"]
fn tuned_kernels_are_kept() {
    if !vulkan::is_there() {
        return;
    }
    // Without the project, so that other tests compile meanwhile.
    let (job, _folder) = Job::apart(hardware::tuned_project(), &["weights"], "mirrored");
    what_is_compiled_is_told_and_stopped_at_once(&job);
    kernels_are_kept_and_shipped(&job);
    a_gpu_goes_on_where_the_cpu_stopped(&job, &KEPT);
    a_gpu_is_measured(&job);
    a_full_disk_takes_no_kernels(&job);
    a_folder_that_may_only_be_read_takes_no_kernels(&job);
    what_is_no_bundle_is_refused(&job);
}

/// A training of two steps that keeps kernels in `folder`; returns what it prints.
fn with_kernels(job: &Job, folder: &str, options: &[&str]) -> String {
    let mut command = on_gpu(job, &[]);
    command
        .args(["--kernel-cache", folder, "--output-dir", "runs/kernels"])
        .args(["--replicas", "1", "--epochs", "1", "--steps-per-epoch", "2"]);
    succeeds(command.args(options), TRAINING)
}

/// The first start has all shapes of a training. The driver compiles WGSL at each start, of which CubeCL keeps
/// no records, so only what was tuned can be counted. The unit test
/// `a_second_start_and_another_machine_compile_nothing` of the engine counts compiled kernels, too, where they are kept.
fn kernels_are_kept_and_shipped(job: &Job) {
    let cold = with_kernels(job, "first", &["compile", BUNDLE]);
    let summary = format!("{TUNED}, kept in first");
    assert!(cold.contains(&summary), "{cold}");
    assert!(cold.contains("use it with --kernels"), "{cold}");
    let recorded = records(job, "first");
    assert!(recorded.as_ref().is_none_or(|text| text.contains(TUNED)));
    let warm = with_kernels(job, "first", &["train"]);
    assert!(!warm.contains(TUNED), "{warm}");
    assert_eq!(records(job, "first"), recorded, "tuned by a second start");
    let shipped = with_kernels(job, "second", &["--kernels", BUNDLE, "train"]);
    assert!(!shipped.contains(TUNED), "{shipped}");
    let recorded = records(job, "second");
    let none = |text: &String| text == "no records in second\n";
    assert!(recorded.as_ref().is_none_or(none), "{recorded:?}");
    assert!(job.folder.join("second/default.db").is_file());
}

/// What CubeCL recorded beside the kernels in `folder`: those compiled and operations tuned by all starts. `None`
/// without Python.
fn records(job: &Job, folder: &str) -> Option<String> {
    let mut script = Command::new(python::interpreter()?);
    let path = repository().join("tests/gpu/records.py");
    script.arg("-B").arg(path).arg(folder);
    Some(succeeds(script.current_dir(&job.folder), TRAINING))
}

fn a_gpu_is_measured(job: &Job) {
    let variables = variables(&job.folder);
    let borrowed: Vec<_> = (variables.iter())
        .map(|(name, value)| (*name, value.as_str()))
        .collect();
    gpu_measurement::is_tried(job, &job.folder.join(BUNDLE), &borrowed);
}

fn what_is_no_bundle_is_refused(job: &Job) {
    fs::write(job.folder.join("file"), "text").unwrap();
    fails(
        &mut on_gpu(job, &[&KEPT[..], &["--kernels", "file", "train"]].concat()),
        &["cannot read the kernels in file (--kernels)"],
    );
    // Before anything is tuned.
    fails(
        &mut on_gpu(job, &[&KEPT[..], &["compile", "file"]].concat()),
        &["cannot write the kernels to file", "not a cubecl bundle"],
    );
    let kept = fs::read_to_string(job.folder.join("file"));
    assert_eq!(kept.unwrap(), "text", "unchanged");
    fails(
        job.alone().args(["compile", "cpu.bundle"]),
        &["`compile` is for GPUs"],
    );
}

/// Files can have no more than the 1,024,000 bytes of the shell's limit, as on a disk that is full. Training goes on
/// without a bundle that does not fit, too.
fn a_full_disk_takes_no_kernels(job: &Job) {
    const LIMITED: &str = "trap '' XFSZ; ulimit -f 2000; exec \"$@\"";
    write_other_bundle(job, "other.bundle", ["llvmpipe (", "LLVMPIPE ("]);
    trains_with_warnings(
        &mut through_shell(job, LIMITED, "first", "other.bundle", "runs/full"),
        &[
            "new kernels cannot be kept in first/default.db (File too large",
            "other.bundle (--kernels) is not used, and kernels are compiled here: it is for LLVMPIPE (",
        ],
    );
    assert!(job.folder.join("runs/full/checkpoints").is_dir());
}

/// Those that are there are used, and a bundle of another version is not. Root may write to any folder, unless it
/// gives up its capabilities.
fn a_folder_that_may_only_be_read_takes_no_kernels(job: &Job) {
    const OTHER: &str = "other-version.bundle";
    const WITHOUT_CAPABILITIES: &str = "test ! -w second || set -- setpriv --bounding-set=-all --inh-caps=-all \"$@\"; \
                                        exec \"$@\"";
    write_other_bundle(
        job,
        OTHER,
        ["\"cubecl_version\": \"0.", "\"cubecl_version\": \"9."],
    );
    let set_mode = |mode| {
        let mut command = Command::new("chmod");
        command.args(["-R", mode, "second"]);
        succeeds(command.current_dir(&job.folder), TRAINING);
    };
    set_mode("a-w");
    let printed = trains_with_warnings(
        &mut through_shell(job, WITHOUT_CAPABILITIES, "second", OTHER, "runs/read-only"),
        &[
            "new kernels cannot be kept in second/default.db (Permission denied",
            "other-version.bundle (--kernels) is not used, and kernels are compiled here: it is of CubeCL 9.",
        ],
    );
    set_mode("u+w");
    assert!(!printed.contains(TUNED), "{printed}");
    assert!(job.folder.join("runs/read-only/checkpoints").is_dir());
}

/// A short training that a script of the shell starts, with kernels of a folder and a bundle.
fn through_shell(job: &Job, script: &str, cache: &str, bundle: &str, runs: &str) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .arg(job.programs.join("program"))
        .args(["--kernel-cache", cache, "--output-dir", runs])
        .args(["--kernels", bundle])
        .args(SHORT)
        .envs(variables(&job.folder))
        .current_dir(&job.folder);
    command
}

/// Runs a training to its end; returns its output, which has these warnings.
fn trains_with_warnings(command: &mut Command, warnings: &[&str]) -> String {
    let printed = succeeds(command, TRAINING);
    for warning in warnings {
        let warning = format!("warning: {warning}");
        assert!(printed.contains(&warning), "{warning}: {printed}");
    }
    printed
}

/// Writes a bundle of other origin: that of the first start with other text of equal length.
fn write_other_bundle(job: &Job, name: &str, [text, other]: [&str; 2]) {
    assert_eq!(text.len(), other.len());
    let mut bytes = fs::read(job.folder.join(BUNDLE)).unwrap();
    let mut changed = 0;
    for at in 0..bytes.len() - text.len() {
        if bytes[at..].starts_with(text.as_bytes()) {
            bytes[at..at + text.len()].copy_from_slice(other.as_bytes());
            changed += 1;
        }
    }
    assert!(changed > 0, "no {text} in the bundle");
    fs::write(job.folder.join(name), bytes).unwrap();
}

/// All kernels are tuned anew, as the folder cannot keep any.
fn what_is_compiled_is_told_and_stopped_at_once(job: &Job) {
    const COMPILING: &str = "compiling kernels for llvmpipe";
    fs::write(job.folder.join("no-folder"), "text").unwrap();
    let mut command = on_gpu(job, &[]);
    let options = ["--output-dir", "runs/stopped"];
    command
        .args(options)
        .args(["--kernel-cache", "no-folder/in"]);
    let started = Instant::now();
    let running = Running::start(&mut command).wait_until_printed(COMPILING);
    let until_printed = started.elapsed();
    let signalled = Instant::now();
    signal(Signal::INT, running.id());
    let output = running.end(TRAINING);
    assert!(signalled.elapsed() < Duration::from_secs(5));
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(130), "{printed}");
    // Nothing was trained, so that there is nothing to save.
    assert!(printed.contains("stopped before the first step"));
    let warning = "kernels cannot be kept in no-folder/in";
    assert!(printed.contains(warning), "{printed}");
    let first = printed.lines().find(|line| line.starts_with(COMPILING));
    let first = first.unwrap_or_else(|| panic!("{printed}"));
    assert!(first.contains("(first run on this machine)"), "{first}");
    // Of the strategy's creation, which is in the start.
    let seconds = first
        .strip_suffix(" s")
        .and_then(|text| text.rsplit(' ').next());
    let seconds: u64 = seconds.and_then(|text| text.parse().ok()).expect(first);
    let rounding = Duration::from_secs(1);
    assert!(
        Duration::from_secs(seconds) <= until_printed + rounding,
        "{until_printed:?}: {first}"
    );
}
