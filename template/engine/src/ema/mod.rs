//! An exponential moving average (EMA) of the weights, updated after each update of the parameters.
//!
//! Float parameters that require a gradient are averaged in `f32`, and so are running statistics, as of
//! batch normalisation. Everything else, such as integers and frozen parameters, equals the model's. Every
//! replica has the same averaged parameters; averaged statistics are its own, like those of the model, and
//! their mean over replicas is used.
//!
//! Source: `timm.utils.ModelEmaV3`, and the calls of timm's `train.py`: the first update copies the weights.

mod average;
#[cfg(test)]
mod tests;

use std::cell::RefCell;

use anyhow::{Result, bail, ensure};
use burn::{module::Module, tensor::Device};

pub use average::Average;

pub use crate::options::Weights;

use crate::{
    comm::ReduceOp,
    device::read_all,
    optim::step,
    options::Options,
    registry::{note_change, strategy, with_model},
    replica::ReplicaContext,
    task::Task,
};

/// The settings of an average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EmaConfig {
    /// The factor of the average in each update, from 0 to below 1.
    pub decay: f64,
    /// Whether the decay begins at 0 and rises to `decay`.
    pub warmup: bool,
    /// The weights for validation and test.
    pub evaluated: Weights,
}

impl EmaConfig {
    /// The exponent of the warm-up.
    const POWER: f64 = 2.0 / 3.0;

    /// The settings of `options`; `None` without `--ema`.
    ///
    /// # Errors
    /// Another option needs `--ema`.
    pub fn of(options: &Options) -> Result<Option<Self>> {
        let Some(decay) = options.ema else {
            ensure!(
                !options.ema_warmup,
                "--ema-warmup needs --ema DECAY, such as --ema 0.999"
            );
            ensure!(
                options.weights != Some(Weights::Ema),
                "a training with --weights ema needs --ema DECAY, such as --ema 0.999"
            );
            return Ok(None);
        };
        Ok(Some(EmaConfig {
            decay,
            warmup: options.ema_warmup,
            evaluated: options.weights.unwrap_or(Weights::Ema),
        }))
    }

    /// The decay after update number `step` of the training, from 1.
    ///
    /// Source: `ModelEmaV3.get_decay` with the default `warmup_gamma` and `warmup_power`.
    pub fn decay_at(self, step: usize) -> f64 {
        match step {
            0 | 1 => 0.0,
            _ if self.warmup => (1.0 - (step as f64).powf(-Self::POWER)).min(self.decay),
            _ => self.decay,
        }
    }
}

/// The average of a replica, or of the parameter server on its thread.
struct State {
    config: EmaConfig,
    average: Average,
    /// Updates of the parameters, and of the statistics: without them after a skipped update of the model.
    updates: [usize; 2],
}

/// The averaged parameters, which replicas share.
#[derive(Clone)]
pub struct Shared {
    config: EmaConfig,
    average: Average,
    updates: usize,
}

thread_local! {
    static STATE: RefCell<Option<State>> = const { RefCell::new(None) };
}

/// Starts an average on all replicas, with the weights of the model.
///
/// # Errors
/// A replica failed.
pub fn start<T: Task>(config: EmaConfig) -> Result<()> {
    strategy()?
        .run_on_all(move |_| with_model::<T, _>(|model| start_from(config, Average::of(model))))?;
    Ok(())
}

/// Starts an average on this replica.
pub(crate) fn start_from(config: EmaConfig, average: Average) {
    note_change();
    STATE.set(Some(State {
        config,
        average,
        updates: [0, 0],
    }));
}

/// The weights of this replica for validation and test.
pub fn evaluated() -> Weights {
    let evaluated = |state: &Option<State>| state.as_ref().map(|state| state.config.evaluated);
    STATE.with_borrow(evaluated).unwrap_or(Weights::Model)
}

/// Averages the parameters after update number `step`, on a thread that has made this update.
///
/// # Errors
/// No model is registered.
pub(crate) fn update<T: Task>(step: usize) -> Result<()> {
    let Some(mut state) = STATE.take() else {
        return Ok(());
    };
    let decay = state.config.decay_at(step);
    with_model::<T, _>(|model| state.average.update_parameters(model, decay))??;
    state.updates[0] += 1;
    STATE.set(Some(state));
    Ok(())
}

/// Averages the running statistics of this replica, unless its last update was skipped.
///
/// # Errors
/// No model is registered.
pub(crate) fn update_statistics<T: Task>() -> Result<()> {
    let is_due = |state: &Option<State>| {
        state
            .as_ref()
            .is_some_and(|one| one.updates[0] != one.updates[1])
    };
    match STATE.with_borrow(is_due) {
        true => update_statistics_at::<T>(step()),
        false => Ok(()),
    }
}

/// Averages the running statistics of this replica, as after update number `step`.
///
/// # Errors
/// No model is registered.
pub(crate) fn update_statistics_at<T: Task>(step: usize) -> Result<()> {
    let Some(mut state) = STATE.take() else {
        return Ok(());
    };
    let decay = state.config.decay_at(step);
    with_model::<T, _>(|model| state.average.update_statistics(model, decay))??;
    state.updates[1] = state.updates[0];
    STATE.set(Some(state));
    Ok(())
}

/// The averaged statistics of this replica, concatenated.
///
/// # Errors
/// A device failed.
pub(crate) fn statistics() -> Result<Vec<f32>> {
    let statistics = STATE.with_borrow(|state| {
        let state = state.as_ref()?;
        Some(state.average.statistics().to_vec())
    });
    Ok(read_all(statistics.unwrap_or_default())?.concat())
}

/// The model with averaged weights, without autodiff; all replicas must call this.
///
/// # Errors
/// This training has no average, or another replica failed.
pub(crate) fn inference_model<T: Task>(replica: &ReplicaContext) -> Result<T::Model> {
    let mut statistics = statistics()?;
    if !statistics.is_empty() {
        replica.all_reduce(ReduceOp::Mean, &mut statistics)?;
    }
    STATE.with_borrow(|state| match state {
        Some(state) => with_model::<T, _>(|model| state.average.apply(model, &statistics)),
        None => bail!("this training averages no weights: it has no --ema"),
    })
}

/// The averaged parameters, for other replicas.
pub(crate) fn shared() -> Option<Shared> {
    STATE.with_borrow(|state| {
        let state = state.as_ref()?;
        Some(Shared {
            config: state.config,
            average: state.average.without_statistics(),
            updates: state.updates[0],
        })
    })
}

/// Drops the averaged parameters until those of another replica come: only tensors without other owners are
/// updated in place.
pub(crate) fn release() {
    STATE.with_borrow_mut(|state| {
        if let Some(state) = state {
            state.average.release_parameters();
        }
    });
}

impl Shared {
    /// A copy for a replica on `device`. On the CPU tensors are shared.
    ///
    /// # Errors
    /// A device failed.
    pub(crate) fn mirror(self, device: &Device) -> Result<Self> {
        let average = match *device == Device::flex() {
            true => self.average,
            false => self.average.copy()?,
        };
        Ok(Shared { average, ..self })
    }

    /// Registers the parameters on this thread. A replica keeps its own averaged statistics.
    pub(crate) fn register(self) {
        STATE.with_borrow_mut(|state| match state {
            Some(state) => {
                state.average.take_parameters(self.average);
                state.updates[0] = self.updates;
            }
            None => {
                *state = Some(State {
                    config: self.config,
                    average: self.average,
                    updates: [self.updates; 2],
                });
            }
        });
    }

    /// The values of all averaged parameters.
    ///
    /// # Errors
    /// A device failed.
    pub(crate) fn values(&self) -> Result<Vec<f32>> {
        self.average.values()
    }
}

/// Replaces the averaged parameters on this replica by `values` of another process.
///
/// # Errors
/// Their number differs.
pub(crate) fn load_values(values: &[f32]) -> Result<()> {
    STATE.with_borrow_mut(|state| match state {
        Some(state) => state.average.load_values(values),
        None => {
            ensure!(
                values.is_empty(),
                "another process averages its weights: give all processes the same --ema"
            );
            Ok(())
        }
    })
}

/// A copy of `model` with running statistics of its own.
pub(crate) fn separate<M: Module>(model: &M) -> M {
    // Clones of a model share their running statistics.
    model.valid().train()
}
