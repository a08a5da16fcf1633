//! The files that are part of this binary.

use crate::history::Release;

/// Path, contents, and whether it can be run.
pub(crate) type Files = &'static [(&'static str, &'static [u8], bool)];

include!(concat!(env!("OUT_DIR"), "/embedded.rs"));
