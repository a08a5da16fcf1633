//! Projects: writing them to disk, their record, their open TODO sites, and merging later changes
//! of the template.

pub mod ability;
pub mod engine;
pub mod explain;
pub(crate) mod git;
mod layout;
mod markers;
pub mod merge;
pub(crate) mod moves;
mod operations;
pub(crate) mod origin;
pub mod overlay;
pub(crate) mod patches;
pub(crate) mod pending;
pub(crate) mod place;
pub mod record;
pub(crate) mod renewal;
mod repository;
mod source;
pub(crate) mod temporary;
pub mod todo;
pub mod transaction;
pub(crate) mod tree;
pub mod workspace;
mod writing;

pub(crate) use repository::{Git, ask_git};
pub(crate) use writing::check_way;
pub use writing::{WriteOptions, Written, check_destination, check_free, plan, write};
