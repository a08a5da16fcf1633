//! A small task for tests of the engine: a line through points.

use std::{
    cell::RefCell,
    path::Path,
    sync::{Arc, Mutex},
    thread,
};

use anyhow::Result;
use burn::{
    module::{Initializer, Module, Param},
    nn::{Linear, LinearConfig},
    tensor::{Device, Tensor, TensorData},
};
use clap::Parser;
use indexmap::IndexMap;

use crate::{
    Split,
    checkpoint::{Best, Checkpoints, Goal, Which},
    data::{Collate, Dataset, Datasets, Shard},
    globals::{self, Registry, erased},
    loss::Losses,
    metric::{Mean, Metric},
    model::parameters,
    optim::{AdamConfig, FlatGradients, Gradients, NonFinite, ScheduledOptimizer},
    options::{Command, Options, StrategyKind},
    pipeline::Stage,
    precision::{LossScale, loss_scale},
    replica::{ReplicaState, replica_context},
    report::Report,
    strategy::{Strategy, create_strategy, devices_of},
    task::{Metrics, ModelAndOptimizer, Task},
    training::{Callbacks, Evaluation, Training, apply_gradients, train_shard},
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

    const STAGES: &'static [Stage<Layers, Points>] = &[
        Stage {
            layers: &["hidden"],
            forward: |model, batch, _| model.hidden.forward(batch.values.clone()).into(),
        },
        Stage {
            layers: &["output"],
            forward: |model, _, x| x.tensor::<2>().matmul(model.output.val()).into(),
        },
    ];
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
        let stages = match options.strategy {
            StrategyKind::ModelParallel => Line::STAGES.len(),
            _ => 1,
        };
        Ok(vec![device; options.replicas.unwrap_or(1) * stages])
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
    Datasets::distribute(options, splits(examples), |example, _| Ok(example))
}

fn splits(examples: usize) -> [Arc<dyn Dataset<Example = f32>>; 3] {
    let splits = [examples, examples / 2, examples / 4];
    splits.map(|len| Arc::new(Examples(len)) as Arc<dyn Dataset<Example = f32>>)
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

/// A replica's part of a training step.
pub fn replica_step(shard: Shard<f32>) -> Result<Losses> {
    let (losses, gradients) = train_shard::<Line>(shard, train_step)?;
    apply_gradients::<Line>(gradients)?;
    Ok(losses)
}

/// Trains with `step` on each replica, and validates after each epoch.
pub fn train(
    options: &Options,
    datasets: &Datasets<f32>,
    callbacks: Callbacks<Report>,
    step: impl Fn(Shard<f32>) -> Result<Losses> + Clone + Send + 'static,
) -> Result<()> {
    let mut report = Report::new(options)?;
    let mut training = Training::<Line>::start(options, datasets, &mut report, callbacks)?;
    while training.has_epochs_left() {
        let mut batches = training.begin_epoch();
        while let Some(inputs) = training.next_batch(&mut batches) {
            training.step(inputs, |inputs| {
                globals::strategy()?.train(inputs, step.clone())
            })?;
        }
        training.end_epoch(|progress, data, report| {
            let validation = Evaluation::<Line>::start(Split::Validation, 1, data, report)?;
            validation.end(progress.step)?;
            Ok(Some(IndexMap::new()))
        })?;
    }
    training.end().map(drop)
}

/// The result of `train` with the options `words`, of which the last is the output folder. It has a
/// thread of its own, as the registry is per thread.
pub fn on_a_thread<R: Send>(
    output: &Path,
    words: &[&str],
    train: impl FnOnce(&Options) -> Result<R> + Send,
) -> Result<R> {
    let folder = output.to_string_lossy();
    let options = options(&[words, &["--output-dir", &*folder]].concat());
    thread::scope(|scope| scope.spawn(|| train(&options)).join().unwrap())
}

/// The step and the augmentation of a training.
#[derive(Clone, Copy)]
pub struct Recipe {
    /// The step of a replica.
    pub step: fn(Shard<f32>) -> Result<Losses>,
    /// Transforms training examples.
    pub augment: fn(f32) -> f32,
}

/// A training without anything special.
pub const PLAIN: Recipe = Recipe {
    step: replica_step,
    augment: |example| example,
};

/// One example, the first, has gradients that are not finite.
pub const OVERFLOWING: Recipe = Recipe {
    step: |shard| {
        replica_step(shard)?;
        Ok(Losses::new())
    },
    augment: |example| if example == 0.0 { 1e30 } else { example },
};

/// Results of a training.
#[derive(Clone, Debug, PartialEq)]
pub struct Trained {
    /// A hash of the parameters after each update.
    pub hashes: Vec<u64>,
    /// The parameters at the end.
    pub parameters: Vec<f32>,
    /// The loss scale of each replica of this process.
    pub scales: Vec<Option<LossScale>>,
    /// The hash of the parameters and the loss scale of the last checkpoint.
    pub saved: (String, Option<LossScale>),
}

/// Trains on 40 examples, on a thread of its own, as the registry is per thread.
///
/// # Errors
/// Those of the training.
pub fn train_by(recipe: Recipe, output: &Path, words: &[&str]) -> Result<Trained> {
    let words = [words, &["--batch-size", "4"]].concat();
    on_a_thread(output, &words, |options| {
        train_here(&set_up(options)?, options, recipe)
    })
}

/// As [`train_by`], on the thread of the registered `strategy`.
pub fn train_here(
    strategy: &Arc<dyn Strategy>,
    options: &Options,
    recipe: Recipe,
) -> Result<Trained> {
    let augment = recipe.augment;
    let datasets = Datasets::distribute(options, splits(40), move |one, _| Ok(augment(one)))?;
    let hashes: Arc<Mutex<Vec<u64>>> = Arc::default();
    let record = Arc::clone(&hashes);
    let callbacks = Callbacks::new().every_steps(1, move |_, _| {
        let hash = globals::strategy()?.run_on_first(|_| erased::hash())?;
        record.lock().unwrap().push(hash);
        Ok(())
    });
    self::train(options, &datasets, callbacks, recipe.step)?;
    let scales = strategy.run_on_all(|_| Ok(loss_scale()))?;
    let manifest = Checkpoints::new::<Line>(options).find(&Which::Latest)?;
    let manifest = manifest.manifest;
    let hashes = hashes.lock().unwrap().clone();
    let parameters = |_: &_| globals::with_model::<Line, _>(parameters);
    Ok(Trained {
        hashes,
        parameters: strategy.run_on_first(parameters)?,
        scales: scales.into_iter().collect(),
        saved: (manifest.parameters, manifest.loss_scale),
    })
}
