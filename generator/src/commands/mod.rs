//! What each subcommand does.

pub(crate) mod completions;
pub(crate) mod examples;
pub(crate) mod explain;
pub(crate) mod man;
pub(crate) mod new;
pub(crate) mod options;
pub(crate) mod prompt;
pub(crate) mod todos;
