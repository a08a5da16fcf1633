//! Projects: writing them to disk, their record, their open TODO sites, and merging later changes
//! of the template.

pub mod engine;
pub mod explain;
pub mod merge;
pub mod overlay;
pub mod record;
mod source;
pub mod todo;
pub mod transaction;
pub(crate) mod tree;
mod writing;

pub use writing::{WriteOptions, Written, check_destination, plan, write};
pub(crate) use writing::{check_way, git};
