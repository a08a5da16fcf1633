//! What each subcommand does.

pub(crate) mod diff;
pub(crate) mod examples;
pub(crate) mod new;
pub(crate) mod options;
mod plain;
mod prompt;
mod summary;
pub(crate) mod todos;
mod wizard;
