//! Per-replica state, registered by `main`, and the interface of this task to the engine.

use std::cell::RefCell;

use anyhow::Result;
use burn::tensor::{Device, Tensor};
pub use kiln_engine::globals::{Split, global_batch_size, register_strategy, step, strategy};
use kiln_engine::{
    Task,
    checkpoint::Best,
    globals::{self as engine, Registry},
    optim::{FlatGradients, NonFinite},
    picture::Sample,
    pipeline::Stage,
    replica::ReplicaState,
    weights::WeightNames,
};

use crate::{
    callbacks,
    dataset::{self, Batch, Example},
    loss::LossObjects,
    metric::{BEST, Metrics},
    model::{Model, Predictions, STAGES, Trainable, WEIGHT_NAMES},
    train,
};

/// The task of this crate.
pub struct Project;

thread_local! {
    // One registry per replica thread, so no lock is needed.
    static REGISTRY: RefCell<Registry<Project>> = RefCell::default();
}

impl Task for Project {
    type Example = Example;
    type Batch = Batch;
    type Predictions = Predictions;
    type LossObjects = LossObjects;
    type Metrics = Metrics;
    type Model = Model;
    type Trainable = Trainable;

    const STAGES: &'static [Stage<Model, Batch>] = STAGES;
    const WEIGHT_NAMES: WeightNames = WEIGHT_NAMES;
    const BEST: Best = BEST;
    const NON_FINITE: NonFinite = train::NON_FINITE;

    fn with_registry<R>(lend: impl FnOnce(&mut Registry<Self>) -> R) -> R {
        REGISTRY.with_borrow_mut(lend)
    }

    fn prepare_inputs(batch: Batch) -> Result<Batch> {
        callbacks::prepare_inputs(batch)
    }

    fn forward(model: &Model, batch: &Batch) -> Predictions {
        model.forward(batch)
    }

    fn train_loss(predictions: Predictions, batch: Batch) -> Result<Tensor<1>> {
        train::train_loss(predictions, batch)
    }

    fn update_gradients(gradients: &mut FlatGradients) -> Result<bool> {
        train::update_gradients(gradients)
    }

    fn is_trainable(parameter: &str, step: usize) -> bool {
        callbacks::is_trainable(parameter, step)
    }

    fn picture(example: &Example) -> Result<Option<Sample>> {
        dataset::picture(example)
    }
}

/// The loss objects of this replica.
pub fn loss_objects() -> Result<LossObjects> {
    engine::loss_objects::<Project>()
}

/// Calls `update` with this replica's metrics of one split.
pub fn with_metrics<T>(split: Split, update: impl FnOnce(&mut Metrics) -> T) -> Result<T> {
    engine::with_metrics::<Project, T>(split, update)
}

/// The model of this replica for training, with autodiff.
pub fn model() -> Result<Model> {
    engine::model::<Project>()
}

/// The predictions of the inference model for a prepared batch.
pub fn predict(batch: &Batch) -> Result<Predictions> {
    engine::predict::<Project>(&engine::inference_model::<Project>()?, batch)
}

impl ReplicaState<Project> for LossObjects {
    fn register(self) {
        engine::register_loss_objects::<Project>(self);
    }
}

impl ReplicaState<Project> for Metrics {
    fn register(self) {
        engine::register_metrics::<Project>(self);
    }
}

impl ReplicaState<Project> for Trainable {
    fn mirror(self, device: &Device) -> Result<Self> {
        engine::mirror_trainable::<Project>(self, device)
    }

    fn register(self) {
        engine::register_trainable::<Project>(self);
    }
}
