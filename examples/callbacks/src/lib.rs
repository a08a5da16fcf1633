//! A training program whose task is a set of callbacks: [`train_callbacks`] has their names and the
//! standard ones, and [`digits`] those of this project.
//!
//! The other files, named after what they make, call them. The steps reach what [`globals`] registers.
//! Strategies, checkpoints, reports and everything else that a task need not touch are the crate
//! [`kiln_engine`], in `engine/`.

pub mod callbacks;
pub mod cli;
pub mod dataset;
pub mod digits;
pub mod globals;
pub mod infer;
pub mod loss;
pub mod metric;
pub mod model;
pub mod strategy;
pub mod stratified;
pub mod test;
pub mod train;
pub mod train_callbacks;
pub mod validation;
