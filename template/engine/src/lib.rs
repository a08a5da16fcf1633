//! The engine of a training program: distribution over replicas, checkpoints, reports, data and layers.
//!
//! It is independent of the task: a project implements [`Task`] once, and the engine works with its types.
//!
//! | module | contents |
//! |---|---|
//! | [`strategy`], `distribution` | one file per strategy; the trait [`Strategy`](strategy::Strategy), and what all strategies do alike |
//! | [`replica`], `device` | replicas: their threads, devices, contexts and shared updates; reads of devices |
//! | [`comm`] | collective operations between threads, devices and processes |
//! | [`workers`] | processes of a job: MPI, heartbeats, lost processes |
//! | [`kernels`], `kernel_cache` | the command `compile`; caches and bundles of compiled GPU kernels |
//! | [`pipeline`] | models split into stages, for `model-parallel` |
//! | [`launch`] | the commands `launch` and `serve`, and devices of other machines |
//! | [`optim`] | optimizers, learning-rate schedules, gradients |
//! | [`precision`], [`flops`] | matrix products in 16 bits, the loss scale of float16; counts of FLOPs |
//! | [`ema`] | an exponential moving average of the weights |
//! | [`loss`], [`metric`], [`layers`] | losses, metrics, and layers with kernels of their own on the CPU |
//! | [`autodiff`] | operations with backward passes of their own |
//! | [`model`] | parameters, running statistics and random layers of any module |
//! | [`data`], `split`, `random` | datasets: files, batches, shards, prefetching; their splits; streams of random numbers |
//! | [`training`], `anomalies` | epochs, updates and callbacks; records of layers for `--detect-anomalies` |
//! | [`checkpoint`], `signals` | checkpoints, resuming, stop requests; signals |
//! | [`weights`] | initial weights from files of other programs, and export |
//! | [`report`], [`picture`], [`tensorboard`] | progress, logs and profiles; samples and curves; event files |
//! | [`tracking`] | trackers, such as MLflow, and the interface for others |
//! | [`run_record`], `system` | run metadata: options, program, data; the host and its clock |
//! | [`comparison`] | the command `compare`: runs side by side |
//! | [`sweep`] | the command `sweep`: runs on a grid or with random options, ranked |
//! | [`rate_finder`] | the command `find-lr`: the loss over the learning rate |
//! | [`options`], [`command_line`], `configuration` | options; the parsed command line; configuration files |
//! | [`task`], [`globals`] | the interface to a task, and per-replica state |
//! | `registry`, [`erased`] | what `main` registers, and access to it without the types of a task |
//! | [`contract`] | checks for the contract tests of a project |
//!
//! Modules import each other in one direction: none is in a circle. The loops over numbers are in the crate
//! [`kiln_kernels`].

#![warn(missing_docs)]
// Tests read as they like: see `clippy.toml`.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

// Checkpoints and values that are read from a GPU are tensors on the CPU.
#[cfg(not(feature = "flex"))]
compile_error!("the CPU is needed beside every GPU: enable the feature `flex` of this crate");

mod anomalies;
mod bytes;
pub mod checkpoint;
pub mod comm;
pub mod command_line;
pub mod comparison;
mod configuration;
mod console;
pub mod contract;
pub mod data;
mod device;
mod distribution;
pub mod ema;
pub mod erased;
mod files;
pub mod flops;
pub mod globals;
mod kernel_cache;
pub mod kernels;
pub mod launch;
pub mod layers;
pub mod loss;
pub mod metric;
pub mod model;
mod observations;
pub mod optim;
pub mod options;
mod performance;
pub mod picture;
pub mod pipeline;
pub mod precision;
mod random;
pub mod rate_finder;
mod registry;
pub mod replica;
pub mod report;
pub mod run_record;
mod signals;
mod similar;
mod split;
pub mod strategy;
pub mod sweep;
mod system;
pub mod task;
pub mod tensorboard;
#[cfg(test)]
mod test_task;
pub mod tracking;
pub mod training;
pub mod weights;
pub mod workers;

pub use kiln_kernels::autodiff;
pub use options::Options;
pub use split::Split;
pub use task::{Metrics, ModelAndOptimizer, Task, TrainState};
