//! Contracts of the TODO sites, which hold before and after an edit. A failing test names its site;
//! `todos.toml` lists the tests of each site.

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
