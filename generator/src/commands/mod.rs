//! What each subcommand does.

pub(crate) mod examples;
pub(crate) mod folder;
pub(crate) mod new;
pub(crate) mod options;
pub(crate) mod prompt;
pub(crate) mod todos;
