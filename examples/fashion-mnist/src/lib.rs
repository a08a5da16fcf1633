//! The TensorFlow tutorial on custom training with `tf.distribute`, in files that are named after what they
//! make.
//!
//! The steps reach what [`globals`] registers. Beside the files of every project there are the files of
//! Fashion-MNIST ([`fashion_mnist`]), what training minimises ([`objective`]) and a test without replicas
//! ([`without_strategy`]). Strategies, checkpoints, reports and everything else that a task need not touch
//! are the crate [`kiln_engine`], in `engine/`.

pub mod callbacks;
pub mod cli;
pub mod dataset;
pub mod fashion_mnist;
pub mod globals;
pub mod infer;
pub mod loss;
pub mod metric;
pub mod model;
pub mod objective;
pub mod strategy;
pub mod test;
pub mod train;
pub mod validation;
pub mod without_strategy;
