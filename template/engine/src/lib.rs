//! The engine of a training program: distribution over replicas, checkpoints, reports, data and layers.
//!
//! It is independent of the task: a project implements [`Task`] once, and the engine works with its types.
//!
//! | module | contents |
//! |---|---|
//! | [`strategy`] | [`Strategy`](strategy::Strategy), and one file per strategy |
//! | [`replica`] | replicas: their threads, devices and contexts |
//! | [`comm`] | collective operations between threads, devices and processes |
//! | [`workers`] | processes of a job: MPI, heartbeats, lost processes |
//! | [`kernels`] | caches and bundles of compiled GPU kernels; the command `compile` |
//! | [`pipeline`] | models split into stages, for `model-parallel` |
//! | [`launch`] | the commands `launch` and `serve`, and devices of other machines |
//! | [`optim`] | optimizers, learning-rate schedules, gradients |
//! | [`precision`], [`flops`] | matrix products in 16 bits, the loss scale of float16; counts of FLOPs |
//! | [`ema`] | an exponential moving average of the weights |
//! | [`loss`], [`metric`], [`layers`] | losses, metrics, and layers with kernels of their own |
//! | [`autodiff`], `products`, [`vectors`] | operations with backward passes of their own; matrix products and functions on the CPU |
//! | [`model`] | parameters, running statistics and random layers of any module |
//! | [`data`] | datasets: files, batches, shards, prefetching |
//! | [`training`] | epochs, updates and callbacks |
//! | [`checkpoint`] | checkpoints, resuming, signals |
//! | [`weights`] | initial weights from files of other programs, and export |
//! | [`report`], [`picture`], [`tensorboard`] | progress, logs and profiles; samples and curves; event files |
//! | [`tracking`] | trackers, such as MLflow, and the interface for others |
//! | [`run_record`] | run metadata: options, program, data |
//! | [`comparison`] | the command `compare`: runs side by side |
//! | [`sweep`] | the command `sweep`: runs on a grid or with random options, ranked |
//! | [`rate_finder`] | the command `find-lr`: the loss over the learning rate |
//! | [`options`] | options of the command line and of configuration files |
//! | [`task`], [`globals`] | the interface to a task, and per-replica state |
//! | [`contract`] | checks for the contract tests of a project |

#![warn(missing_docs)]
// Tests read as they like: see `clippy.toml`.
#![cfg_attr(test, allow(clippy::disallowed_methods))]

mod anomalies;
pub mod autodiff;
mod bytes;
pub mod checkpoint;
pub mod comm;
pub mod comparison;
mod configuration;
mod console;
pub mod contract;
pub mod data;
pub mod ema;
mod files;
pub mod flops;
pub mod globals;
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
#[cfg(feature = "cpu-layers")]
pub mod products;
pub mod rate_finder;
pub mod replica;
pub mod report;
pub mod run_record;
mod similar;
pub mod strategy;
pub mod sweep;
pub mod task;
pub mod tensorboard;
#[cfg(test)]
mod test_task;
pub mod tracking;
pub mod training;
pub mod vectors;
pub mod weights;
pub mod workers;

pub use globals::Split;
pub use options::Options;
pub use task::{Metrics, ModelAndOptimizer, Task, TrainState};
