//! A training program in files that are named after what they make.
//!
//! What the task is made of is flat in `src/`: [`strategy`], [`loss`], [`metric`], [`model`],
//! [`dataset`], [`train`], [`callbacks`], [`validation`], [`test`](mod@test), [`infer`], and what the
//! template does not have: [`compute`], how the model computes, [`kernels`], which make that fast on the
//! CPU, and [`sample`], which writes text.
//! Contract tests in `tests/contract/` guard them. [`epochs`] is the loop around them. The machinery that a
//! task need not touch is in [`distribute`], [`data`], [`layers`], [`checkpoint`], [`report`] and
//! [`run_record`], in [`globals`], [`vectors`] and the optimizers [`adam`] and [`nadam`].

pub mod adam;
pub mod callbacks;
pub mod checkpoint;
pub mod cli;
pub mod compute;
pub mod data;
pub mod dataset;
pub mod distribute;
pub mod epochs;
pub mod globals;
pub mod infer;
pub mod kernels;
pub mod layers;
pub mod loss;
pub mod metric;
pub mod model;
pub mod nadam;
pub mod report;
pub mod run_record;
pub mod sample;
pub mod strategy;
pub mod test;
pub mod train;
pub mod validation;
pub mod vectors;
