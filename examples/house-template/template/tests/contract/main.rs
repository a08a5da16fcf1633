//! What must hold at every TODO site, before and after it is edited. A test that fails names its
//! site; `todos.toml` lists which tests guard which.

mod callbacks;
mod checkpoint;
mod dataset;
mod evaluation;
mod house;
mod infer;
mod loss;
mod metric;
mod model;
mod strategy;
mod support;
mod train;
