//! The interface between the engine and a task.

mod collate;
mod groups;
mod registry;

use anyhow::Result;
use burn::{module::Module, tensor::Tensor};

pub use collate::Collate;
pub(crate) use groups::assign_groups;
pub use registry::Registry;

use crate::{
    metric::{Best, Metric},
    optim::{FlatGradients, NonFinite, ScheduledOptimizer},
    picture::Sample,
    pipeline::{Activation, Stage},
};

/// Renames for names in files of other programs: pairs of a regular expression and its replacement, in which `$1`
/// is the first group. All are applied to each name, in order.
///
/// Source: [`burn_store::KeyRemapper`].
pub type WeightNames = &'static [(&'static str, &'static str)];

/// A task: its types, and the functions that the engine calls. A project implements it once.
pub trait Task: Sized + 'static {
    /// An element of a dataset.
    type Example: Clone + Send + 'static;
    /// The tensors of a replica's shard of a batch.
    type Batch: Collate<Example = Self::Example>;
    /// The output of the model for a batch, also that of its last pipeline stage.
    type Predictions: From<Activation>;
    /// The loss objects of a replica.
    type LossObjects: Clone + Send + 'static;
    /// The metrics of a split on one replica.
    type Metrics: Metrics;
    /// The model.
    type Model: Module + Clone + Send + 'static;
    /// The model with its optimizers.
    type Trainable: TrainState<Model = Self::Model>;

    /// The pipeline stages of the model under `model-parallel`.
    const STAGES: &'static [Stage<Self::Model, Self::Batch>];

    /// Renames of weights for `--init-from`.
    const WEIGHT_NAMES: WeightNames = &[];

    /// The validation metric that selects the best checkpoint.
    const BEST: Best;

    /// The policy for a validation loss that is not finite.
    const NON_FINITE: NonFinite;

    /// Calls `lend` with the registry of this thread. It is a `thread_local!` of the project, as Rust has
    /// no generic statics.
    fn with_registry<R>(lend: impl FnOnce(&mut Registry<Self>) -> R) -> R;

    /// Prepares a batch for the model, on its device.
    ///
    /// # Errors
    /// The batch does not fit the model.
    fn prepare_inputs(batch: Self::Batch) -> Result<Self::Batch> {
        Ok(batch)
    }

    /// The predictions for a prepared batch, by the whole model instead of its stages.
    fn forward(model: &Self::Model, batch: &Self::Batch) -> Self::Predictions;

    /// The loss, shape `[1]`, from the predictions for a prepared batch. Also updates the training metrics.
    ///
    /// # Errors
    /// The predictions do not match the batch.
    fn train_loss(predictions: Self::Predictions, batch: Self::Batch) -> Result<Tensor<1>>;

    /// Transforms the gradients, summed over replicas, before the update, as by clipping; false skips the
    /// update.
    ///
    /// # Errors
    /// A gradient is not finite.
    fn update_gradients(gradients: &mut FlatGradients) -> Result<bool>;

    /// Whether a parameter, such as `conv1.weight`, is trained by update number `step`, from 1.
    fn is_trainable(_parameter: &str, _step: usize) -> bool {
        true
    }

    /// FLOPs of training on one example, forward and backward, for `--throughput`; `None` for a count by layer,
    /// which is complete if layers with weights are called by the functions of [`layers`](crate::layers).
    fn flops_per_example() -> Option<f64> {
        None
    }

    /// Draws an example for the sheet of samples, with related pictures, such as a mask, in further panels;
    /// `None` if it cannot be shown.
    ///
    /// # Errors
    /// The example cannot be drawn.
    fn picture(_example: &Self::Example) -> Result<Option<Sample>> {
        Ok(None)
    }
}

/// The model of a replica, with its optimizers.
///
/// Source: `flax.training.train_state.TrainState`.
pub trait TrainState: Clone + Send + 'static {
    /// The model.
    type Model;

    /// The model that is trained.
    fn model(&self) -> &Self::Model;

    /// Replaces the model, as by one with the parameters of a checkpoint, and keeps the optimizers.
    #[must_use]
    fn with_model(self, model: Self::Model) -> Self;

    /// Applies one step of the optimizers, with gradients that are summed over replicas.
    #[must_use]
    fn update(self, gradients: FlatGradients) -> Self;

    /// All optimizers, with the names of their checkpoint files; their states are saved and restored.
    fn optimizers_mut(&mut self) -> Vec<(&'static str, &mut ScheduledOptimizer)>;
}

/// One model with the optimizer that updates it.
#[derive(Clone)]
pub struct ModelAndOptimizer<M> {
    /// The model.
    pub model: M,
    /// Its optimizer.
    pub optimizer: ScheduledOptimizer,
}

impl<M: Module + Clone + Send + 'static> TrainState for ModelAndOptimizer<M> {
    type Model = M;

    fn model(&self) -> &M {
        &self.model
    }

    fn with_model(self, model: M) -> Self {
        ModelAndOptimizer { model, ..self }
    }

    fn update(mut self, mut gradients: FlatGradients) -> Self {
        let gradients = gradients.take(&self.model);
        self.model = self.optimizer.update(self.model, gradients);
        self
    }

    fn optimizers_mut(&mut self) -> Vec<(&'static str, &mut ScheduledOptimizer)> {
        vec![("optimizer", &mut self.optimizer)]
    }
}

/// The metrics of a split on one replica.
pub trait Metrics: Clone + Send + 'static {
    /// All metrics, in the order of reports; the loss comes first.
    fn all(&mut self) -> Vec<&mut dyn Metric>;
}
