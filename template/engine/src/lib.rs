//! The engine of a training program: distribution over replicas, checkpoints, reports, data and layers.
//!
//! It knows no task. A project implements [`Task`] once, and everything here works with its types:
//! strategies and replicas are in [`distribute`], the epochs of a training in [`training`], what is
//! saved in [`checkpoint`], what is shown in [`report`], the record of a run in [`run_record`],
//! datasets in [`data`], layers with gradients of their own in [`layers`], and the optimizers
//! [`adam`] and [`nadam`] beside those of Burn.

#![warn(missing_docs)]

pub mod adam;
pub mod checkpoint;
pub mod contract;
pub mod data;
pub mod distribute;
pub mod globals;
pub mod layers;
pub mod nadam;
pub mod options;
pub mod report;
pub mod run_record;
pub mod schedule;
pub mod task;
#[cfg(test)]
mod test_task;
pub mod training;
pub mod vectors;

pub use globals::Split;
pub use options::Options;
pub use task::{Metrics, Task, TrainState};
