//! Kiln generates training crates for [Burn](https://burn.dev): crates that train, on several
//! replicas, from the first command, with every place that a new task must change marked.
//!
//! The binary `kiln` is a thin shell around this library. A [`template::Template`] states files and
//! [options](option::TemplateOption); [`render::render`] makes a project in memory from it and from
//! [`option::Answers`]; [`project::write`] brings it to the disk, all or nothing; [`todo::scan`]
//! finds what is left to do in it.
//!
//! With the feature `snapshot`, the module `snapshot` tests a template of your own.

pub mod cli;
mod commands;
mod config;
mod document;
mod embedded;
pub mod error;
pub mod example;
pub mod explain;
mod filters;
#[cfg(test)]
mod fuzz;
pub mod history;
mod literals;
pub mod merge;
pub mod name;
pub mod option;
mod portable;
mod process;
pub mod project;
mod quiet;
pub mod record;
pub mod render;
#[cfg(feature = "snapshot")]
pub mod snapshot;
mod source;
mod tags;
pub mod template;
mod terminal;
pub mod todo;
pub mod transaction;
mod tree;
mod values;
mod variables;
