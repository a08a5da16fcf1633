//! Training on a GPU, with kernels that are not tuned, as projects are by default.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use kiln_tests::{
    hardware,
    job::{Job, assert_near, fails},
    mpi, parallel,
    running::{BUILD, TRAINING, succeeds},
    runs::log_of,
    vulkan,
};

use super::{SHORT, on_gpu, variables};
use crate::test_programs;

/// The option of test programs on a GPU, which takes work of one thread only, while others spin.
const ONE_AT_A_TIME: &str = "--test-threads=1";

/// The tolerance for weights relative to those of the CPU, which adds in another order.
const TOLERANCE: f64 = 1e-4;

#[test]
#[ignore = "long"]
fn a_project_trains_on_a_gpu() {
    if !vulkan::is_there() {
        return;
    }
    let project = hardware::project();
    let built = |tests: &[&str]| {
        let printed = project.cargo(&[&["test", "--no-run"], tests].concat());
        test_programs(&project, &printed)
    };
    let (unit, contract) = (
        built(&["--workspace", "--lib"]),
        built(&["--test", "contract"]),
    );
    let sources = project.path();
    // Without the project, so that other tests compile meanwhile.
    let (job, _folder) = Job::apart(project, &["weights"], "mirrored");
    let tests = |program: &Path, names: &[&str]| {
        let mut tests = Command::new(program);
        tests.args(names).arg(ONE_AT_A_TIME).current_dir(&sources);
        succeeds(tests.envs(variables(&job.folder)), BUILD)
    };
    // Two programs and no more: a thread that waits for a GPU spins, and takes a core from those that compute.
    let beside: [&(dyn Fn() + Sync); 2] = [&|| unit_tests_pass(&job, &unit, &tests), &|| {
        contract_tests_pass(&contract[0], &tests);
        kernels_are_not_tuned_unless_asked_for(&job);
        a_gpu_goes_on_where_the_cpu_stopped(&job, &[]);
        a_gpu_is_not_waited_for_at_each_step(&job);
        a_gpu_in_software_is_used_where_it_is_asked_for(&job);
        a_gpu_is_for_one_process_of_a_job(&job);
    }];
    parallel::for_each(&beside, |test| test());
}

/// A run of the tests of a program that have one of these names, or of all, on the GPU; returns what they print.
type Tests<'a> = &'a (dyn Fn(&Path, &[&str]) -> String + Sync);

/// The unit tests of project and engine. They keep kernels where programs do by default: in the cache folder of the
/// user, in a file of this host.
fn unit_tests_pass(job: &Job, programs: &[PathBuf], tests: Tests) {
    assert_eq!(programs.len(), 3, "{programs:?}");
    for program in programs {
        tests(program, &[]);
    }
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let kept = format!("cache/cubecl/{}.db", host.trim());
    assert!(job.folder.join(&kept).is_file(), "no {kept}");
}

/// The contract of training: replicas that share a GPU give the results of one.
fn contract_tests_pass(program: &Path, tests: Tests) {
    let printed = tests(program, &["strategy::", "train::"]);
    let passed = "replicas_train_to_the_weights_of_one ... ok";
    assert!(printed.contains(passed), "{printed}");
}

/// The first step says so, and `compile` refuses, as the driver of wgpu compiles at each start.
fn kernels_are_not_tuned_unless_asked_for(job: &Job) {
    let options = [
        &["--kernel-cache", "untuned", "--output-dir", "runs/untuned"],
        &SHORT[..],
    ];
    let printed = succeeds(&mut on_gpu(job, &options.concat()), TRAINING);
    let told =
        "kernels are not tuned for this GPU; for long trainings, build with `--features autotune`";
    assert!(printed.contains(told), "{printed}");
    assert!(!printed.contains("tuned,"), "{printed}");
    fails(
        &mut on_gpu(job, &["compile", "untuned.bundle"]),
        &[
            "`compile` has nothing to write: the driver of llvmpipe",
            "build it with the feature `autotune`",
        ],
    );
    assert!(!job.folder.join("untuned.bundle").exists());
}

/// From the same checkpoint of the CPU, both train the same steps, with one and with two replicas, each of the GPU with
/// batches of 16. `options` are those of a GPU.
pub fn a_gpu_goes_on_where_the_cpu_stopped(job: &Job, options: &[&str]) {
    for replicas in [1, 2] {
        let global = 16 * replicas;
        let [start, cpu, gpu] =
            ["start", "cpu", "gpu"].map(|side| format!("runs/{side}-{replicas}"));
        train(&mut job.alone(), [1, global], "1", &start);
        continue_from(job, &start, &mut job.alone(), [1, global], &cpu);
        let printed = continue_from(job, &start, &mut on_gpu(job, options), [replicas, 16], &gpu);
        let shares = printed.contains("2 replicas or stages share the available GPUs");
        assert_eq!(shares, replicas == 2, "{printed}");
        let what = format!("weights of {replicas} replicas on a GPU");
        assert_near(&job.weights(&gpu), &job.weights(&cpu), TOLERANCE, &what);
        let what = format!("metrics of {replicas} replicas on a GPU");
        assert_near(&job.metrics(&gpu), &job.metrics(&cpu), TOLERANCE, &what);
    }
    let host = &mut on_gpu(job, &[&["--cross-device-ops", "host"], options].concat());
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
        .envs(variables(&job.folder))
        .current_dir(&job.folder);
    let shared = "2 processes on this host would share a GPU: start at most 1 here";
    fails(&mut two, &[shared, "--replicas N", "NVIDIA's MPS"]);
}
