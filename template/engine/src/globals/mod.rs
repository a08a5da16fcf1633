//! Per-replica state, registered by `main`.
//!
//! State with types of the task is in a [`Registry`] of the project; strategies access it without these types
//! through the functions of [`erased`].

mod state;

use std::{cell::RefCell, sync::Arc};

use anyhow::{Context, Result};
use burn::module::Module;

use crate::{
    comm::ReduceOp,
    ema::{self, Weights},
    model::{
        TrainingLayers, load_running_statistics, named_parameters, running_statistics,
        set_training_layers, training_layers,
    },
    optim::FlatGradients,
    pipeline::run_stages,
    replica::{ReplicaContext, replica_context},
    task::{Task, TrainState},
};

pub(crate) use state::load_state;
pub use state::{
    TrainingState, mirror_trainable, register_trainable, release_trainable, training_state,
};

pub(crate) use crate::registry::{read_trainable, revision};
pub use crate::{
    erased::{self, LastUpdate},
    optim::{gradient_norm, read_gradient_norms, set_gradient_norm, set_step, step},
    registry::{
        fail, global_batch_size, loss_objects, merged_metrics, model, register_loss_objects,
        register_metrics, register_strategy, reset_metrics, strategy, update_model,
        update_trainable, with_metrics, with_model, with_trainable,
    },
    split::Split,
    task::Registry,
};

/// Gradients that a thread keeps.
#[derive(Default)]
struct Kept {
    /// Gradients accumulated over earlier batches of the same update.
    accumulated: Option<FlatGradients>,
    /// The gradients of the last update, for reports; shared by the replicas that share the update.
    last_gradients: Option<Arc<FlatGradients>>,
}

thread_local! {
    static GRADIENTS: RefCell<Kept> = RefCell::default();
}

/// Enables or disables, on this replica, the layers that differ in training, as by
/// [`set_training_layers`], and returns those that are enabled now or were until now.
///
/// # Errors
/// No model is registered.
pub fn enable_training_layers<T: Task>(enabled: bool) -> Result<TrainingLayers> {
    let set = || update_model::<T>(|model| Ok(set_training_layers(model, enabled)));
    // Only enabled layers are found.
    if enabled {
        set()?;
    }
    let layers = with_model::<T, _>(training_layers)?;
    if !enabled {
        set()?;
    }
    replica_context()?.set_draws_from_burn(enabled && layers.draws_from_burn());
    Ok(layers)
}

/// Prepares the model for validation and test: without autodiff, and with running statistics, as of batch
/// normalisation, averaged over all replicas, which must all call this. The model for training keeps its
/// own. With `--ema`, the prepared model has the averaged weights, unless `--weights model` is given.
///
/// # Errors
/// Another replica failed.
pub fn prepare_inference<T: Task>(replica: &ReplicaContext) -> Result<()> {
    let model = model_with::<T>(ema::evaluated(), replica)?;
    T::with_registry(|registry| registry.inference = Some(model));
    Ok(())
}

/// The model of [`prepare_inference`] with the weights of choice; all replicas must call this.
///
/// # Errors
/// Another replica failed, or this training averages no weights.
pub(crate) fn model_with<T: Task>(weights: Weights, replica: &ReplicaContext) -> Result<T::Model> {
    match weights {
        Weights::Model => unaveraged_model::<T>(replica),
        Weights::Ema => ema::inference_model::<T>(replica),
    }
}

/// The model of the last update, with averaged running statistics.
fn unaveraged_model<T: Task>(replica: &ReplicaContext) -> Result<T::Model> {
    let mut model = with_model::<T, _>(T::Model::valid)?;
    let mut statistics = with_model::<T, _>(running_statistics)?;
    if !statistics.is_empty() {
        replica.all_reduce(ReduceOp::Mean, &mut statistics)?;
        let load = |model: &T::Model| load_running_statistics(model, &statistics);
        model = with_model::<T, _>(load)?.valid();
    }
    Ok(model)
}

/// The model that [`prepare_inference`] prepared on this replica.
///
/// # Errors
/// No model was prepared since the last update.
pub fn inference_model<T: Task>() -> Result<T::Model> {
    T::with_registry(|registry| registry.inference.clone()).context(
        "no model is prepared for inference on this thread: \
         `strategy.run_on_all(prepare_inference::<Project>)` does so after training",
    )
}

/// The predictions of `model` for a prepared batch: in the stages of the model under `model-parallel`.
///
/// # Errors
/// No replica runs on this thread.
pub fn predict<T: Task>(model: &T::Model, batch: &T::Batch) -> Result<T::Predictions> {
    Ok(match replica_context()?.pipeline() {
        Some(pipeline) => run_stages(model, T::STAGES, pipeline.devices(), batch).into(),
        None => T::forward(model, batch),
    })
}

/// Keeps the gradients of an epoch's last update for reports, and drops all others, as each would cost a
/// copy, unless the task set others in this update. A parameter server does not know the last update.
///
/// # Errors
/// No replica runs on this thread.
pub fn remember_gradients(gradients: &FlatGradients) -> Result<()> {
    if GRADIENTS.with_borrow(|kept| kept.last_gradients.is_some()) {
        return Ok(());
    }
    let batch = replica_context()?.batch();
    let is_last = batch.is_none_or(|batch| batch.ends_epoch);
    set_last_gradients(is_last.then(|| gradients.clone()));
    Ok(())
}

/// Stores the gradients of an update for reports, or clears them with `None`. [`Task::update_gradients`] may
/// store those from before clipping.
pub fn set_last_gradients(gradients: Option<FlatGradients>) {
    GRADIENTS.with_borrow_mut(|kept| kept.last_gradients = gradients.map(Arc::new));
}

/// The values of each parameter, and of its gradient if the last update kept it, by name: `weights/PATH`
/// and `gradients/PATH`.
///
/// # Errors
/// No model is registered.
pub fn weights_and_gradients<T: Task>() -> Result<Vec<(String, Vec<f32>)>> {
    let mut values = with_model::<T, _>(named_parameters)?;
    values
        .iter_mut()
        .for_each(|(path, _)| path.insert_str(0, "weights/"));
    GRADIENTS.with_borrow(|kept| {
        let gradients = kept.last_gradients.iter().flat_map(|flat| flat.iter());
        let named =
            gradients.map(|(path, values)| (format!("gradients/{path}"), values.into_owned()));
        values.extend(named);
    });
    Ok(values)
}

/// Name of each optimizer, and learning rate of its last update.
///
/// # Errors
/// No model is registered.
pub fn learning_rates<T: Task>() -> Result<Vec<(&'static str, f64)>> {
    read_trainable::<T, _>(|trainable| {
        let optimizers = trainable.optimizers_mut().into_iter();
        optimizers
            .map(|(name, optimizer)| (name, optimizer.learning_rate()))
            .collect()
    })
}

/// Stores accumulated gradients for a later batch of the same update.
pub fn keep_gradients(gradients: FlatGradients) {
    GRADIENTS.with_borrow_mut(|kept| kept.accumulated = Some(gradients));
}

/// Takes the accumulated gradients; `None` if there are none.
pub fn take_gradients() -> Option<FlatGradients> {
    GRADIENTS.with_borrow_mut(|kept| kept.accumulated.take())
}

/// The gradients of the last update, if they are kept.
fn last_gradients() -> Option<Arc<FlatGradients>> {
    GRADIENTS.with_borrow(|kept| kept.last_gradients.clone())
}

/// Keeps the gradients of an update that another replica made.
fn share_last_gradients(gradients: Option<Arc<FlatGradients>>) {
    GRADIENTS.with_borrow_mut(|kept| kept.last_gradients = gradients);
}
