//! Kiln generates training crates for [Burn](https://burn.dev): crates that train, on several
//! replicas, from the first command, with every place that a new task must change marked.
//!
//! The binary `kiln` is a thin shell around this library. A [`template::Template`] states files and
//! [options](option::TemplateOption); [`render::render`] makes a project in memory from it and from
//! [`option::Answers`]; [`project::write`] brings it to the disk, all or nothing; [`todo::scan`]
//! finds what is left to do in it.

pub mod cli;
mod commands;
mod config;
mod document;
pub mod error;
pub mod example;
mod filters;
pub mod name;
pub mod option;
pub mod project;
pub mod render;
mod tags;
pub mod template;
mod terminal;
pub mod todo;
mod tree;
mod values;
mod variables;
