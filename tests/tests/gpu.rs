//! A GPU project on a software GPU. Except for the driver, it behaves like a GPU: kernels are
//! compiled for it, tensors are in its memory, and reads wait for it.

use std::{
    fs,
    process::Command,
    time::{Duration, Instant},
};

use kiln_tests::{
    gpu_measurement, hardware,
    job::{Job, Signal, assert_near, fails, signal},
    mpi, parallel, python,
    rendered::{Project, text},
    repository,
    running::{Running, TRAINING, succeeds},
    runs::log_of,
    vulkan,
};

/// The tolerance for weights relative to those of the CPU, which adds in another order.
const TOLERANCE: f64 = 1e-4;

/// Tuning of each operation with few kernels, as each takes seconds to compile for a GPU in software.
const FEW_CANDIDATES: (&str, &str) = ("CUBECL_AUTOTUNE_LEVEL", "minimal");

/// The program is built for CUDA, too, which comes first.
const NO_CUDA: (&str, &str) = ("CUDA_VISIBLE_DEVICES", "");

/// Programs and tests on the GPU in software.
const GPU: [(&str, &str); 3] = [vulkan::WANTED, FEW_CANDIDATES, NO_CUDA];

/// The cache folder of the user.
const CACHE: &str = "XDG_CACHE_HOME";

/// The shader cache of Mesa, the driver: a folder that all programs and tests share.
const COMPILED: &str = "MESA_SHADER_CACHE_DIR";

/// In messages of what was tuned.
const TUNED: &str = "operations tuned";

/// A training of two steps on one replica.
const SHORT: [&str; 7] = [
    "--replicas",
    "1",
    "--epochs",
    "1",
    "--steps-per-epoch",
    "2",
    "train",
];

/// The kernels of the first start, in the project's folder.
const BUNDLE: &str = "kernels.bundle";

#[test]
#[ignore = "long"]
fn a_project_trains_on_a_gpu() {
    if !vulkan::is_there() {
        return;
    }
    let project = hardware::project();
    let job = Job {
        programs: project.build_with(&["weights"]),
        folder: project.path(),
        strategy: "mirrored",
    };
    // Two programs and no more: a thread that waits for a GPU spins, and takes a core from those that compute.
    let beside: [&(dyn Fn() + Sync); 2] = [&|| unit_tests_pass(&project), &|| {
        kernels_are_kept_and_shipped(&job);
        contract_tests_pass(&project, &job);
        programs_with_kernels_pass(&job);
    }];
    parallel::for_each(&beside, |test| test());
    // Alone, as it is about seconds.
    what_is_compiled_is_told_and_stopped_at_once(&job);
}

/// Programs that use the kernels of the first start, one after another.
fn programs_with_kernels_pass(job: &Job) {
    a_gpu_goes_on_where_the_cpu_stopped(job);
    a_gpu_is_not_waited_for_at_each_step(job);
    a_gpu_is_measured(job);
    a_full_disk_takes_no_kernels(job);
    a_folder_that_may_only_be_read_takes_no_kernels(job);
    what_is_no_bundle_is_refused(job);
    a_gpu_in_software_is_used_where_it_is_asked_for(job);
    a_gpu_is_for_one_process_of_a_job(job);
}

/// The unit tests of project and engine. They keep kernels where programs do by default: in the cache folder of the
/// user, in a file of this host.
fn unit_tests_pass(project: &Project) {
    tests_pass(project, &["test", "--workspace", "--lib"], "cache");
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let kept = format!("cache/cubecl/{}.db", host.trim());
    assert!(project.path().join(&kept).is_file(), "no {kept}");
}

/// The contract of training: replicas that share a GPU give the results of one. The cache folder of the user has the
/// kernels of a bundle, so that only those for batches of other sizes are tuned.
fn contract_tests_pass(project: &Project, job: &Job) {
    let cache = "cache-with-bundle";
    let mut training = gpu_alone(job);
    training.args(["--kernels", BUNDLE, "--output-dir", "runs/bundle"]);
    training.args(SHORT).env(CACHE, job.folder.join(cache));
    let printed = succeeds(&mut training, TRAINING);
    assert!(!printed.contains(TUNED), "{printed}");
    let contract = ["test", "--test", "contract", "--", "strategy::", "train::"];
    let printed = tests_pass(project, &contract, cache);
    let passed = "replicas_train_to_the_weights_of_one ... ok";
    assert!(printed.contains(passed), "{printed}");
}

/// Runs tests on the GPU, with a cache folder of the user in the project's folder; returns what they print.
fn tests_pass(project: &Project, tests: &[&str], cache: &str) -> String {
    let cache = project.path().join(cache);
    let compiled = project.path().join("mesa");
    let folders = [(CACHE, &cache), (COMPILED, &compiled)];
    let folders = folders.map(|(name, folder)| (name, folder.to_str().unwrap()));
    project.cargo_with(tests, &[&GPU[..], &folders].concat())
}

/// The program on the GPU, without options.
fn gpu_alone(job: &Job) -> Command {
    let mut command = job.alone();
    command.envs(GPU).env(COMPILED, job.folder.join("mesa"));
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

fn what_is_no_bundle_is_refused(job: &Job) {
    fs::write(job.folder.join("file"), "text").unwrap();
    fails(
        &mut on_gpu(job, &["--kernels", "file", "train"]),
        &["cannot read the kernels in file (--kernels)"],
    );
    // Before anything is tuned.
    fails(
        &mut on_gpu(job, &["compile", "file"]),
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
        .envs(GPU)
        .env(COMPILED, job.folder.join("mesa"))
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

/// Losses, norms and the checks of gradients are read together, at each 5th step. What is read once, as for the
/// first step, the metrics and the checkpoint, is in both trainings.
fn a_gpu_is_not_waited_for_at_each_step(job: &Job) {
    let [few, many] = [10, 35].map(|steps| reads(job, steps));
    assert_eq!(many - few, (35 - 10) / 5, "{many} and {few} reads");
    the_memory_of_a_gpu_is_in_the_log(job);
}

fn the_memory_of_a_gpu_is_in_the_log(job: &Job) {
    let steps = log_of(&job.folder.join("runs/reads-35/steps.jsonl"));
    assert_eq!(steps.len(), 35 / 5);
    for step in steps {
        let bytes = |name: &str| step[name].as_u64().unwrap_or_else(|| panic!("{step}"));
        let in_use = bytes("device_memory_in_use");
        assert!(in_use > 0 && bytes("device_memory") >= in_use, "{step}");
    }
}

/// The number of reads from the GPU in a training of an epoch of `steps` steps.
fn reads(job: &Job, steps: usize) -> usize {
    let [output_dir, steps] = [format!("runs/reads-{steps}"), steps.to_string()];
    let options = ["--replicas", "1", "--epochs", "1"];
    let mut command = on_gpu(job, &options);
    command.args(["--log-every", "5", "--steps-per-epoch", &steps]);
    command.args(["--profile", "--output-dir", &output_dir, "train"]);
    let printed = succeeds(&mut command, TRAINING);
    let ending = format!(" reads from GPUs in {steps} steps");
    let mut lines = printed.lines();
    let reads = lines.find_map(|line| line.split_once(&ending));
    let reads = reads.map(|(reads, _)| reads.trim().parse().unwrap());
    reads.unwrap_or_else(|| panic!("{printed}"))
}

/// All kernels are tuned anew, as the folder cannot keep any.
fn what_is_compiled_is_told_and_stopped_at_once(job: &Job) {
    const COMPILING: &str = "compiling kernels for llvmpipe";
    fs::write(job.folder.join("no-folder"), "text").unwrap();
    let mut command = gpu_alone(job);
    let options = ["--output-dir", "runs/stopped"];
    command
        .args(options)
        .args(["--kernel-cache", "no-folder/in"]);
    let running = Running::start(&mut command).wait_until_printed(COMPILING);
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
    // Of the strategy's creation, which is the start but for its options.
    let seconds = first
        .strip_suffix(" s")
        .and_then(|text| text.rsplit(' ').next());
    let seconds: u32 = seconds.and_then(|text| text.parse().ok()).expect(first);
    assert!(seconds <= 2, "{first}");
}

fn a_gpu_is_measured(job: &Job) {
    let compiled = job.folder.join("mesa");
    let variables = [&GPU[..], &[(COMPILED, compiled.to_str().unwrap())]].concat();
    gpu_measurement::is_tried(job, &job.folder.join(BUNDLE), &variables);
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

/// Processes on one GPU would take turns.
fn a_gpu_is_for_one_process_of_a_job(job: &Job) {
    if !mpi::is_there() {
        return;
    }
    let mut two = mpi::run(2);
    two.arg(job.programs.join("program"))
        .args(["--strategy", "multi-worker-mirrored"])
        .args(["--output-dir", "runs/two", "train"])
        .envs(GPU)
        .current_dir(&job.folder);
    let shared = "2 processes on this host would share a GPU: start at most 1 here";
    fails(&mut two, &[shared, "--replicas N", "NVIDIA's MPS"]);
}

/// From the same checkpoint of the CPU, both train the same steps, with one and with two replicas. Each of the GPU has
/// batches of 16, which are tuned.
fn a_gpu_goes_on_where_the_cpu_stopped(job: &Job) {
    for replicas in [1, 2] {
        let global = 16 * replicas;
        let [start, cpu, gpu] =
            ["start", "cpu", "gpu"].map(|side| format!("runs/{side}-{replicas}"));
        train(&mut job.alone(), [1, global], "1", &start);
        continue_from(job, &start, &mut job.alone(), [1, global], &cpu);
        let printed = continue_from(job, &start, &mut on_gpu(job, &[]), [replicas, 16], &gpu);
        let shares = printed.contains("2 replicas or stages share the available GPUs");
        assert_eq!(shares, replicas == 2, "{printed}");
        let what = format!("weights of {replicas} replicas on a GPU");
        assert_near(&job.weights(&gpu), &job.weights(&cpu), TOLERANCE, &what);
        let what = format!("metrics of {replicas} replicas on a GPU");
        assert_near(&job.metrics(&gpu), &job.metrics(&cpu), TOLERANCE, &what);
    }
    let host = &mut on_gpu(job, &["--cross-device-ops", "host"]);
    continue_from(job, "runs/start-2", host, [2, 16], "runs/again");
    let parameters = |runs| job.manifest(runs)["parameters"].clone();
    assert_eq!(
        parameters("runs/again"),
        parameters("runs/gpu-2"),
        "bit for bit"
    );
}

/// Trains from a copy of the output folder `start` until the second epoch ends; returns what is printed.
fn continue_from(
    job: &Job,
    start: &str,
    command: &mut Command,
    replicas_and_batch: [usize; 2],
    runs: &str,
) -> String {
    let mut copy = Command::new("cp");
    copy.args(["-r", start, runs]).current_dir(&job.folder);
    succeeds(&mut copy, TRAINING);
    let printed = train(command, replicas_and_batch, "2", runs);
    assert!(printed.contains("resumed from"), "{printed}");
    printed
}

/// Trains epochs of five steps.
fn train(command: &mut Command, [replicas, batch]: [usize; 2], epochs: &str, runs: &str) -> String {
    let (replicas, batch) = (replicas.to_string(), batch.to_string());
    command.args(["--replicas", &replicas, "--batch-size", &batch]);
    command.args(["--steps-per-epoch", "5", "--epochs", epochs]);
    command.args(["--output-dir", runs, "--resume", "train"]);
    succeeds(command, TRAINING)
}
