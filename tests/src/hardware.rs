//! The projects of tests of GPUs, of CUDA without a GPU, and of Burn servers. Each changes Burn, which is built once
//! for all.

use crate::{abilities::add_a_group, mpi, rendered::Project, without_llvm::without_llvm};

/// Crates that are built only for these projects, or once more for them: optimising them takes longer than the
/// trainings of these tests.
const UNOPTIMISED: [&str; 64] = [
    "ash",
    "axum",
    "burn-autodiff",
    "burn-communication",
    "burn-core",
    "burn-cubecl",
    "burn-cubecl-fusion",
    "burn-dispatch",
    "burn-flex",
    "burn-fusion",
    "burn-nn",
    "burn-optim",
    "burn-remote",
    "burn-router",
    "burn-std",
    "burn-tensor",
    "combine",
    "cubecl-cpp",
    "cubecl-cuda",
    "cubecl-environment",
    "cubecl-ir",
    "cubecl-llvm",
    "cubecl-server",
    "cubecl-std",
    "cubek-attention",
    "cubek-convolution",
    "cubek-interpolate",
    "cubek-matmul",
    "cubek-pool",
    "cubek-quant",
    "cubek-reduce",
    "cubek-std",
    "cubek-tile",
    "cudarc",
    "h2",
    "igd-next",
    "iroh",
    "iroh-dns",
    "iroh-relay",
    "kiln-engine",
    "kiln-kernels",
    "llvm-sys",
    "n0-dns-resolver",
    "netlink-packet-route",
    "netwatch",
    "noq",
    "noq-proto",
    "nvml-wrapper",
    "pliron-llvm",
    "portmapper",
    "reqwest",
    "rustls",
    "simple-dns",
    "tokio",
    "tracing-subscriber",
    "tungstenite",
    "turso_core",
    "turso_parser",
    "turso_sync_engine",
    "turso_sync_sdk_kit",
    "wgpu",
    "wgpu-core",
    "wgpu-hal",
    "wide",
];

/// The default project, with a [group](add_a_group) of parameters, for GPUs of wgpu and CUDA, of which the latter come
/// first, and its own engine with the feature `remote` and, where MPI is installed, `mpi`, which its tests share. It is
/// without TensorBoard, which the unit tests of all other engines are with.
///
/// # Panics
/// The template cannot be rendered.
pub fn project() -> Project {
    with_features("hardware", "cuda,remote")
}

/// The same with the feature `autotune`.
///
/// # Panics
/// The template cannot be rendered.
pub fn tuned_project() -> Project {
    with_features("tuned", "cuda,remote,autotune")
}

fn with_features(name: &str, features: &str) -> Project {
    let settings = UNOPTIMISED.map(|name| format!("profile.dev.package.{name}.opt-level=0"));
    Project::unchanged(name, || {
        let answers = [("hardware", "wgpu"), ("tensorboard", "no")];
        let project = Project::with_answers_and_engine(&answers);
        add_a_group(&project);
        let mpi = if mpi::is_installed() { ",mpi" } else { "" };
        // Default features, too: `cargo test --workspace` enables them, and would build the engine once more.
        without_llvm(project.with_engine_features(&format!("default,{features}{mpi}")))
    })
    .with_settings(settings)
}
