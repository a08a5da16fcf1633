//! A training program in files that are named after what they make.
//!
//! Each place that a new task changes carries a `TODO(id)`, holds a working default, and is guarded by a
//! contract test in `tests/contract/`. The steps reach what [`globals`] registers. Strategies,
//! checkpoints, reports and everything else that a task need not touch are the crate [`kiln_engine`], in
//! `engine/`.

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
