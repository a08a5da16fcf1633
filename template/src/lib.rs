//! A training program in files that are named after what they make.
//!
//! What a new task changes is flat in `src/`: [`strategy`], [`loss`], [`metric`], [`model`],
//! [`dataset`], [`train`], [`callbacks`], [`validation`], [`test`](mod@test), [`infer`]. Each place
//! carries a `TODO(id)`, holds a working default, and is guarded by a contract test in
//! `tests/contract/`. [`epochs`] is the loop around them. The machinery that a task need not touch is
//! in [`distribute`], [`data`], [`layers`], [`checkpoint`], [`report`] and [`run_record`], in [`globals`],
//! [`vectors`] and the optimizers [`adam`] and [`nadam`].

pub mod adam;
pub mod callbacks;
pub mod checkpoint;
pub mod cli;
pub mod data;
pub mod dataset;
pub mod distribute;
pub mod epochs;
pub mod globals;
pub mod infer;
pub mod layers;
pub mod loss;
pub mod metric;
pub mod model;
pub mod nadam;
pub mod report;
pub mod run_record;
pub mod strategy;
pub mod test;
pub mod train;
pub mod validation;
pub mod vectors;
