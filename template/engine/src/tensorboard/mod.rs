//! TensorBoard event files of runs; a no-op without the feature `tensorboard`.

#[cfg(feature = "tensorboard")]
mod board;
#[cfg(not(feature = "tensorboard"))]
#[path = "no_board.rs"]
mod board;
#[cfg(feature = "tensorboard")]
mod events;

pub(crate) use board::Board;
#[cfg(feature = "tensorboard")]
pub use events::EventWriter;
