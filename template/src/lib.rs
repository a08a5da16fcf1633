//! A training program, in files named after their contents.
//!
//! Each place to change for a new task is marked `TODO(id)`, has a working default, and is guarded by a
//! contract test in `tests/contract/`. Steps access per-replica state through [`globals`]. Strategies,
//! checkpoints, reports and all else that is independent of the task are in the crate [`kiln_engine`],
//! in `engine/`.

pub mod callbacks;
pub mod cli;
pub mod dataset;
pub mod globals;
pub mod infer;
pub mod loss;
pub mod metric;
pub mod model;
pub mod strategy;
pub mod test;
pub mod train;
pub mod validation;
