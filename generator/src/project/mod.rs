//! A project: written to the disk, its record of what it was made from, what is left to do in it, and
//! merging what the template has changed since.

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
pub(crate) use writing::{check_way, git_command};
