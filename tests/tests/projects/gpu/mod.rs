//! Projects on a software GPU. Except for the driver, it behaves like a GPU: kernels are compiled for it, tensors are in
//! its memory, and reads wait for it.

mod training;
mod tuning;

use std::{path::Path, process::Command};

use kiln_tests::{job::Job, vulkan};

/// Tuning of each operation with few kernels, as each takes seconds to compile for a GPU in software.
const FEW_CANDIDATES: (&str, &str) = ("CUBECL_AUTOTUNE_LEVEL", "minimal");

/// The program is built for CUDA, too, which comes first.
const NO_CUDA: (&str, &str) = ("CUDA_VISIBLE_DEVICES", "");

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

/// The environment variables of a project's programs and tests on the GPU in software. The cache folder of the user,
/// where the driver keeps what it compiles, too, is in `folder`.
fn variables(folder: &Path) -> Vec<(&'static str, String)> {
    let cache = folder.join("cache").display().to_string();
    let (device, level) = (vulkan::WANTED, FEW_CANDIDATES);
    let others = [device, level, NO_CUDA].map(|(name, value)| (name, value.to_owned()));
    others
        .into_iter()
        .chain([("XDG_CACHE_HOME", cache)])
        .collect()
}

/// The program on the GPU.
fn on_gpu(job: &Job, options: &[&str]) -> Command {
    let mut command = job.alone();
    command.args(options).envs(variables(&job.folder));
    command
}
