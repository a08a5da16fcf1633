//! Step 4: the four networks and their optimizers.

mod discriminator;
mod generator;
mod layers;

use anyhow::{Result, ensure};
use burn::{
    module::Module,
    optim::AdamConfig,
    tensor::{Device, Tensor},
};
use kiln_engine::{
    TrainState,
    distribute::{FlatGradients, ScheduledOptimizer, Stage},
    options::StrategyKind,
};

use crate::{cli::Args, dataset::Batch};
pub use discriminator::Discriminator;
pub use generator::Generator;

/// Two generators, which translate between images of the kinds X and Y, and two discriminators,
/// which tell real images from theirs.
#[derive(Module, Debug)]
pub struct Model {
    /// From X to Y.
    pub generator_g: Generator,
    /// From Y to X.
    pub generator_f: Generator,
    /// Whether an image is a real X.
    pub discriminator_x: Discriminator,
    /// Whether an image is a real Y.
    pub discriminator_y: Discriminator,
}

impl Model {
    /// Of the size that `--filters` and `--blocks` give.
    pub fn new(args: &Args, device: &Device) -> Self {
        Model {
            generator_g: Generator::new(args.filters, args.blocks, device),
            generator_f: Generator::new(args.filters, args.blocks, device),
            discriminator_x: Discriminator::new(args.filters, device),
            discriminator_y: Discriminator::new(args.filters, device),
        }
    }

    /// From images of X to images of Y, both `[batch, 3, height, width]`, -1 to 1.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.generator_g.forward(x)
    }
}

/// What the generators make of a batch, each `[batch, 3, height, width]`.
#[derive(Clone, Debug)]
pub struct Translations {
    /// F(Y)
    pub fake_x: Tensor<4>,
    /// G(X)
    pub fake_y: Tensor<4>,
    /// F(G(X)), which should be X again.
    pub cycle_x: Tensor<4>,
    /// G(F(Y)), which should be Y again.
    pub cycle_y: Tensor<4>,
    /// F(X), which should still be X.
    pub same_x: Tensor<4>,
    /// G(Y), which should still be Y.
    pub same_y: Tensor<4>,
}

impl Translations {
    /// Goes on from `fake_y`, which is G(X).
    ///
    /// The second half of a cycle does not know how its input was made: the cycle that ends with a
    /// generator teaches that generator only, as in the original. This also keeps the graphs of the
    /// four networks apart.
    pub fn new(model: &Model, fake_y: Tensor<4>, batch: &Batch) -> Self {
        let (x, y) = (batch.features.clone(), batch.targets.clone());
        let fake_x = model.generator_f.forward(y.clone());
        Translations {
            cycle_x: model.generator_f.forward(fake_y.clone().detach()),
            cycle_y: model.generator_g.forward(fake_x.clone().detach()),
            same_x: model.generator_f.forward(x),
            same_y: model.generator_g.forward(y),
            fake_x,
            fake_y,
        }
    }
}

/// The model stays whole: its four networks all meet in one step.
pub const STAGES: &[Stage<Model>] = &[Stage {
    layers: &[
        "generator_g",
        "generator_f",
        "discriminator_x",
        "discriminator_y",
    ],
    forward: |model, x| model.forward(x.tensor()).into(),
}];

/// The four networks, each with an optimizer of its own.
#[derive(Clone)]
pub struct Trainable {
    pub model: Model,
    pub optimizer_g: ScheduledOptimizer,
    pub optimizer_f: ScheduledOptimizer,
    pub optimizer_x: ScheduledOptimizer,
    pub optimizer_y: ScheduledOptimizer,
}

impl TrainState for Trainable {
    type Model = Model;

    fn model(&self) -> &Model {
        &self.model
    }

    fn with_model(self, model: Model) -> Self {
        Trainable { model, ..self }
    }

    /// Takes one step down the gradients: each optimizer sees those of its network.
    fn update(mut self, mut gradients: FlatGradients) -> Self {
        let model = self.model;
        let g = gradients.take(&model.generator_g);
        let f = gradients.take(&model.generator_f);
        let x = gradients.take(&model.discriminator_x);
        let y = gradients.take(&model.discriminator_y);
        self.model = Model {
            generator_g: self.optimizer_g.update(model.generator_g, g),
            generator_f: self.optimizer_f.update(model.generator_f, f),
            discriminator_x: self.optimizer_x.update(model.discriminator_x, x),
            discriminator_y: self.optimizer_y.update(model.discriminator_y, y),
        };
        self
    }

    /// All optimizers, by the name of their file in a checkpoint.
    fn optimizers_mut(&mut self) -> Vec<(&'static str, &mut ScheduledOptimizer)> {
        vec![
            ("optimizer_g", &mut self.optimizer_g),
            ("optimizer_f", &mut self.optimizer_f),
            ("optimizer_x", &mut self.optimizer_x),
            ("optimizer_y", &mut self.optimizer_y),
        ]
    }
}

/// Creates the four networks and their optimizers.
///
/// # Errors
/// The strategy is `model-parallel`, which cuts a model into stages.
pub fn create_model_and_optimizer(args: &Args, device: &Device) -> Result<Trainable> {
    ensure!(
        args.options.strategy != StrategyKind::ModelParallel,
        "--strategy model-parallel sends a batch once through the stages of one network, and this \
         model sends it through four networks several times: use --strategy mirrored"
    );
    device.seed(args.options.seed);
    let model = Model::new(args, device);
    let adam = || {
        let adam = AdamConfig::new().with_beta_1(0.5).with_beta_2(0.9);
        ScheduledOptimizer::new(adam.with_epsilon(1e-7).init(), args.learning_rate)
    };
    Ok(Trainable {
        model,
        optimizer_g: adam(),
        optimizer_f: adam(),
        optimizer_x: adam(),
        optimizer_y: adam(),
    })
}
