//! The terminal of a run: its lines, the progress bar, and the standard output.

mod bar;
mod fields;
pub mod stdout;
pub mod terminal;

pub use bar::Bar;
pub use fields::{thousands, wrap};
