//! The state that an update changes: its registration, and its way to other replicas and processes.

use std::sync::Arc;

use anyhow::{Context, Result};
use burn::{module::Module, tensor::Device};

use super::{last_gradients, learning_rates, share_last_gradients};
use crate::{
    bytes::{to_bytes, to_values},
    ema,
    erased::{self, Access},
    model::{
        freeze, has_running_statistics, hash_parameters, load_parameters, load_running_statistics,
        parameters, running_statistics, training_layers,
    },
    optim::{FlatGradients, resume_at, step},
    pipeline::{ensure_split, place},
    precision::{self, LossScale},
    registry::{
        is_released, model, note_change, note_released, read_trainable, take_released,
        update_model, with_model,
    },
    replica::{ReplicaState, replica_context},
    task::{Task, TrainState, assign_groups},
};

/// Registers the model and optimizers of this replica.
pub fn register_trainable<T: Task>(trainable: T::Trainable) {
    T::with_registry(|registry| {
        registry.trainable = Some(trainable);
        registry.inference = None;
    });
    note_change();
    erased::register(access::<T>());
    // The parameter server has a model, but no replica runs on its thread.
    let _ = update_draws_from_burn::<T>();
}

/// Tells this replica whether random layers of its model draw from the generator of Burn.
fn update_draws_from_burn<T: Task>() -> Result<()> {
    let layers = with_model::<T, _>(training_layers)?;
    replica_context()?.set_draws_from_burn(layers.draws_from_burn());
    Ok(())
}

/// A copy of model and optimizers on `device`, with the same parameter ids and values, an autodiff graph of
/// its own, and running statistics of its own, which a clone would share.
///
/// # Errors
/// The model cannot be split into [`Task::STAGES`], or groups of its optimizers do not match it.
pub fn mirror_trainable<T: Task>(
    mut trainable: T::Trainable,
    device: &Device,
) -> Result<T::Trainable> {
    let frozen = assign_groups(&mut trainable)?;
    let original = trainable.model();
    let mut model = original.valid().train();
    if model.devices() != [device.clone()] {
        model = model.fork(device);
    }
    if let Some(pipeline) = replica_context()?.pipeline() {
        ensure_split(&model, T::STAGES)?;
        model = place(model, T::STAGES, pipeline.devices());
    }
    // On the CPU tensors may be shared. Replicas that share a GPU run on streams of their own there, and
    // one would update in place what another one still reads.
    if *device != Device::flex() {
        model = load_parameters(model, &parameters(original))?;
    }
    // Last, as parameters are loaded into those that train, and now all are initialised.
    let model = freeze(model, &frozen)?;
    Ok(trainable.with_model(model))
}

/// Drops this replica's model and optimizers until a [`TrainingState`] is registered, which gets the
/// running statistics of the dropped model. Does nothing if they were dropped before.
///
/// # Errors
/// No model is registered.
pub fn release_trainable<T: Task>() -> Result<()> {
    if is_released() {
        return Ok(());
    }
    let statistics = with_model::<T, _>(running_statistics)?;
    T::with_registry(|registry| {
        registry.trainable = None;
        registry.inference = None;
    });
    ema::release();
    note_released(statistics);
    Ok(())
}

/// The state that an update changes: model, optimizers, averaged parameters, loss scale, number of updates and
/// last gradients.
pub struct TrainingState<T: Task> {
    trainable: T::Trainable,
    ema: Option<ema::Shared>,
    loss_scale: Option<LossScale>,
    step: usize,
    last_gradients: Option<Arc<FlatGradients>>,
}

impl<T: Task> Clone for TrainingState<T> {
    fn clone(&self) -> Self {
        TrainingState {
            trainable: self.trainable.clone(),
            ema: self.ema.clone(),
            loss_scale: self.loss_scale,
            step: self.step,
            last_gradients: self.last_gradients.clone(),
        }
    }
}

/// The training state of this replica.
///
/// # Errors
/// No model is registered.
pub fn training_state<T: Task>() -> Result<TrainingState<T>> {
    let trainable = read_trainable::<T, _>(|trainable| trainable.clone())?;
    Ok(TrainingState {
        trainable,
        ema: ema::shared(),
        loss_scale: precision::loss_scale(),
        step: step(),
        last_gradients: last_gradients(),
    })
}

impl<T: Task> ReplicaState<T> for TrainingState<T> {
    fn mirror(self, device: &Device) -> Result<Self> {
        Ok(TrainingState {
            trainable: mirror_trainable::<T>(self.trainable, device)?,
            ema: self.ema.map(|ema| ema.mirror(device)).transpose()?,
            ..self
        })
    }

    /// Registers all but the running statistics: each replica keeps its own.
    fn register(self) {
        let mut trainable = self.trainable;
        let released = take_released();
        let own = released.or_else(|| with_model::<T, _>(running_statistics).ok());
        if let Some(statistics) = own.filter(|statistics| !statistics.is_empty()) {
            let model = load_running_statistics(trainable.model(), &statistics);
            trainable = trainable.with_model(model);
        }
        register_trainable::<T>(trainable);
        if let Some(ema) = self.ema {
            ema.register();
        }
        precision::set_loss_scale(self.loss_scale);
        resume_at(self.step);
        share_last_gradients(self.last_gradients);
    }
}

impl<T: Task> erased::State for TrainingState<T> {
    fn clone_state(&self) -> Box<dyn erased::State> {
        Box::new(self.clone())
    }

    fn register_on(self: Box<Self>, device: &Device) -> Result<()> {
        self.mirror(device)?.register();
        Ok(())
    }

    fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut values = parameters(self.trainable.model());
        let [step, len] = [self.step, values.len()].map(|number| number as u64);
        // All zeros without one.
        let [scale, good, skipped] = self.loss_scale.map_or([0; 3], LossScale::to_words);
        let numbers = [step, len, scale, good, skipped].map(u64::to_le_bytes);
        if let Some(ema) = &self.ema {
            values.extend(ema.values()?);
        }
        let mut bytes = numbers.concat();
        bytes.extend(to_bytes(&values));
        Ok(bytes)
    }

    fn has_running_statistics(&self) -> bool {
        has_running_statistics(self.trainable.model())
    }
}

/// Access to the model and optimizers of this thread without the types of `T`.
fn access<T: Task>() -> Access {
    Access {
        state: || Ok(Box::new(training_state::<T>()?)),
        release: release_trainable::<T>,
        parameters: || with_model::<T, _>(parameters),
        load_parameters: |values| update_model::<T>(|model| load_parameters(model, values)),
        hash_parameters: || with_model::<T, _>(hash_parameters),
        average_statistics: ema::update_statistics::<T>,
        gradients: |values| FlatGradients::from_values(&model::<T>()?, values),
        learning_rates: learning_rates::<T>,
    }
}

/// Loads the number of updates, the loss scale, the parameters and their averages of a replica in another
/// process on this replica.
///
/// # Errors
/// The parameters do not match the model.
pub(crate) fn load_state(bytes: &[u8]) -> Result<()> {
    let missing = "a process sent no parameters";
    let (numbers, bytes) = bytes.split_at_checked(5 * 8).context(missing)?;
    let mut numbers = numbers
        .as_chunks()
        .0
        .iter()
        .copied()
        .map(u64::from_le_bytes);
    let mut next = || numbers.next().context(missing);
    let [step, len] = [next()? as usize, next()? as usize];
    let loss_scale = LossScale::from_words([next()?, next()?, next()?]);
    let values = to_values(bytes);
    let (parameters, averages) = values.split_at_checked(len).context(missing)?;
    if precision::loss_scale().is_some() {
        precision::set_loss_scale(Some(loss_scale));
    }
    erased::load_at(step, parameters)?;
    ema::load_values(averages)
}
