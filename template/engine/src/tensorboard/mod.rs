//! TensorBoard event files of runs; none without the feature `tensorboard`.

#[cfg(feature = "tensorboard")]
mod board;
#[cfg(feature = "tensorboard")]
mod events;
#[cfg(feature = "tensorboard")]
mod hparams;

#[cfg(feature = "tensorboard")]
pub use events::EventWriter;

use crate::tracking::Tracker;

/// Folder of the event files in the output folder.
pub(crate) const FOLDER: &str = "tensorboard";

/// The tracker that writes event files, if it is built in.
pub(crate) fn tracker() -> Option<Box<dyn Tracker>> {
    #[cfg(feature = "tensorboard")]
    return Some(Box::new(board::Board::default()));
    #[cfg(not(feature = "tensorboard"))]
    None
}
