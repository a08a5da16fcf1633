//! What the steps reach by name: registered once, by `main`, and then never passed along.
//!
//! Everything is kept by thread. A replica is a thread that lives as long as its strategy, so its
//! losses, metrics, model and optimizer are its own without a lock; the thread of `main` keeps the
//! strategy. Several trainings can so run in one process, as the tests do.

use std::{cell::RefCell, sync::Arc};

use anyhow::{Context, Result, anyhow, ensure};
use burn::{module::Module, tensor::Device};

use crate::{
    distribute::{
        FlatGradients, ReduceOp, ReplicaContext, ReplicaState, Strategy, ensure_split,
        has_running_statistics, load_parameters, load_running_statistics, named_parameters,
        parameters, place, replica_context, running_statistics,
    },
    loss::LossObjects,
    metric::{Metrics, SplitMetrics},
    model::{Model, STAGES, Trainable},
};

/// The parts of the data, each with metrics of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    Train,
    Validation,
    Test,
}

impl Split {
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
            Split::Test => "test",
        }
    }
}

#[derive(Default)]
struct Globals {
    strategy: Option<Arc<dyn Strategy>>,
    global_batch_size: Option<usize>,
    loss_objects: Option<LossObjects>,
    metrics: Option<Metrics>,
    trainable: Option<Trainable>,
    /// The running statistics of a model that was released, for the one that takes its place.
    released_statistics: Option<Vec<f32>>,
    /// The gradients of earlier batches that belong to the same update.
    accumulated: Option<FlatGradients>,
    /// The model as validation and test use it, until the next update.
    inference: Option<Model>,
    step: usize,
    /// The global norm of the gradients of the last update, before clipping.
    gradient_norm: Option<f64>,
    /// The gradients of the last update, for reports; shared by the replicas that share the update.
    last_gradients: Option<Arc<FlatGradients>>,
}

impl Globals {
    /// Why there are no model and optimizer.
    fn no_trainable(&self) -> anyhow::Error {
        match self.released_statistics {
            Some(_) => anyhow!(
                "this replica's model waits for the update of the first one: `replica.update` \
                 brings it, and comes right after `replica.reduce_gradients` (src/train.rs)"
            ),
            None => unregistered(
                "model and optimizer",
                "create_model_and_optimizer",
                "model",
                4,
            ),
        }
    }
}

thread_local! {
    static GLOBALS: RefCell<Globals> = RefCell::default();
}

/// The plan of a batch is in memory before its examples are.
const MAX_GLOBAL_BATCH_SIZE: usize = 1 << 20;

/// Registers the strategy, and with it the global batch size: replicas times `batch_size`.
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

/// The strategy; on the thread of `main` only.
pub fn strategy() -> Result<Arc<dyn Strategy>> {
    GLOBALS.with_borrow(|globals| {
        globals.strategy.clone().context(
            "no strategy is registered on this thread: `create_strategy` (src/strategy.rs) makes \
             it and `globals::register_strategy` registers it, in step 1 of `main`",
        )
    })
}

/// Tells the other processes of the job that this one ends with `error`, and gives what the user is
/// to be told here; nothing where another process is the cause, which tells it.
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
pub fn global_batch_size() -> Result<usize> {
    GLOBALS.with_borrow(|globals| {
        globals.global_batch_size.context(
            "no global batch size is registered on this thread: `globals::register_strategy` \
             registers it, in step 1 of `main`",
        )
    })
}

/// The loss objects of this replica.
pub fn loss_objects() -> Result<LossObjects> {
    GLOBALS.with_borrow(|globals| {
        globals
            .loss_objects
            .clone()
            .ok_or_else(|| unregistered("loss objects", "create_loss_objects", "loss", 2))
    })
}

/// Gives `update` this replica's metrics of one split.
pub fn with_metrics<T>(split: Split, update: impl FnOnce(&mut SplitMetrics) -> T) -> Result<T> {
    GLOBALS.with_borrow_mut(|globals| {
        let metrics = globals.metrics.as_mut();
        let metrics =
            metrics.ok_or_else(|| unregistered("metrics", "create_metrics", "metric", 3))?;
        Ok(update(metrics.split_mut(split)))
    })
}

/// The model of this replica, as it trains.
pub fn model() -> Result<Model> {
    with_model(Model::clone)
}

/// Makes the model for validation and test: nothing is recorded for gradients, and running
/// statistics, as of batch normalisation, are the mean over all replicas, which must all call this.
/// The model that trains keeps its own.
///
/// # Errors
/// Another replica failed.
pub fn prepare_inference(replica: &ReplicaContext) -> Result<()> {
    let mut model = with_model(Model::valid)?;
    let mut statistics = with_model(running_statistics)?;
    if !statistics.is_empty() {
        replica.all_reduce(ReduceOp::Mean, &mut statistics)?;
        model = with_model(|model| load_running_statistics(model, &statistics))?.valid();
    }
    GLOBALS.with_borrow_mut(|globals| globals.inference = Some(model));
    Ok(())
}

/// The model that [`prepare_inference`] made on this replica.
pub fn inference_model() -> Result<Model> {
    GLOBALS.with_borrow(|globals| {
        globals.inference.clone().context(
            "no model is prepared for inference on this thread: \
             `strategy.run_on_all(globals::prepare_inference)` does so after training",
        )
    })
}

/// Updates of the parameters so far.
pub fn step() -> usize {
    GLOBALS.with_borrow(|globals| globals.step)
}

/// Sets the number of updates so far, as a checkpoint does.
pub fn set_step(step: usize) {
    GLOBALS.with_borrow_mut(|globals| {
        globals.step = step;
        globals.gradient_norm = None;
    });
}

/// Notes the global norm of the gradients of an update for reports, before they are clipped.
pub fn set_gradient_norm(norm: f64) {
    GLOBALS.with_borrow_mut(|globals| globals.gradient_norm = Some(norm));
}

/// That of the last update, where `FlatGradients::handle_non_finite` saw its gradients.
pub fn gradient_norm() -> Option<f64> {
    GLOBALS.with_borrow(|globals| globals.gradient_norm)
}

/// What reports say of an update.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LastUpdate {
    /// As [`gradient_norm`] has it.
    pub gradient_norm: Option<f64>,
    /// Of each optimizer.
    pub learning_rates: Vec<(&'static str, f64)>,
}

/// The last update that this thread made.
pub fn last_update() -> Result<LastUpdate> {
    Ok(LastUpdate {
        gradient_norm: gradient_norm(),
        learning_rates: learning_rates()?,
    })
}

/// Keeps the gradients of an epoch's last update for reports, and none of the others: that would take a
/// copy in each step. A parameter server cannot tell which update is the last.
///
/// # Errors
/// This thread is no replica's.
pub fn remember_gradients(gradients: &FlatGradients) -> Result<()> {
    let batch = replica_context()?.batch();
    let is_last = batch.is_none_or(|batch| batch.ends_epoch);
    set_last_gradients(is_last.then(|| gradients.clone()));
    Ok(())
}

/// Keeps the gradients of an update for reports, or drops those of an earlier one.
pub fn set_last_gradients(gradients: Option<FlatGradients>) {
    GLOBALS.with_borrow_mut(|globals| globals.last_gradients = gradients.map(Arc::new));
}

/// The values of each parameter, and those of its gradient where the last update kept them, by name.
pub fn weights_and_gradients() -> Result<Vec<(String, Vec<f32>)>> {
    let mut values = with_model(named_parameters)?;
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

/// The learning rate of the last update of each optimizer.
pub fn learning_rates() -> Result<Vec<(&'static str, f64)>> {
    with_trainable(|trainable| {
        let optimizers = trainable.optimizers_mut().into_iter();
        optimizers
            .map(|(name, optimizer)| (name, optimizer.learning_rate()))
            .collect()
    })
}

/// Keeps gradients for a later batch of the same update.
pub fn keep_gradients(gradients: FlatGradients) {
    GLOBALS.with_borrow_mut(|globals| globals.accumulated = Some(gradients));
}

/// Takes the gradients that were kept.
pub fn take_gradients() -> Option<FlatGradients> {
    GLOBALS.with_borrow_mut(|globals| globals.accumulated.take())
}

/// Replaces this replica's model and optimizer by what `update` makes of them.
///
/// They are moved and not cloned, so that the optimizer can reuse their memory; after an error they
/// are gone, and with them the training.
pub fn update_trainable(update: impl FnOnce(Trainable) -> Result<Trainable>) -> Result<()> {
    let trainable = GLOBALS.with_borrow_mut(|globals| globals.trainable.take());
    let trainable = trainable.ok_or_else(|| GLOBALS.with_borrow(Globals::no_trainable))?;
    let updated = update(trainable)?;
    GLOBALS.with_borrow_mut(|globals| {
        globals.trainable = Some(updated);
        globals.inference = None;
    });
    Ok(())
}

/// Gives up this replica's model and optimizer until a [`TrainingState`] is registered, which gets the
/// running statistics of this model; nothing where they were given up before.
pub fn release_trainable() -> Result<()> {
    if GLOBALS.with_borrow(|globals| globals.released_statistics.is_some()) {
        return Ok(());
    }
    let statistics = with_model(running_statistics)?;
    GLOBALS.with_borrow_mut(|globals| {
        globals.trainable = None;
        globals.inference = None;
        globals.released_statistics = Some(statistics);
    });
    Ok(())
}

/// Gives `read` this replica's model and optimizers.
pub fn with_trainable<T>(read: impl FnOnce(&mut Trainable) -> T) -> Result<T> {
    GLOBALS.with_borrow_mut(|globals| match &mut globals.trainable {
        Some(trainable) => Ok(read(trainable)),
        None => Err(globals.no_trainable()),
    })
}

/// Gives `read` this replica's model.
pub fn with_model<T>(read: impl FnOnce(&Model) -> T) -> Result<T> {
    GLOBALS.with_borrow(|globals| match &globals.trainable {
        Some(trainable) => Ok(read(&trainable.model)),
        None => Err(globals.no_trainable()),
    })
}

fn unregistered(what: &str, factory: &str, file: &str, step: usize) -> anyhow::Error {
    anyhow!(
        "no {what} registered on this thread: `{factory}` (src/{file}.rs) makes them and \
         `strategy.scope` registers them on each replica, in step {step} of `main`"
    )
}

/// What an update changes: model, optimizer and the number of updates, with the last gradients.
#[derive(Clone)]
pub struct TrainingState {
    trainable: Trainable,
    step: usize,
    last_gradients: Option<Arc<FlatGradients>>,
}

/// That of this replica.
pub fn training_state() -> Result<TrainingState> {
    let trainable = with_trainable(|trainable| trainable.clone())?;
    GLOBALS.with_borrow(|globals| {
        Ok(TrainingState {
            trainable,
            step: globals.step,
            last_gradients: globals.last_gradients.clone(),
        })
    })
}

impl TrainingState {
    /// The number of updates and the parameters, for [`load_training`] in another process.
    pub fn to_bytes(&self) -> Vec<u8> {
        let values = parameters(&self.trainable.model);
        let mut bytes = (self.step as u64).to_le_bytes().to_vec();
        bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
        bytes
    }

    /// Whether the model has running statistics, which clones of it share.
    pub fn has_running_statistics(&self) -> bool {
        has_running_statistics(&self.trainable.model)
    }
}

/// Gives this replica the number of updates and the parameters of one in another process.
///
/// # Errors
/// They are of another model.
pub fn load_training(bytes: &[u8]) -> Result<()> {
    let (step, values) = bytes
        .split_first_chunk()
        .context("a process sent no parameters")?;
    let words = values.as_chunks().0.iter();
    let values: Vec<f32> = words.map(|word| f32::from_le_bytes(*word)).collect();
    set_step(u64::from_le_bytes(*step) as usize);
    update_trainable(|mut trainable| {
        trainable.model = load_parameters(trainable.model, &values)?;
        Ok(trainable)
    })
}

impl ReplicaState for TrainingState {
    fn mirror(self, device: &Device) -> Result<Self> {
        Ok(TrainingState {
            trainable: self.trainable.mirror(device)?,
            ..self
        })
    }

    /// The running statistics of a replica stay its own.
    fn register(mut self) {
        let released = GLOBALS.with_borrow_mut(|globals| globals.released_statistics.take());
        let own = released.or_else(|| with_model(running_statistics).ok());
        if let Some(statistics) = own.filter(|statistics| !statistics.is_empty()) {
            let model = &mut self.trainable.model;
            *model = load_running_statistics(model, &statistics);
        }
        GLOBALS.with_borrow_mut(|globals| {
            globals.trainable = Some(self.trainable);
            globals.step = self.step;
            globals.last_gradients = self.last_gradients;
            globals.inference = None;
        });
    }
}

impl ReplicaState for LossObjects {
    fn register(self) {
        GLOBALS.with_borrow_mut(|globals| globals.loss_objects = Some(self));
    }
}

impl ReplicaState for Metrics {
    fn register(self) {
        GLOBALS.with_borrow_mut(|globals| globals.metrics = Some(self));
    }
}

impl ReplicaState for Trainable {
    /// The same ids and values, with an autodiff graph of its own, and running statistics, which `valid`
    /// copies where a clone would share them.
    fn mirror(self, device: &Device) -> Result<Self> {
        let mut model = self.model.valid().train();
        if model.devices() != [device.clone()] {
            model = model.fork(device);
        }
        if let Some(pipeline) = replica_context()?.pipeline() {
            ensure_split(&model, STAGES)?;
            model = place(model, STAGES, pipeline.devices());
        }
        // On the CPU tensors may be shared. Replicas that share a GPU run on streams of their own there, and
        // one would update in place what another one still reads.
        if *device != Device::flex() {
            model = load_parameters(model, &parameters(&self.model))?;
        }
        Ok(Trainable { model, ..self })
    }

    fn register(self) {
        GLOBALS.with_borrow_mut(|globals| globals.trainable = Some(self));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribute::MirroredStrategy;

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
                loss_objects().unwrap_err(),
                "`create_loss_objects` (src/loss.rs)",
            ),
            (
                with_metrics(Split::Test, |_| ()).unwrap_err(),
                "`create_metrics` (src/metric.rs)",
            ),
            (
                model().unwrap_err(),
                "`create_model_and_optimizer` (src/model.rs)",
            ),
        ];
        for (error, factory) in errors {
            assert!(error.to_string().contains(factory), "{error}");
        }
    }
}
