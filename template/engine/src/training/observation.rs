//! Records of the layers that a training step uses: for the count of its FLOPs, and for the check of its precision.

use anyhow::Result;

use crate::{
    flops::{self, Recording},
    globals,
    precision::unrounded,
    task::Task,
};

/// A shard that a replica trains on.
#[derive(Clone, Copy)]
pub(super) struct Size {
    pub examples: usize,
    /// `None` if the batch does not report tokens.
    pub tokens: Option<usize>,
}

/// Trains with `step` on a shard of `size`, and records its layers for what is due: the count of FLOPs, or the check of
/// [`unrounded`]. A shard without examples leaves both to the next one.
///
/// # Errors
/// Those of `step`.
pub(super) fn observe<T: Task, R>(size: Size, step: impl FnOnce() -> Result<R>) -> Result<R> {
    let (counts, checks) = (flops::is_armed(), unrounded::is_due());
    if size.examples == 0 || !(counts || checks) {
        return step();
    }
    let recording = Recording::default();
    let output = recording.clone().during(step)?;
    let observed = recording.finish();
    globals::with_model::<T, _>(|model| {
        if checks {
            unrounded::check(model, &observed);
        }
        if counts {
            let flops = flops::count(model, &observed, size.examples, size.tokens);
            flops::set_counted(flops);
        }
    })?;
    Ok(output)
}
