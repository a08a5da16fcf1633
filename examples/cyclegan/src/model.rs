//! Step 5: the four networks and their optimizers.

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
    optim::{FlatGradients, ScheduledOptimizer},
    options::StrategyKind,
    pipeline::{Activation, Stage},
    weights::WeightNames,
};

use crate::{cli::Args, dataset::Batch};
pub use discriminator::Discriminator;
pub use generator::Generator;

/// Outputs of the four networks for a batch.
#[derive(Clone, Debug)]
pub struct Predictions {
    /// Of generator F and discriminator X.
    pub x: DomainPredictions,
    /// Of generator G and discriminator Y.
    pub y: DomainPredictions,
}

/// Outputs of the generator to a domain and of its discriminator for a batch: images
/// `[batch, 3, height, width]`, -1 to 1, and scores of their patches
/// `[batch, 1, height / 8, width / 8]`.
#[derive(Clone, Debug)]
pub struct DomainPredictions {
    /// Translations of the other domain's images: F(Y), G(X).
    pub fake: Tensor<4>,
    /// Translations of the other domain's fakes, which should be the images they came from: F(G(X)),
    /// G(F(Y)).
    pub cycle: Tensor<4>,
    /// Translations of the domain's own images, which should stay as they are: F(X), G(Y).
    pub same: Tensor<4>,
    /// Scores of real images by the discriminator.
    pub real_patches: Tensor<4>,
    /// Scores of fakes, for the update of the generator.
    pub fake_patches: Tensor<4>,
    /// The same for the discriminator to learn from, without the graph of the generator.
    pub detached_patches: Tensor<4>,
}

/// Two generators, which translate between images of the domains X and Y, and two discriminators,
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

    /// The predictions for a prepared batch.
    pub fn forward(&self, batch: &Batch) -> Predictions {
        let (x, y) = (&batch.features, &batch.targets); // [batch, 3, height, width] each
        let (f, g) = (&self.generator_f, &self.generator_g);
        let (fake_x, fake_y) = (f.forward(y.clone()), g.forward(x.clone()));
        Predictions {
            x: DomainPredictions::new(f, &self.discriminator_x, x, &fake_x, &fake_y),
            y: DomainPredictions::new(g, &self.discriminator_y, y, &fake_y, &fake_x),
        }
    }
}

impl DomainPredictions {
    /// From images of the domain, the fakes that `generator` made of the other domain's images, and the
    /// other domain's fakes, all `[batch, 3, height, width]`.
    ///
    /// The second half of a cycle does not know how its input was made: the cycle that ends with a
    /// generator teaches that generator only, as in the original. This also keeps the graphs of the
    /// four networks apart.
    fn new(
        generator: &Generator,
        discriminator: &Discriminator,
        real: &Tensor<4>,
        fake: &Tensor<4>,
        other_fake: &Tensor<4>,
    ) -> Self {
        DomainPredictions {
            fake: fake.clone(),
            cycle: generator.forward(other_fake.clone().detach()),
            same: generator.forward(real.clone()),
            real_patches: discriminator.forward(real.clone()),
            fake_patches: discriminator.forward(fake.clone()),
            detached_patches: discriminator.forward(fake.clone().detach()),
        }
    }
}

impl From<Predictions> for Activation {
    fn from(all: Predictions) -> Self {
        let tensors = [all.x, all.y].map(|of| {
            let images = [of.fake, of.cycle, of.same].map(Activation::from);
            let patches = [of.real_patches, of.fake_patches, of.detached_patches];
            [images.into(), patches.map(Activation::from).into()].into()
        });
        Activation::from(tensors)
    }
}

impl From<Activation> for Predictions {
    fn from(all: Activation) -> Self {
        let [a, b, c, d, e, f, of_y @ ..] = all.split::<12>().map(Tensor::from);
        Predictions {
            x: [a, b, c, d, e, f].into(),
            y: of_y.into(),
        }
    }
}

impl From<[Tensor<4>; 6]> for DomainPredictions {
    fn from(tensors: [Tensor<4>; 6]) -> Self {
        let [
            fake,
            cycle,
            same,
            real_patches,
            fake_patches,
            detached_patches,
        ] = tensors;
        DomainPredictions {
            fake,
            cycle,
            same,
            real_patches,
            fake_patches,
            detached_patches,
        }
    }
}

/// The model stays whole: its four networks all meet in one step.
pub const STAGES: &[Stage<Model, Batch>] = &[Stage {
    layers: &[
        "generator_g",
        "generator_f",
        "discriminator_x",
        "discriminator_y",
    ],
    forward: |model, batch, _| model.forward(batch).into(),
}];

/// Renames for `--init-from`: none.
pub const WEIGHT_NAMES: WeightNames = &[];

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

/// Creates the four networks and their optimizers, for a training of `updates` updates.
///
/// # Errors
/// The strategy is `model-parallel`, which cuts a model into stages, or the learning-rate schedule
/// refuses its settings.
pub fn create_model_and_optimizer(
    args: &Args,
    updates: usize,
    device: &Device,
) -> Result<Trainable> {
    ensure!(
        args.options.strategy != StrategyKind::ModelParallel,
        "--strategy model-parallel sends a batch once through the stages of one network, and this \
         model sends it through four networks several times: use --strategy mirrored"
    );
    device.seed(args.options.seed);
    let model = Model::new(args, device);
    let adam = AdamConfig::new()
        .with_beta_1(0.5)
        .with_beta_2(0.9)
        .with_epsilon(1e-7);
    let schedule = args
        .schedule
        .create(args.learning_rate, args.warm_up, updates)?;
    let optimizer = || ScheduledOptimizer::new(adam.init(), schedule.clone());
    Ok(Trainable {
        model,
        optimizer_g: optimizer(),
        optimizer_f: optimizer(),
        optimizer_x: optimizer(),
        optimizer_y: optimizer(),
    })
}
