//! Kiln generates training crates for [Burn](https://burn.dev). A new crate trains on several
//! replicas without edits, and every place that a new task must change is marked.
//!
//! The binary `kiln` is a thin shell around this library. Each of its four parts uses only those before it:
//!
//! - [`template`]: a [`Template`](template::Template) has files and
//!   [options](template::option::TemplateOption); [`Answers`](template::answers::Answers) are the
//!   values of the options. Kiln's own template, its [examples](template::example) and those of
//!   [earlier releases](template::history) are embedded in the binary.
//! - [`render`]: [`render::render`] renders a template with answers into a project in memory.
//! - [`project`]: [`project::write`] writes the project in one transaction; [`project::todo::scan`]
//!   lists the open TODO sites; [`project::merge`] merges later changes of the template.
//! - [`cli`]: the command line, one file per subcommand.
//!
//! With the feature `snapshot`, the module `snapshot` tests your own template.

pub mod cli;
mod display;
mod document;
pub mod error;
#[cfg(test)]
mod fuzz;
pub mod name;
pub mod project;
mod quiet;
pub mod render;
#[cfg(feature = "snapshot")]
pub mod snapshot;
pub mod template;
mod wrapping;
