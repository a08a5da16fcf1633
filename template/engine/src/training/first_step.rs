//! The end of the first step, until which messages say that kernels are compiled.

use anyhow::Result;

use crate::{
    kernel_cache::{is_awaiting_first_step, note_first_step},
    loss::Losses,
};

/// Notes the end of a step with `losses`, and after the first one waits for its results.
///
/// # Errors
/// A device failed.
pub(crate) fn end_first_step(losses: &Losses) -> Result<()> {
    if is_awaiting_first_step() {
        losses.read()?;
        note_first_step();
    }
    Ok(())
}
