//! Kiln generates training crates for [Burn](https://burn.dev): crates that train, on several
//! replicas, from the first command, with every place that a new task must change marked.
//!
//! The binary `kiln` is a thin shell around this library, which has four parts, each of which uses
//! only those before it:
//!
//! - [`template`]: a [`Template`](template::Template) states files and
//!   [options](template::option::TemplateOption), and [`Answers`](template::answers::Answers) are the
//!   values of these. Kiln's own template, its [examples](template::example) and those of
//!   [earlier releases](template::history) are part of the binary.
//! - [`render`]: [`render::render`] makes a project in memory from a template and answers.
//! - [`project`]: [`project::write`] brings it to the disk, all or nothing; [`project::todo::scan`]
//!   finds what is left to do in it; [`project::merge`] brings in what the template has changed since.
//! - [`cli`]: the command line, a file for each subcommand.
//!
//! With the feature `snapshot`, the module `snapshot` tests a template of your own.

pub mod cli;
mod display;
mod document;
pub mod error;
#[cfg(test)]
mod fuzz;
pub mod name;
pub mod project;
pub mod render;
#[cfg(feature = "snapshot")]
pub mod snapshot;
pub mod template;
