//! Floating-point operations of training, counted by layer: matrix products, convolutions and attention, as
//! PyTorch's `FlopCounterMode` counts them.
//!
//! Burn has no hooks on layers. The functions of [`crate::layers`] record their operations while the first replica
//! trains on one shard. Other layers are found by their parameters, which no record has; [`count`] estimates or names
//! them. The same record tells `precision::unrounded` which layers stay in float32.

mod count;
pub mod peak;
mod recording;

use std::cell::RefCell;

pub(crate) use count::unrecorded;
pub use count::{Flops, count};
pub use recording::{Observed, Recording, add};
pub(crate) use recording::{
    attention, convolution, product, self_attention, transposed_convolution,
};

/// The count of this thread's replica.
enum State {
    /// No count is asked for.
    Off,
    /// The next shard with examples is counted.
    Armed,
    /// Layers record what they compute.
    Recording(Recording),
    /// The result, until it is taken.
    Counted(Flops),
}

thread_local! {
    static STATE: RefCell<State> = const { RefCell::new(State::Off) };
}

/// Counts the FLOPs of the next shard that the replica of this thread trains on.
pub(crate) fn arm() {
    STATE.set(State::Armed);
}

/// The result of the count that [`arm`] asked for, once.
pub(crate) fn take() -> Option<Flops> {
    STATE.with_borrow_mut(|state| match std::mem::replace(state, State::Off) {
        State::Counted(flops) => Some(flops),
        other => {
            *state = other;
            None
        }
    })
}

/// The recording of this thread, to be continued by [`Recording::resume`] on another one.
pub(crate) fn recording() -> Option<Recording> {
    STATE.with_borrow(|state| match state {
        State::Recording(recording) => Some(recording.clone()),
        _ => None,
    })
}

/// Whether [`arm`] asked for a count of the next shard.
pub(crate) fn is_armed() -> bool {
    STATE.with_borrow(|state| matches!(state, State::Armed))
}

/// Keeps the result of the count until [`take`].
pub(crate) fn set_counted(flops: Flops) {
    STATE.set(State::Counted(flops));
}
