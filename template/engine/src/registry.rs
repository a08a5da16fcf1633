//! What `main` registers: the strategy and the global batch size, and on each replica the loss objects, metrics,
//! model and optimizers of the task.
//!
//! A replica is a thread that lives as long as its strategy, so what it registers is thread-local and needs no lock;
//! the thread of `main` holds the strategy. Several trainings can thus run in one process, as in tests.

use std::{cell::RefCell, sync::Arc};

use anyhow::{Context, Result, anyhow, ensure};

use crate::{
    distribution::Strategy,
    erased::{no_model, unregistered},
    metric::{MergedMetric, Metric, merge_metric_states, metric_results, metric_states},
    split::Split,
    task::{Metrics, Task, TrainState},
};

#[derive(Default)]
struct Registered {
    strategy: Option<Arc<dyn Strategy>>,
    global_batch_size: Option<usize>,
    /// The running statistics of a released model, for its replacement.
    released_statistics: Option<Vec<f32>>,
    /// The number of times that the model or an optimizer may have changed.
    revision: u64,
}

thread_local! {
    static REGISTERED: RefCell<Registered> = RefCell::default();
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
    REGISTERED.with_borrow_mut(|registered| {
        ensure!(
            registered.strategy.is_none(),
            "a strategy is registered already"
        );
        registered.strategy = Some(Arc::clone(strategy));
        registered.global_batch_size = Some(global_batch_size);
        Ok(())
    })?;
    strategy.run_on_all(move |_| {
        REGISTERED
            .with_borrow_mut(|registered| registered.global_batch_size = Some(global_batch_size));
        Ok(())
    })?;
    Ok(())
}

/// The registered strategy; on the thread of `main` only.
///
/// # Errors
/// None is registered.
pub fn strategy() -> Result<Arc<dyn Strategy>> {
    REGISTERED.with_borrow(|registered| {
        registered.strategy.clone().context(
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
    REGISTERED.with_borrow(|registered| {
        registered.global_batch_size.context(
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

/// The number of times that model, optimizers or averages of this replica may have changed. While it stays
/// the same, a checkpoint of them is up to date, but for running statistics, which change in a forward pass.
pub(crate) fn revision() -> u64 {
    REGISTERED.with_borrow(|registered| registered.revision)
}

/// Notes that the model, an optimizer or the average of this replica may have changed.
pub(crate) fn note_change() {
    REGISTERED.with_borrow_mut(|registered| registered.revision += 1);
}

/// The error for a missing model and optimizer.
fn no_trainable() -> anyhow::Error {
    match is_released() {
        true => anyhow!(
            "this replica's model waits for the update of the first one: `replica.update` \
             brings it, and comes right after `replica.reduce_gradients` (src/train.rs)"
        ),
        false => no_model(),
    }
}

/// Whether this replica's model was dropped until that of another one comes.
pub(crate) fn is_released() -> bool {
    REGISTERED.with_borrow(|registered| registered.released_statistics.is_some())
}

/// Notes that this replica's model was dropped, and keeps its running statistics.
pub(crate) fn note_released(statistics: Vec<f32>) {
    REGISTERED.with_borrow_mut(|registered| registered.released_statistics = Some(statistics));
}

/// Takes the running statistics of the dropped model; `None` if none was dropped.
pub(crate) fn take_released() -> Option<Vec<f32>> {
    REGISTERED.with_borrow_mut(|registered| registered.released_statistics.take())
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

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
