//! A GPU project on a software GPU. Except for the driver, it behaves like a GPU: kernels are
//! compiled for it, tensors are in its memory, and reads wait for it.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use kiln_tests::{
    hardware,
    job::{Job, Signal, assert_near, fails, signal},
    parallel,
    rendered::{Project, text},
    running::{Running, TRAINING, output},
    runs::log_of,
    vulkan,
};

/// The tolerance for weights relative to those of the CPU, which adds in another order.
const TOLERANCE: f64 = 1e-4;

/// Tuning of each operation with few kernels, as each takes seconds to compile for a GPU in software.
const FEW_CANDIDATES: (&str, &str) = ("CUBECL_AUTOTUNE_LEVEL", "minimal");

/// The program is built for CUDA, too, which comes first.
const NO_CUDA: (&str, &str) = ("CUDA_VISIBLE_DEVICES", "");

#[test]
#[ignore = "long"]
fn a_project_trains_on_a_gpu() {
    if !vulkan::is_there() {
        return;
    }
    let project = hardware::project();
    // The folder of kernels of tests without options.
    let cache = project.path().join("cache");
    let gpu = [
        vulkan::WANTED,
        FEW_CANDIDATES,
        NO_CUDA,
        ("XDG_CACHE_HOME", cache.to_str().unwrap()),
    ];
    tests_pass(&project, &gpu);
    let job = Job {
        programs: project.build_in_debug(),
        folder: project.path(),
        strategy: "mirrored",
    };
    a_gpu_in_software_is_used_where_it_is_asked_for(&job);
    kernels_are_kept_and_shipped(&job);
    kernels_that_cannot_be_kept_or_read_are_noticed(&job);
    a_gpu_is_not_waited_for_at_each_step(&job);
    the_memory_of_a_gpu_is_in_the_log(&job);
    a_signal_while_kernels_are_compiled_ends_at_once(&job);
    a_gpu_goes_on_where_the_cpu_stopped(&job);
}

/// The unit tests of project and engine, and the contract of training: replicas that share a GPU give the results of
/// one.
fn tests_pass(project: &Project, gpu: &[(&str, &str)]) {
    let units = ["test", "--workspace", "--lib"];
    let contract = ["test", "--test", "contract", "--", "strategy::", "train::"];
    // Side by side, as each leaves a core idle for a third of its time.
    parallel::for_each(&[&units[..], &contract], |test| {
        let printed = project.cargo_with(test, gpu);
        let passed = "replicas_train_to_the_weights_of_one ... ok";
        assert!(*test == units || printed.contains(passed), "{printed}");
    });
}

/// The program on the GPU, without options.
fn gpu_alone(job: &Job) -> Command {
    let mut command = job.alone();
    command.envs([vulkan::WANTED, FEW_CANDIDATES, NO_CUDA]);
    command
}

/// The program on the GPU, with the kernels of the first start: batches of 16 are tuned.
fn on_gpu(job: &Job, options: &[&str]) -> Command {
    let mut command = gpu_alone(job);
    command.args(["--kernel-cache", "first"]).args(options);
    command
}

/// A training of two steps that keeps kernels in `folder`; returns what it prints.
fn with_kernels(job: &Job, folder: &str, options: &[&str]) -> String {
    let mut command = gpu_alone(job);
    command
        .args(["--kernel-cache", folder, "--output-dir", "runs/kernels"])
        .args(["--replicas", "1", "--epochs", "1", "--steps-per-epoch", "2"]);
    let output = output(command.args(options), TRAINING);
    assert!(output.status.success(), "{}", text(&output));
    text(&output)
}

/// The driver compiles WGSL at each start, and only what was tuned can be counted: the unit test
/// `a_second_start_and_another_machine_compile_nothing` of the engine counts compiled kernels, too.
fn kernels_are_kept_and_shipped(job: &Job) {
    const COMPILING: &str = "compiling kernels for llvmpipe";
    const TUNED: &str = "operations tuned";
    let cold = with_kernels(job, "first", &["train"]);
    let first = cold.lines().find(|line| line.starts_with(COMPILING));
    let first = first.unwrap_or_else(|| panic!("{cold}"));
    assert!(first.contains("(first run on this machine)"), "{first}");
    // Of the strategy's creation, which is the start but for its options.
    let seconds = first
        .strip_suffix(" s")
        .and_then(|text| text.rsplit(' ').next());
    let seconds: u32 = seconds.and_then(|text| text.parse().ok()).expect(first);
    assert!(seconds <= 2, "{first}");
    let summary = format!("{TUNED}, kept in first");
    assert!(cold.contains(&summary), "{cold}");
    let warm = with_kernels(job, "first", &["train"]);
    assert!(!warm.contains(TUNED), "{warm}");
    let compiled = with_kernels(job, "first", &["compile", "kernels.bundle"]);
    assert!(compiled.contains("use it with --kernels"), "{compiled}");
    let elsewhere = ["--kernels", "kernels.bundle", "train"];
    let shipped = with_kernels(job, "second", &elsewhere);
    assert!(!shipped.contains(TUNED), "{shipped}");
    assert!(job.folder.join("second/default.db").is_file());
}

fn kernels_that_cannot_be_kept_or_read_are_noticed(job: &Job) {
    fs::write(job.folder.join("file"), "text").unwrap();
    fails(
        &mut on_gpu(job, &["--kernels", "file", "train"]),
        &["cannot read the kernels in file (--kernels)"],
    );
    fails(
        &mut on_gpu(job, &["compile", "file"]),
        &["cannot write the kernels to file", "not a cubecl bundle"],
    );
    let kept = fs::read_to_string(job.folder.join("file"));
    assert_eq!(kept.unwrap(), "text", "unchanged");
    let trained = with_kernels(job, "file/in", &["--kernels", "kernels.bundle", "train"]);
    assert!(
        trained.contains("kernels cannot be kept in file/in"),
        "{trained}"
    );
    fails(
        job.alone().args(["compile", "cpu.bundle"]),
        &["`compile` is for GPUs"],
    );
}

/// Losses, norms and the checks of gradients are read together, at each 20th step. What is read once, as
/// for the first step, the metrics and the checkpoint, is in both trainings.
fn a_gpu_is_not_waited_for_at_each_step(job: &Job) {
    let [few, many] = [40, 140].map(|steps| reads(job, steps));
    assert_eq!(many - few, (140 - 40) / 20, "{many} and {few} reads");
}

fn the_memory_of_a_gpu_is_in_the_log(job: &Job) {
    let steps = log_of(&job.folder.join("runs/reads-140/steps.jsonl"));
    assert_eq!(steps.len(), 140 / 20);
    for step in steps {
        let bytes = |name: &str| step[name].as_u64().unwrap_or_else(|| panic!("{step}"));
        let in_use = bytes("device_memory_in_use");
        assert!(in_use > 0 && bytes("device_memory") >= in_use, "{step}");
    }
}

/// The number of reads from the GPU in a training of an epoch of `steps` steps.
fn reads(job: &Job, steps: usize) -> usize {
    let [output_dir, steps] = [format!("runs/reads-{steps}"), steps.to_string()];
    let options = ["--replicas", "1", "--batch-size", "8", "--epochs", "1"];
    let mut command = on_gpu(job, &options);
    command.args(["--log-every", "20", "--steps-per-epoch", &steps]);
    command.args(["--profile", "--output-dir", &output_dir, "train"]);
    let output = output(&mut command, TRAINING);
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    let ending = format!(" reads from GPUs in {steps} steps");
    let mut lines = printed.lines();
    let reads = lines.find_map(|line| line.split_once(&ending));
    let reads = reads.map(|(reads, _)| reads.trim().parse().unwrap());
    reads.unwrap_or_else(|| panic!("{printed}"))
}

/// Nothing was trained, so that there is nothing to save.
fn a_signal_while_kernels_are_compiled_ends_at_once(job: &Job) {
    let options = ["--output-dir", "runs/stopped", "--kernel-cache", "third"];
    let mut command = gpu_alone(job);
    command.args(options);
    let started = job.folder.join("runs/stopped/run.json");
    let running = Running::start(&mut command).wait_until("a training", || started.is_file());
    let signalled = Instant::now();
    signal(Signal::INT, running.id());
    let output = running.end(TRAINING);
    assert!(signalled.elapsed() < Duration::from_secs(5));
    assert_eq!(output.status.code(), Some(130), "{}", text(&output));
    assert!(text(&output).contains("stopped before the first step"));
}

/// A software GPU is slower than the CPU, so it must not be used by default.
fn a_gpu_in_software_is_used_where_it_is_asked_for(job: &Job) {
    let options = ["--devices", "1", "--epochs", "1"];
    fails(
        job.alone().args(options),
        &["no such GPU was found", "--devices 1"],
    );
    let refused = fails(
        &mut on_gpu(job, &options),
        &["devices are counted from 0 to 0"],
    );
    assert!(!refused.contains("no such GPU was found"), "{refused}");
    let nccl = ["--cross-device-ops", "nccl"];
    fails(&mut on_gpu(job, &nccl), &["several CUDA GPUs"]);
}

/// From the same checkpoint of the CPU, both train the same steps, with one and with two replicas.
fn a_gpu_goes_on_where_the_cpu_stopped(job: &Job) {
    let train = |command: &mut Command, replicas: usize, epochs: &str, runs: &str| {
        let (count, batch) = (replicas.to_string(), (16 / replicas).to_string());
        command.args([
            "--replicas",
            &count,
            "--batch-size",
            &batch,
            "--steps-per-epoch",
            "5",
        ]);
        command.args([
            "--epochs",
            epochs,
            "--output-dir",
            runs,
            "--resume",
            "train",
        ]);
        let output = output(command, TRAINING);
        assert!(output.status.success(), "{}", text(&output));
        text(&output)
    };
    train(&mut job.alone(), 1, "1", "runs/start");
    let continue_on = |command: &mut Command, replicas: usize, runs: &str| {
        let copied = Command::new("cp")
            .args(["-r", "runs/start", runs])
            .current_dir(&job.folder)
            .status();
        assert!(copied.unwrap().success());
        let printed = train(command, replicas, "2", runs);
        assert!(printed.contains("resumed from"), "{printed}");
        printed
    };
    continue_on(&mut job.alone(), 1, "runs/cpu");
    let expected = (job.weights("runs/cpu"), job.metrics("runs/cpu"));
    for replicas in [1, 2] {
        let runs = format!("runs/gpu-{replicas}");
        let printed = continue_on(&mut on_gpu(job, &[]), replicas, &runs);
        let shares = printed.contains("2 replicas or stages share the available GPUs");
        assert_eq!(shares, replicas == 2, "{printed}");
        let what = format!("weights of {replicas} replicas on a GPU");
        assert_near(&job.weights(&runs), &expected.0, TOLERANCE, &what);
        let what = format!("metrics of {replicas} replicas on a GPU");
        assert_near(&job.metrics(&runs), &expected.1, TOLERANCE, &what);
    }
    let host = ["--cross-device-ops", "host"];
    continue_on(&mut on_gpu(job, &host), 2, "runs/again");
    let parameters = |runs| job.manifest(runs)["parameters"].clone();
    assert_eq!(
        parameters("runs/again"),
        parameters("runs/gpu-2"),
        "bit for bit"
    );
}
