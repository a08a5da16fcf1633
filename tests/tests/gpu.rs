//! A GPU project on a software GPU. Except for the driver, it behaves like a GPU: kernels are
//! compiled for it, tensors are in its memory, and reads wait for it.

use std::process::Command;

use kiln_tests::{
    job::{Job, assert_near, fails},
    rendered::{Project, text},
    running::{TRAINING, output},
    vulkan,
};

/// The tolerance for weights relative to those of the CPU, which adds in another order.
const TOLERANCE: f64 = 1e-4;

/// Kernels and drivers, and the crates of Burn that are built once more with them: optimising these takes
/// longer than the trainings here.
const KERNELS: [&str; 21] = [
    "profile.dev.package.burn-autodiff.opt-level=0",
    "profile.dev.package.burn-core.opt-level=0",
    "profile.dev.package.burn-cubecl-fusion.opt-level=0",
    "profile.dev.package.burn-cubecl.opt-level=0",
    "profile.dev.package.burn-dispatch.opt-level=0",
    "profile.dev.package.burn-flex.opt-level=0",
    "profile.dev.package.burn-fusion.opt-level=0",
    "profile.dev.package.burn-nn.opt-level=0",
    "profile.dev.package.burn-optim.opt-level=0",
    "profile.dev.package.burn-tensor.opt-level=0",
    "profile.dev.package.cubek-attention.opt-level=0",
    "profile.dev.package.cubek-convolution.opt-level=0",
    "profile.dev.package.cubek-matmul.opt-level=0",
    "profile.dev.package.cubek-pool.opt-level=0",
    "profile.dev.package.cubek-quant.opt-level=0",
    "profile.dev.package.cubek-reduce.opt-level=0",
    "profile.dev.package.cubek-std.opt-level=0",
    "profile.dev.package.cubek-tile.opt-level=0",
    "profile.dev.package.kiln-engine.opt-level=1",
    "profile.dev.package.wgpu-core.opt-level=0",
    "profile.dev.package.wgpu-hal.opt-level=0",
];

#[test]
#[ignore = "long"]
fn a_project_trains_on_a_gpu() {
    if !vulkan::is_there() {
        return;
    }
    let project = Project::with_answers_and_engine(&[("hardware", "wgpu")]);
    let project = project.with_settings(&KERNELS);
    let gpu = [vulkan::WANTED];
    project.cargo_with(&["test", "--workspace", "--lib"], &gpu);
    // The contract of training: replicas that share a GPU give the results of one.
    let contracts = ["strategy::", "train::"];
    let test = ["test", "--test", "contract", "--"];
    let printed = project.cargo_with(&[&test[..], &contracts].concat(), &gpu);
    assert!(
        printed.contains("replicas_train_to_the_weights_of_one ... ok"),
        "{printed}"
    );
    let job = Job {
        programs: project.build_in_debug(),
        folder: project.path(),
        strategy: "mirrored",
    };
    a_gpu_in_software_is_used_where_it_is_asked_for(&job);
    a_gpu_goes_on_where_the_cpu_stopped(&job);
}

fn on_gpu(job: &Job, options: &[&str]) -> Command {
    let mut command = job.alone();
    command
        .env(vulkan::WANTED.0, vulkan::WANTED.1)
        .args(options);
    command
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
        let (count, batch) = (replicas.to_string(), (48 / replicas).to_string());
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
        let shares = printed.contains("2 replicas or stages take turns");
        assert_eq!(shares, replicas == 2, "{printed}");
        let what = format!("weights of {replicas} replicas on a GPU");
        assert_near(&job.weights(&runs), &expected.0, TOLERANCE, &what);
        let what = format!("metrics of {replicas} replicas on a GPU");
        assert_near(&job.metrics(&runs), &expected.1, TOLERANCE, &what);
    }
    continue_on(&mut on_gpu(job, &[]), 2, "runs/again");
    let parameters = |runs| job.manifest(runs)["parameters"].clone();
    assert_eq!(
        parameters("runs/again"),
        parameters("runs/gpu-2"),
        "bit for bit"
    );
}
