//! Contract tests of the TODO sites: they pass with the defaults and after a correct edit, and name the
//! site after a wrong one. `todos.toml` lists the tests of each site.

mod callbacks;
mod checkpoint;
mod dataset;
mod evaluation;
mod infer;
mod loss;
mod metric;
mod model;
mod strategy;
mod support;
mod train;
