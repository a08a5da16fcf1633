//! A small task for tests of the engine: a line through points.

use std::{cell::RefCell, sync::Arc};

use anyhow::Result;
use burn::{
    module::{Initializer, Module, Param},
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor, TensorData},
};
use clap::Parser;

use crate::{
    checkpoint::{Best, Goal},
    data::{Collate, Dataset, Datasets},
    globals::{self, Registry},
    loss::Losses,
    metric::{Mean, Metric},
    optim::{AdamConfig, FlatGradients, Gradients, NonFinite, ScheduledOptimizer},
    options::{Command, Options},
    pipeline::Stage,
    replica::{ReplicaState, replica_context},
    strategy::{Strategy, create_strategy, devices_of},
    task::{Metrics, ModelAndOptimizer, Task},
};

#[derive(Parser, Clone, Debug)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    pub options: Options,
}

/// Parses options.
pub fn options(words: &[&str]) -> Options {
    Cli::parse_from([&["test"], words].concat()).options
}

pub struct Line;

thread_local! {
    static REGISTRY: RefCell<Registry<Line>> = RefCell::default();
}

impl Task for Line {
    type Example = f32;
    type Batch = Points;
    type Predictions = Tensor<2>;
    type LossObjects = ();
    type Metrics = Mean;
    type Model = Layers;
    type Trainable = Trainable;

    const STAGES: &'static [Stage<Layers, Points>] = &[Stage {
        layers: &["hidden", "output"],
        forward: |model, batch, _| model.forward(batch.values.clone()).into(),
    }];
    const BEST: Best = Best {
        metric: "loss",
        goal: Goal::Lowest,
    };
    const NON_FINITE: NonFinite = NonFinite::Error;

    fn with_registry<R>(lend: impl FnOnce(&mut Registry<Self>) -> R) -> R {
        REGISTRY.with_borrow_mut(lend)
    }

    fn forward(model: &Layers, batch: &Points) -> Tensor<2> {
        model.forward(batch.values.clone())
    }

    fn train_loss(predictions: Tensor<2>, batch: Points) -> Result<Tensor<1>> {
        loss(&predictions, &batch)
    }

    fn update_gradients(gradients: &mut FlatGradients) -> Result<bool> {
        gradients.handle_non_finite(NonFinite::Error)
    }
}

impl Metrics for Mean {
    fn all(&mut self) -> Vec<&mut dyn Metric> {
        vec![self]
    }
}

/// A batch `[batch, 2]`: the same coordinate twice.
#[derive(Module, Debug)]
pub struct Points {
    pub values: Tensor<2>,
}

impl Collate for Points {
    type Example = f32;

    fn collate(examples: Vec<f32>, device: &Device) -> Result<Self> {
        let len = examples.len();
        let values: Vec<f32> = examples.into_iter().flat_map(|x| [x, x]).collect();
        let values = TensorData::new(values, [len, 2]);
        Ok(Points {
            values: Tensor::from_data(values, device),
        })
    }

    /// One for each coordinate.
    fn tokens(&self) -> Option<usize> {
        Some(self.values.shape().num_elements())
    }
}

#[derive(Module, Debug)]
pub struct Layers {
    hidden: Linear,
    output: Param<Tensor<2>>,
}

impl Layers {
    /// From `[batch, 2]` to `[batch, 1]`.
    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        self.hidden.forward(x).matmul(self.output.val())
    }
}

pub type Trainable = ModelAndOptimizer<Layers>;

impl ReplicaState<Line> for Trainable {
    fn mirror(self, device: &Device) -> Result<Self> {
        globals::mirror_trainable::<Line>(self, device)
    }

    fn register(self) {
        globals::register_trainable::<Line>(self);
    }
}

impl ReplicaState<Line> for Mean {
    fn register(self) {
        globals::register_metrics::<Line>(self);
    }
}

/// Creates model and optimizer, with fixed parameters: concurrent tests share Burn's random number
/// generator.
pub fn create_trainable(device: &Device) -> Trainable {
    let output = Initializer::Constant { value: 0.25 };
    let hidden = LinearConfig::new(2, 300).with_initializer(Initializer::Constant { value: 0.1 });
    let model = Layers {
        hidden: hidden.init(device),
        output: output.init([300, 1], device),
    };
    let optimizer = ScheduledOptimizer::new(AdamConfig::new().init(), 1e-3);
    Trainable { model, optimizer }
}

/// Registers `strategy`, with model, optimizer and metrics on each replica.
pub fn register(strategy: &Arc<dyn Strategy>, options: &Options) -> Result<()> {
    globals::register_strategy(strategy, options.batch_size)?;
    strategy.scope(|_| Ok(Mean::new("loss")))?;
    strategy.scope(|device| Ok(create_trainable(device)))
}

/// Creates and registers the strategy of the options, on the CPU.
pub fn set_up(options: &Options) -> Result<Arc<dyn Strategy>> {
    let strategy = create_strategy::<Line>(options, |options, workers| {
        let device = devices_of(options, workers)?.remove(0);
        Ok(vec![device; options.replicas.unwrap_or(1)])
    })?;
    register(&strategy, options)?;
    Ok(strategy)
}

/// Examples in [0, 1).
struct Examples(usize);

impl Dataset for Examples {
    type Example = f32;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<f32> {
        Ok(index as f32 / self.0 as f32)
    }
}

/// Datasets with `examples` training examples, and fewer for validation and test.
pub fn datasets(options: &Options, examples: usize) -> Result<Datasets<f32>> {
    let splits = [examples, examples / 2, examples / 4];
    let splits = splits.map(|len| Arc::new(Examples(len)) as Arc<dyn Dataset<Example = f32>>);
    Datasets::distribute(options, splits, |example, _| Ok(example))
}

/// The replica's share of the loss of the global batch, shape `[1]`.
fn loss(predictions: &Tensor<2>, batch: &Points) -> Result<Tensor<1>> {
    let [rows, _] = batch.values.dims();
    let labels = batch.values.clone().narrow(1, 0, 1).mul_scalar(3.0); // [batch, 1]
    let squares = (predictions.clone() - labels).square().reshape([rows]); // [batch]
    Ok(squares.sum() / replica_context()?.examples_in_update().max(1) as f64)
}

/// The losses and gradients of a replica's shard of a batch.
pub fn train_step(batch: Points) -> Result<(Losses, Gradients)> {
    let model = globals::model::<Line>()?;
    let loss = loss(&model.forward(batch.values.clone()), &batch)?;
    let gradients = burn::optim::GradientsParams::from_grads(loss.backward(), &model);
    Ok((
        Losses::new().with("loss", &loss),
        Gradients::new().with(gradients),
    ))
}
