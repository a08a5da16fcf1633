//! Type-erased access to the model and optimizers of this thread, for strategies.

use std::cell::Cell;

use anyhow::{Result, anyhow};
use burn::tensor::{Device, Tensor};

use crate::optim::{FlatGradients, gradient_norm, read_with_norms, set_step};

/// What an update changes, such as model and optimizers, without the types of its task.
pub trait State: Send {
    /// A clone with the same values.
    fn clone_state(&self) -> Box<dyn State>;

    /// Registers a mirrored copy for the replica of this thread, on `device`.
    ///
    /// # Errors
    /// The state cannot be copied to `device`.
    fn register_on(self: Box<Self>, device: &Device) -> Result<()>;

    /// Serializes the number of updates, the loss scale, the parameters and their averages, for another
    /// process.
    ///
    /// # Errors
    /// A device failed.
    fn to_bytes(&self) -> Result<Vec<u8>>;

    /// Whether the model has running statistics, which clones of it share.
    fn has_running_statistics(&self) -> bool;
}

/// Functions for the task that is registered on this thread.
#[derive(Clone, Copy)]
pub(crate) struct Access {
    pub state: fn() -> Result<Box<dyn State>>,
    pub release: fn() -> Result<()>,
    pub parameters: fn() -> Result<Vec<f32>>,
    pub load_parameters: fn(&[f32]) -> Result<()>,
    pub hash_parameters: fn() -> Result<u64>,
    pub average_statistics: fn() -> Result<()>,
    pub gradients: fn(&[f32]) -> Result<FlatGradients>,
    pub learning_rates: fn() -> Result<Vec<(&'static str, f64)>>,
}

thread_local! {
    static ACCESS: Cell<Option<Access>> = const { Cell::new(None) };
}

/// Registers the functions for the task of this thread, once it has a model.
pub(crate) fn register(access: Access) {
    ACCESS.set(Some(access));
}

fn access() -> Result<Access> {
    ACCESS.get().ok_or_else(no_model)
}

/// The training state of this replica.
///
/// # Errors
/// No model is registered.
pub fn state() -> Result<Box<dyn State>> {
    (access()?.state)()
}

/// Drops the model and optimizers of this replica until a [`State`] is registered.
///
/// # Errors
/// No model is registered.
pub fn release() -> Result<()> {
    (access()?.release)()
}

/// All parameters of the model, concatenated.
///
/// # Errors
/// No model is registered.
pub fn model_parameters() -> Result<Vec<f32>> {
    (access()?.parameters)()
}

/// A hash of the parameters of the model.
///
/// # Errors
/// No model is registered.
pub fn hash() -> Result<u64> {
    (access()?.hash_parameters)()
}

/// With `--ema`, averages the running statistics of this replica after an update.
///
/// # Errors
/// No model is registered.
pub fn average_statistics() -> Result<()> {
    (access()?.average_statistics)()
}

/// Loads the parameters after update number `step` on this replica.
///
/// # Errors
/// The parameters do not match the model.
pub fn load_at(step: usize, values: &[f32]) -> Result<()> {
    set_step(step);
    (access()?.load_parameters)(values)
}

/// The gradients of the model from the concatenated values of all parameters' gradients.
///
/// # Errors
/// The values do not match the model.
pub fn gradients(values: &[f32]) -> Result<FlatGradients> {
    (access()?.gradients)(values)
}

/// Statistics of an update, for reports.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LastUpdate {
    /// Global norm of the gradients before clipping, as by [`gradient_norm`].
    pub gradient_norm: Option<f64>,
    /// Name and learning rate of each optimizer.
    pub learning_rates: Vec<(&'static str, f64)>,
}

/// Statistics of the last update on this thread, and the values of `tensors`, in one read.
///
/// # Errors
/// No model is registered, and those of [`read_gradient_norms`](crate::optim::read_gradient_norms).
pub(crate) fn last_update(tensors: Vec<Tensor<1>>) -> Result<(LastUpdate, Vec<Vec<f32>>)> {
    let values = read_with_norms(tensors)?;
    let update = LastUpdate {
        gradient_norm: gradient_norm()?,
        learning_rates: (access()?.learning_rates)()?,
    };
    Ok((update, values))
}

/// The error for a missing model and optimizer.
pub(crate) fn no_model() -> anyhow::Error {
    unregistered(
        "model and optimizer",
        "create_model_and_optimizer",
        "model",
        4,
    )
}

/// The error for what is not registered, which `factory` in `file` makes in step `step` of `main`.
pub(crate) fn unregistered(what: &str, factory: &str, file: &str, step: usize) -> anyhow::Error {
    anyhow!(
        "no {what} registered on this thread: `{factory}` (src/{file}.rs) makes them and \
         `strategy.scope` registers them on each replica, in step {step} of `main`"
    )
}
