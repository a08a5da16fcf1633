//! Per-replica state, registered by `main`.
//!
//! A replica is a thread that lives as long as its strategy, so its loss objects, metrics, model and
//! optimizers are thread-local and need no lock; the thread of `main` holds the strategy. Several trainings
//! can thus run in one process, as in tests. State with types of the task is in a [`Registry`] of the
//! project; strategies access it without these types through the functions of [`erased`].

use std::{cell::RefCell, mem, sync::Arc};

use anyhow::{Context, Result, anyhow, ensure};
use burn::{
    module::Module,
    tensor::{Device, Tensor},
};

use crate::{
    comm::ReduceOp,
    ema::{self, Weights},
    metric::{MergedMetric, Metric, merge_metric_states, metric_results, metric_states},
    model::{
        TrainingLayers, freeze, has_running_statistics, load_parameters, load_running_statistics,
        named_parameters, parameters, running_statistics, set_training_layers, training_layers,
    },
    optim::{FlatGradients, NormCheck, assign_groups},
    pipeline::{ensure_split, place, run_stages},
    precision::{self, LossScale},
    replica::{ReplicaContext, ReplicaState, read_all, replica_context, updates_between_reads},
    strategy::Strategy,
    task::{Metrics, Task, TrainState},
};

/// A split of the data, with metrics of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Training data, for updates of the parameters.
    Train,
    /// Validation data, evaluated after each epoch.
    Validation,
    /// Test data, evaluated after training.
    Test,
}

impl Split {
    /// The name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
            Split::Test => "test",
        }
    }
}

/// The state with types of the task, one per thread.
pub struct Registry<T: Task> {
    loss_objects: Option<T::LossObjects>,
    metrics: Option<[T::Metrics; 3]>,
    trainable: Option<T::Trainable>,
    /// The model for validation and test, until the next update.
    inference: Option<T::Model>,
}

impl<T: Task> Default for Registry<T> {
    fn default() -> Self {
        Registry {
            loss_objects: None,
            metrics: None,
            trainable: None,
            inference: None,
        }
    }
}

/// The norm of an update's gradients on their device.
struct UnreadNorm {
    step: usize,
    /// The sums of squares whose sum is the square of the norm, shape `[buckets]`.
    squares: Tensor<1>,
    norm: NormCheck,
}

#[derive(Default)]
struct Globals {
    strategy: Option<Arc<dyn Strategy>>,
    global_batch_size: Option<usize>,
    /// Type-erased access to model and optimizers, once they are registered.
    access: Option<erased::Access>,
    /// The running statistics of a released model, for its replacement.
    released_statistics: Option<Vec<f32>>,
    /// Gradients accumulated over earlier batches of the same update.
    accumulated: Option<FlatGradients>,
    step: usize,
    /// The number of times that the model or an optimizer may have changed.
    revision: u64,
    /// The global norm of the gradients of the last update, before clipping.
    gradient_norm: Option<f64>,
    /// Those of the last updates that are still to be read from their device.
    unread_norms: Vec<UnreadNorm>,
    /// The gradients of the last update, for reports; shared by the replicas that share the update.
    last_gradients: Option<Arc<FlatGradients>>,
}

thread_local! {
    static GLOBALS: RefCell<Globals> = RefCell::default();
}

/// Bounded, as the plan of a batch is in memory.
const MAX_GLOBAL_BATCH_SIZE: usize = 1 << 20;

/// Registers the strategy and the global batch size: `batch_size` times the replicas in sync.
///
/// # Errors
/// A strategy is registered already, or the global batch is larger than 1,048,576 examples.
pub fn register_strategy(strategy: &Arc<dyn Strategy>, batch_size: usize) -> Result<()> {
    let replicas = strategy.num_replicas_in_sync();
    let global_batch_size = replicas
        .checked_mul(batch_size)
        .filter(|size| *size <= MAX_GLOBAL_BATCH_SIZE)
        .with_context(|| {
            format!(
                "--batch-size {batch_size} on {replicas} replicas makes a global batch of more than \
                 {MAX_GLOBAL_BATCH_SIZE} examples: use a smaller one, and --accumulate for larger updates"
            )
        })?;
    GLOBALS.with_borrow_mut(|globals| {
        ensure!(
            globals.strategy.is_none(),
            "a strategy is registered already"
        );
        globals.strategy = Some(Arc::clone(strategy));
        globals.global_batch_size = Some(global_batch_size);
        Ok(())
    })?;
    strategy.run_on_all(move |_| {
        GLOBALS.with_borrow_mut(|globals| globals.global_batch_size = Some(global_batch_size));
        Ok(())
    })?;
    Ok(())
}

/// The registered strategy; on the thread of `main` only.
///
/// # Errors
/// None is registered.
pub fn strategy() -> Result<Arc<dyn Strategy>> {
    GLOBALS.with_borrow(|globals| {
        globals.strategy.clone().context(
            "no strategy is registered on this thread: `create_strategy` (src/strategy.rs) makes \
             it and `globals::register_strategy` registers it, in step 1 of `main`",
        )
    })
}

/// Tells the other processes of the job that this one fails with `error`. Returns the message for the user;
/// `None` if another process is the cause and reports it.
pub fn fail(error: &anyhow::Error) -> Option<String> {
    let message = format!("{error:#}");
    let Ok(strategy) = strategy() else {
        return Some(message);
    };
    let workers = strategy.workers();
    match workers.fail(&message) {
        false => None,
        true if workers.count() == 1 => Some(message),
        true => Some(format!("{}: {message}", workers.name(workers.index()))),
    }
}

/// Examples in a full global batch, over all replicas.
///
/// # Errors
/// No strategy is registered.
pub fn global_batch_size() -> Result<usize> {
    GLOBALS.with_borrow(|globals| {
        globals.global_batch_size.context(
            "no global batch size is registered on this thread: `globals::register_strategy` \
             registers it, in step 1 of `main`",
        )
    })
}

/// Registers the loss objects of this replica.
pub fn register_loss_objects<T: Task>(loss_objects: T::LossObjects) {
    T::with_registry(|registry| registry.loss_objects = Some(loss_objects));
}

/// Registers the metrics of this replica, a copy for each split.
pub fn register_metrics<T: Task>(metrics: T::Metrics) {
    let of_splits = [metrics.clone(), metrics.clone(), metrics];
    T::with_registry(|registry| registry.metrics = Some(of_splits));
}

/// Registers the model and optimizers of this replica.
pub fn register_trainable<T: Task>(trainable: T::Trainable) {
    T::with_registry(|registry| {
        registry.trainable = Some(trainable);
        registry.inference = None;
    });
    note_change();
    GLOBALS.with_borrow_mut(|globals| globals.access = Some(erased::Access::of::<T>()));
    // The parameter server has a model, but no replica runs on its thread.
    let _ = update_draws_from_burn::<T>();
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

/// The loss objects of this replica.
///
/// # Errors
/// No loss objects are registered.
pub fn loss_objects<T: Task>() -> Result<T::LossObjects> {
    let loss_objects = T::with_registry(|registry| registry.loss_objects.clone());
    loss_objects.ok_or_else(|| unregistered("loss objects", "create_loss_objects", "loss", 2))
}

/// Calls `update` with this replica's metrics of one split.
///
/// # Errors
/// No metrics are registered.
pub fn with_metrics<T: Task, R>(
    split: Split,
    update: impl FnOnce(&mut T::Metrics) -> R,
) -> Result<R> {
    T::with_registry(|registry| {
        let metrics = registry.metrics.as_mut();
        let metrics =
            metrics.ok_or_else(|| unregistered("metrics", "create_metrics", "metric", 3))?;
        Ok(update(&mut metrics[split as usize]))
    })
}

/// Resets the metrics of `split` on all replicas.
///
/// # Errors
/// A replica failed.
pub fn reset_metrics<T: Task>(split: Split) -> Result<()> {
    strategy()?.run_on_all(move |_| {
        with_metrics::<T, _>(split, |metrics| {
            metrics.all().into_iter().for_each(Metric::reset)
        })
    })?;
    Ok(())
}

/// The metrics of `split`, merged over all replicas.
///
/// # Errors
/// A replica failed.
pub fn merged_metrics<T: Task>(split: Split) -> Result<Vec<MergedMetric>> {
    let strategy = strategy()?;
    let per_replica = strategy.run_on_all(move |_| {
        with_metrics::<T, _>(split, |metrics| metric_states(&metrics.all()))?
    })?;
    let states = strategy.gather_metric_states(per_replica)?;
    let mut merged =
        strategy.run_on_first(move |_| with_metrics::<T, _>(split, |metrics| metrics.clone()))?;
    let mut metrics = merged.all();
    metrics.iter_mut().for_each(|metric| metric.reset());
    merge_metric_states(&mut metrics, &states)?;
    Ok(metric_results(&metrics))
}

/// The model of this replica for training, with autodiff.
///
/// # Errors
/// No model is registered.
pub fn model<T: Task>() -> Result<T::Model> {
    with_model::<T, _>(T::Model::clone)
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

/// The number of updates of the parameters so far.
pub fn step() -> usize {
    GLOBALS.with_borrow(|globals| globals.step)
}

/// Sets the number of updates so far, as when a checkpoint is restored.
pub fn set_step(step: usize) {
    GLOBALS.with_borrow_mut(|globals| {
        globals.step = step;
        globals.gradient_norm = None;
    });
}

/// Records the global norm of the gradients of an update, before clipping, for reports.
pub fn set_gradient_norm(norm: f64) {
    GLOBALS.with_borrow_mut(|globals| globals.gradient_norm = Some(norm));
}

/// As [`set_gradient_norm`], with a norm that is read later, together with others: at the latest after
/// `updates_between_reads` updates, here.
///
/// # Errors
/// Those of [`read_gradient_norms`], if norms are read.
pub(crate) fn set_unread_gradient_norm(squares: Tensor<1>, norm: NormCheck) -> Result<()> {
    let unread = GLOBALS.with_borrow_mut(|globals| {
        let step = globals.step;
        globals.unread_norms.push(UnreadNorm {
            step,
            squares,
            norm,
        });
        globals.unread_norms.len()
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
/// The gradients of an update were not finite, and its [`NonFinite`](crate::optim::NonFinite) policy is an
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
    Ok(GLOBALS.with_borrow(|globals| globals.gradient_norm))
}

/// Reads `tensors` with the unread norms, and returns their values.
fn read_with_norms(tensors: Vec<Tensor<1>>) -> Result<Vec<Vec<f32>>> {
    let norms = GLOBALS.with_borrow_mut(|globals| mem::take(&mut globals.unread_norms));
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
/// No model is registered, and those of [`read_gradient_norms`].
pub(crate) fn last_update(tensors: Vec<Tensor<1>>) -> Result<(LastUpdate, Vec<Vec<f32>>)> {
    let values = read_with_norms(tensors)?;
    let update = LastUpdate {
        gradient_norm: gradient_norm()?,
        learning_rates: (erased::access()?.learning_rates)()?,
    };
    Ok((update, values))
}

/// Keeps the gradients of an epoch's last update for reports, and drops all others, as each would cost a
/// copy, unless the task set others in this update. A parameter server does not know the last update.
///
/// # Errors
/// No replica runs on this thread.
pub fn remember_gradients(gradients: &FlatGradients) -> Result<()> {
    if GLOBALS.with_borrow(|globals| globals.last_gradients.is_some()) {
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
    GLOBALS.with_borrow_mut(|globals| globals.last_gradients = gradients.map(Arc::new));
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
    GLOBALS.with_borrow(|globals| {
        let gradients = globals.last_gradients.iter().flat_map(|flat| flat.iter());
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
    GLOBALS.with_borrow_mut(|globals| globals.accumulated = Some(gradients));
}

/// Takes the accumulated gradients; `None` if there are none.
pub fn take_gradients() -> Option<FlatGradients> {
    GLOBALS.with_borrow_mut(|globals| globals.accumulated.take())
}

/// Replaces this replica's model and optimizers by the result of `update`.
///
/// They are moved, not cloned, so that the optimizer can reuse their memory; after an error they are lost,
/// and the training cannot continue.
///
/// # Errors
/// The error of `update`, or no model is registered.
pub fn update_trainable<T: Task>(
    update: impl FnOnce(T::Trainable) -> Result<T::Trainable>,
) -> Result<()> {
    let trainable = T::with_registry(|registry| registry.trainable.take());
    let updated = update(trainable.ok_or_else(no_trainable)?)?;
    T::with_registry(|registry| {
        registry.trainable = Some(updated);
        registry.inference = None;
    });
    note_change();
    Ok(())
}

/// Replaces this replica's model by the result of `update`; the optimizers stay.
///
/// # Errors
/// As [`update_trainable`].
pub fn update_model<T: Task>(update: impl FnOnce(T::Model) -> Result<T::Model>) -> Result<()> {
    update_trainable::<T>(|trainable| {
        let model = update(trainable.model().clone())?;
        Ok(trainable.with_model(model))
    })
}

/// Drops this replica's model and optimizers until a [`TrainingState`] is registered, which gets the
/// running statistics of the dropped model. Does nothing if they were dropped before.
///
/// # Errors
/// No model is registered.
pub fn release_trainable<T: Task>() -> Result<()> {
    if GLOBALS.with_borrow(|globals| globals.released_statistics.is_some()) {
        return Ok(());
    }
    let statistics = with_model::<T, _>(running_statistics)?;
    T::with_registry(|registry| {
        registry.trainable = None;
        registry.inference = None;
    });
    ema::release();
    GLOBALS.with_borrow_mut(|globals| globals.released_statistics = Some(statistics));
    Ok(())
}

/// Calls `change` with this replica's model and optimizers.
///
/// # Errors
/// No model is registered.
pub fn with_trainable<T: Task, R>(change: impl FnOnce(&mut T::Trainable) -> R) -> Result<R> {
    note_change();
    read_trainable::<T, R>(change)
}

/// As [`with_trainable`], of which `read` changes nothing: the optimizers of a [`TrainState`] can only be
/// borrowed as mutable.
pub(crate) fn read_trainable<T: Task, R>(read: impl FnOnce(&mut T::Trainable) -> R) -> Result<R> {
    T::with_registry(|registry| registry.trainable.as_mut().map(read)).ok_or_else(no_trainable)
}

/// Calls `read` with this replica's model.
///
/// # Errors
/// No model is registered.
pub fn with_model<T: Task, R>(read: impl FnOnce(&T::Model) -> R) -> Result<R> {
    read_trainable::<T, _>(|trainable| read(trainable.model()))
}

/// The number of times that model, optimizers or averages of this replica may have changed. While it stays
/// the same, a checkpoint of them is up to date, but for running statistics, which change in a forward pass.
pub(crate) fn revision() -> u64 {
    GLOBALS.with_borrow(|globals| globals.revision)
}

/// Notes that the model, an optimizer or the average of this replica may have changed.
pub(crate) fn note_change() {
    GLOBALS.with_borrow_mut(|globals| globals.revision += 1);
}

/// The error for a missing model and optimizer.
fn no_trainable() -> anyhow::Error {
    match GLOBALS.with_borrow(|globals| globals.released_statistics.is_some()) {
        true => anyhow!(
            "this replica's model waits for the update of the first one: `replica.update` \
             brings it, and comes right after `replica.reduce_gradients` (src/train.rs)"
        ),
        false => unregistered(
            "model and optimizer",
            "create_model_and_optimizer",
            "model",
            4,
        ),
    }
}

fn unregistered(what: &str, factory: &str, file: &str, step: usize) -> anyhow::Error {
    anyhow!(
        "no {what} registered on this thread: `{factory}` (src/{file}.rs) makes them and \
         `strategy.scope` registers them on each replica, in step {step} of `main`"
    )
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
    GLOBALS.with_borrow(|globals| {
        Ok(TrainingState {
            trainable,
            ema: ema::shared(),
            loss_scale: precision::loss_scale(),
            step: globals.step,
            last_gradients: globals.last_gradients.clone(),
        })
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
        let released = GLOBALS.with_borrow_mut(|globals| globals.released_statistics.take());
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
        GLOBALS.with_borrow_mut(|globals| {
            globals.step = self.step;
            globals.last_gradients = self.last_gradients;
        });
    }
}

/// Type-erased access to the model and optimizers of this thread, for strategies.
pub mod erased {
    use super::*;
    use crate::{
        bytes::{to_bytes, to_values},
        model::hash_parameters,
    };

    /// A [`TrainingState`] without the types of its task.
    pub trait State: Send {
        /// A clone with the same values.
        fn clone_state(&self) -> Box<dyn State>;

        /// Registers a mirrored copy for the replica of this thread, on `device`.
        ///
        /// # Errors
        /// The state cannot be copied to `device`.
        fn register_on(self: Box<Self>, device: &Device) -> Result<()>;

        /// Serializes the number of updates, the loss scale, the parameters and their averages, for [`load`] in
        /// another process.
        ///
        /// # Errors
        /// A device failed.
        fn to_bytes(&self) -> Result<Vec<u8>>;

        /// Whether the model has running statistics, which clones of it share.
        fn has_running_statistics(&self) -> bool;
    }

    impl<T: Task> State for TrainingState<T> {
        fn clone_state(&self) -> Box<dyn State> {
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

    /// Functions for the task that is registered on this thread.
    #[derive(Clone, Copy)]
    pub(super) struct Access {
        state: fn() -> Result<Box<dyn State>>,
        release: fn() -> Result<()>,
        parameters: fn() -> Result<Vec<f32>>,
        load_parameters: fn(&[f32]) -> Result<()>,
        hash_parameters: fn() -> Result<u64>,
        average_statistics: fn() -> Result<()>,
        gradients: fn(&[f32]) -> Result<FlatGradients>,
        pub(super) learning_rates: fn() -> Result<Vec<(&'static str, f64)>>,
    }

    impl Access {
        pub(super) fn of<T: Task>() -> Self {
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
    }

    pub(super) fn access() -> Result<Access> {
        GLOBALS
            .with_borrow(|globals| globals.access)
            .ok_or_else(no_trainable)
    }

    /// The training state of this replica.
    ///
    /// # Errors
    /// No model is registered.
    pub fn state() -> Result<Box<dyn State>> {
        (access()?.state)()
    }

    /// As [`release_trainable`].
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

    /// Loads the number of updates, the loss scale, the parameters and their averages of a replica in another
    /// process on this replica.
    ///
    /// # Errors
    /// The parameters do not match the model.
    pub fn load(bytes: &[u8]) -> Result<()> {
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
        load_at(step, parameters)?;
        ema::load_values(averages)
    }

    /// The gradients of the model from the concatenated values of all parameters' gradients.
    ///
    /// # Errors
    /// The values do not match the model.
    pub fn gradients(values: &[f32]) -> Result<FlatGradients> {
        (access()?.gradients)(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{strategy::MirroredStrategy, test_task::Line};

    #[test]
    fn a_global_batch_that_is_too_large_is_refused() {
        let devices = vec![Device::flex(); 2];
        let strategy: Arc<dyn Strategy> = Arc::new(MirroredStrategy::new(devices, None).unwrap());
        for batch_size in [usize::MAX, usize::MAX / 2, MAX_GLOBAL_BATCH_SIZE / 2 + 1] {
            let error = register_strategy(&strategy, batch_size).unwrap_err();
            let expected = format!("--batch-size {batch_size} on 2 replicas makes a global batch");
            assert!(error.to_string().starts_with(&expected), "{error}");
        }
        register_strategy(&strategy, MAX_GLOBAL_BATCH_SIZE / 2).unwrap();
        assert_eq!(global_batch_size().unwrap(), MAX_GLOBAL_BATCH_SIZE);
    }

    #[test]
    fn what_is_not_registered_is_named_with_its_factory() {
        let errors = [
            (
                strategy().err().unwrap(),
                "`create_strategy` (src/strategy.rs)",
            ),
            (
                global_batch_size().unwrap_err(),
                "`globals::register_strategy`",
            ),
            (
                loss_objects::<Line>().unwrap_err(),
                "`create_loss_objects` (src/loss.rs)",
            ),
            (
                with_metrics::<Line, _>(Split::Test, |_| ()).unwrap_err(),
                "`create_metrics` (src/metric.rs)",
            ),
            (
                model::<Line>().unwrap_err(),
                "`create_model_and_optimizer` (src/model.rs)",
            ),
        ];
        for (error, factory) in errors {
            assert!(error.to_string().contains(factory), "{error}");
        }
    }
}
