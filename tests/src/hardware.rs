//! The project of tests of GPUs and of Burn servers. Each changes Burn, which is built once for both.

use crate::rendered::Project;

/// Crates that are built only for this project, or once more for it: optimising them takes longer than the
/// trainings of these tests.
const UNOPTIMISED: [&str; 54] = [
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
    "cubecl-common",
    "cubecl-core",
    "cubecl-environment",
    "cubecl-ir",
    "cubecl-opt",
    "cubecl-runtime",
    "cubecl-std",
    "cubecl-wgpu",
    "cubek-attention",
    "cubek-convolution",
    "cubek-interpolate",
    "cubek-matmul",
    "cubek-pool",
    "cubek-quant",
    "cubek-reduce",
    "cubek-std",
    "cubek-tile",
    "h2",
    "igd-next",
    "iroh",
    "iroh-relay",
    "kiln-engine",
    "naga",
    "netwatch",
    "noq-proto",
    "nvml-wrapper",
    "pliron",
    "portmapper",
    "reqwest",
    "rustls",
    "simple-dns",
    "tokio",
    "tracing-subscriber",
    "turso_core",
    "turso_parser",
    "turso_sync_engine",
    "wgpu-core",
    "wgpu-hal",
];

/// The default project for a GPU, and its own engine with the feature `remote`, which its tests share.
///
/// # Panics
/// The template cannot be rendered.
pub fn project() -> Project {
    let settings = UNOPTIMISED.map(|name| format!("profile.dev.package.{name}.opt-level=0"));
    Project::unchanged("hardware", || {
        let project = Project::with_answers_and_engine(&[("hardware", "wgpu")]);
        project.with_engine_features("remote")
    })
    .with_settings(settings)
}
