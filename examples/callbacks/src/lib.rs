//! A training program whose task is a set of callbacks: [`train_callbacks`] has their names and the
//! standard ones, and [`digits`] those of this project.
//!
//! The files that call them are flat in `src/`: [`strategy`], [`loss`], [`metric`], [`model`],
//! [`dataset`], [`train`], [`epochs`], [`callbacks`], [`validation`], [`test`](mod@test), [`infer`].
//! The machinery that a task need not touch is in [`distribute`], [`data`], [`layers`], [`checkpoint`],
//! [`report`] and [`run_record`], in [`globals`], [`vectors`] and the optimizers [`adam`] and [`nadam`].

pub mod adam;
pub mod callbacks;
pub mod checkpoint;
pub mod cli;
pub mod data;
pub mod dataset;
pub mod digits;
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
pub mod stratified;
pub mod test;
pub mod train;
pub mod train_callbacks;
pub mod validation;
pub mod vectors;
