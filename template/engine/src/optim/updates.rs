//! The number of updates of this thread's model so far, and the norms of their gradients.

use std::{cell::RefCell, mem};

use anyhow::Result;
use burn::tensor::Tensor;

use super::NormCheck;
use crate::device::{read_all, updates_between_reads};

/// The norm of an update's gradients on their device.
struct UnreadNorm {
    step: usize,
    /// The sums of squares whose sum is the square of the norm, shape `[buckets]`.
    squares: Tensor<1>,
    norm: NormCheck,
}

#[derive(Default)]
struct Updates {
    step: usize,
    /// The global norm of the gradients of the last update, before clipping.
    gradient_norm: Option<f64>,
    /// Those of the last updates that are still to be read from their device.
    unread_norms: Vec<UnreadNorm>,
}

thread_local! {
    static UPDATES: RefCell<Updates> = RefCell::default();
}

/// The number of updates of the parameters so far.
pub fn step() -> usize {
    UPDATES.with_borrow(|updates| updates.step)
}

/// Sets the number of updates so far, as when a checkpoint is restored.
pub fn set_step(step: usize) {
    UPDATES.with_borrow_mut(|updates| {
        updates.step = step;
        updates.gradient_norm = None;
    });
}

/// Takes the number of updates of another replica, which made the last one; the norm stays.
pub(crate) fn resume_at(step: usize) {
    UPDATES.with_borrow_mut(|updates| updates.step = step);
}

/// Records the global norm of the gradients of an update, before clipping, for reports.
pub fn set_gradient_norm(norm: f64) {
    UPDATES.with_borrow_mut(|updates| updates.gradient_norm = Some(norm));
}

/// As [`set_gradient_norm`], with a norm that is read later, together with others: at the latest after
/// `updates_between_reads` updates, here.
///
/// # Errors
/// Those of [`read_gradient_norms`], if norms are read.
pub(crate) fn set_unread_gradient_norm(squares: Tensor<1>, norm: NormCheck) -> Result<()> {
    let unread = UPDATES.with_borrow_mut(|updates| {
        let step = updates.step;
        updates.unread_norms.push(UnreadNorm {
            step,
            squares,
            norm,
        });
        updates.unread_norms.len()
    });
    // A report comes first where it is due.
    match unread > updates_between_reads() {
        true => read_gradient_norms(),
        false => Ok(()),
    }
}

/// Reads the norms of the updates since the last call from their device.
///
/// # Errors
/// The gradients of an update were not finite, and its [`NonFinite`](super::NonFinite) policy is an
/// error; a device failed.
pub fn read_gradient_norms() -> Result<()> {
    read_with_norms(Vec::new()).map(drop)
}

/// The global gradient norm of the last update, if `FlatGradients::handle_non_finite` was called for it.
///
/// # Errors
/// Those of [`read_gradient_norms`].
pub fn gradient_norm() -> Result<Option<f64>> {
    read_gradient_norms()?;
    Ok(UPDATES.with_borrow(|updates| updates.gradient_norm))
}

/// Reads `tensors` with the unread norms, and returns their values.
pub(crate) fn read_with_norms(tensors: Vec<Tensor<1>>) -> Result<Vec<Vec<f32>>> {
    let norms = UPDATES.with_borrow_mut(|updates| mem::take(&mut updates.unread_norms));
    let squares = norms.iter().map(|norm| norm.squares.clone());
    let mut read = read_all(squares.chain(tensors).collect())?;
    let values = read.split_off(norms.len());
    for (norm, squares) in norms.into_iter().zip(read) {
        let value = norm.norm.check(norm.step, &squares)?;
        let is_last = norm.step == step();
        if is_last {
            set_gradient_norm(value);
        }
    }
    Ok(values)
}
