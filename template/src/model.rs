//! Step 4: the model and its optimizer.

use anyhow::Result;
use burn::{
    module::Module,
    nn::{
        Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig},
    },
    tensor::{Device, Tensor},
};
use kiln_engine::{
    TrainState,
    adam::AdamConfig,
    distribute::{FlatGradients, ScheduledOptimizer, Stage},
    layers::{conv2d, gelu},
};

use crate::{cli::Args, dataset::CLASSES};

// TODO(model.architecture): Replace with the model for your task.
//   Now: a small convolutional network for grey images of any size, 10 classes.
//   Shapes: features [batch, 1, height, width] in, logits [batch, classes] out.
/// Two convolutions, pooled to 4x4, and a linear layer.
///
/// All layers are smooth. A ReLU or a maximum has kinks where a difference in the last bit, as
/// between one replica and two, can choose another gradient.
#[derive(Module, Debug)]
pub struct Model {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: AdaptiveAvgPool2d,
    output: Linear,
}

impl Model {
    pub fn new(device: &Device) -> Self {
        let conv = |channels| {
            Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        Model {
            conv1: conv([1, 32]),
            conv2: conv([32, 64]),
            pool: AdaptiveAvgPool2dConfig::new([4, 4]).init(),
            output: LinearConfig::new(64 * 4 * 4, CLASSES).init(device),
        }
    }

    /// From features `[batch, 1, height, width]` to logits `[batch, classes]`.
    pub fn forward(&self, features: Tensor<4>) -> Tensor<2> {
        // Only under `model-parallel` are layers on several devices.
        let x = self.begin(features.to_device(&self.conv1.weight.device())); // [batch, 32, ..]
        self.finish(x.to_device(&self.output.weight.device()))
    }

    /// From features `[batch, 1, height, width]` to `[batch, 32, height, width]`.
    fn begin(&self, features: Tensor<4>) -> Tensor<4> {
        gelu(conv2d(&self.conv1, features))
    }

    /// From `[batch, 32, height, width]` to logits `[batch, classes]`.
    fn finish(&self, x: Tensor<4>) -> Tensor<2> {
        let x = gelu(conv2d(&self.conv2, x)); // [batch, 64, height, width]
        let x = self.pool.forward(x); // [batch, 64, 4, 4]
        self.output.forward(x.flatten(1, 3)) // [batch, classes]
    }
}

// TODO(model.split): Cut the model into stages, for `model-parallel`.
//   Now: the first convolution, then the rest.
//   Note: each layer is in one stage; where the model stays whole, one stage has all of them.
//   Shapes: features into the first stage, what the model gives out of the last one.
/// The stages of the model. Each gets a device of its own, as equal in work as can be.
pub const STAGES: &[Stage<Model>] = &[
    Stage {
        layers: &["conv1"],
        forward: |model, features| model.begin(features.tensor()).into(),
    },
    Stage {
        layers: &["conv2", "output"],
        forward: |model, x| model.finish(x.tensor()).into(),
    },
];

/// What is trained: a model with the optimizers that update it. Several networks, as of a GAN, are
/// fields of one `Model`, each with an optimizer here.
#[derive(Clone)]
pub struct Trainable {
    pub model: Model,
    pub optimizer: ScheduledOptimizer,
}

impl TrainState for Trainable {
    type Model = Model;

    fn model(&self) -> &Model {
        &self.model
    }

    fn with_model(self, model: Model) -> Self {
        Trainable { model, ..self }
    }

    /// Takes one step down the gradients.
    fn update(mut self, mut gradients: FlatGradients) -> Self {
        let gradients = gradients.take(&self.model);
        self.model = self.optimizer.update(self.model, gradients);
        self
    }

    /// All optimizers, by the name of their file in a checkpoint.
    fn optimizers_mut(&mut self) -> Vec<(&'static str, &mut ScheduledOptimizer)> {
        vec![("optimizer", &mut self.optimizer)]
    }
}

/// Creates the model and its optimizer.
///
/// # Errors
/// The learning-rate schedule refuses its settings.
pub fn create_model_and_optimizer(args: &Args, device: &Device) -> Result<Trainable> {
    device.seed(args.options.seed);
    let model = Model::new(device);
    // TODO(optimizer.choice): Choose the optimizer and its settings.
    //   Now: Adam with the step size of --learning-rate, the same throughout.
    //   Note: `with_weight_decay` makes it AdamW; any optimizer of Burn or `kiln_engine::nadam::NadamConfig` will
    //         do, and any schedule of `burn::optim::lr_scheduler`, which advances once an update.
    //   Shapes: those of the parameters.
    let adam = AdamConfig::new().init();
    let optimizer = ScheduledOptimizer::new(adam, args.learning_rate);
    Ok(Trainable { model, optimizer })
}
