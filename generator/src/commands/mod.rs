//! What each subcommand does.

pub(crate) mod add;
pub(crate) mod examples;
pub(crate) mod new;
pub(crate) mod options;
pub(crate) mod prompt;
pub(crate) mod renew;
pub(crate) mod todos;
pub(crate) mod update;
