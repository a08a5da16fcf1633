//! Step 5: the model and its optimizer.

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
    ModelAndOptimizer,
    layers::{conv2d, gelu, linear},
    optim::{AdamConfig, ScheduledOptimizer},
    pipeline::Stage,
    weights::WeightNames,
};

use crate::{
    cli::Args,
    dataset::{Batch, CLASSES},
};

// TODO(model.architecture): Replace with the model for your task.
//   Now: a small convolutional network for grey images of any size, 10 classes.
//   Note: `Predictions` is the output of `forward`: a tensor of any rank, or a struct that converts from and into
//         `pipeline::Activation`, as in src/model.rs of the example `cyclegan`.
//         Random numbers come from layers, such as `burn::nn::GaussianNoise`, which are off in validation.
//   Shapes: features [batch, 1, height, width] in, logits [batch, classes] out.
/// The output of the model: logits `[batch, classes]`.
pub type Predictions = Tensor<2>;

/// Two convolutions, pooled to 4x4, and a linear layer.
///
/// All layers are smooth: at the kinks of a ReLU or maximum, rounding differences, as between one
/// replica and two, could select another gradient.
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

    /// The predictions for a prepared batch.
    pub fn forward(&self, batch: &Batch) -> Predictions {
        self.finish(self.begin(batch))
    }

    fn begin(&self, batch: &Batch) -> Tensor<4> {
        gelu(conv2d(&self.conv1, batch.features.clone())) // [batch, 32, height, width]
    }

    fn finish(&self, x: Tensor<4>) -> Predictions {
        let x = gelu(conv2d(&self.conv2, x)); // [batch, 64, height, width]
        let x = self.pool.forward(x); // [batch, 64, 4, 4]
        linear(&self.output, x.flatten(1, 3)) // [batch, classes]
    }
}

// TODO(model.split): Cut the model into stages, for `model-parallel`.
//   Now: the first convolution, then the rest.
//   Note: each field with parameters is in exactly one stage; a model without a cut is one stage.
//   Shapes: the batch into the first stage, predictions out of the last one.
/// The pipeline stages of the model, one device each, with about equal work.
pub const STAGES: &[Stage<Model, Batch>] = &[
    Stage {
        layers: &["conv1"],
        forward: |model, batch, _| model.begin(batch).into(),
    },
    Stage {
        layers: &["conv2", "output"],
        forward: |model, _, x| model.finish(x.into()).into(),
    },
];

// TODO(model.weights): Map weight names of other programs to the fields of the model.
//   Now: no renames, as for files that `export` writes.
//   Note: `("^features\\.0\\.", "conv1.")` reads `features.0.weight` as `conv1.weight`, in any file of `--init-from`.
//   Shapes: those of the model; linear layers of PyTorch are transposed.
/// Renames for `--init-from`: regular expressions and their replacements, all applied in order.
pub const WEIGHT_NAMES: WeightNames = &[];

/// The training state: the model with its optimizer. Several networks, as of a GAN, are fields of a `Model`;
/// a struct that implements `TrainState`, as `ModelAndOptimizer` does, gives each its own optimizer.
pub type Trainable = ModelAndOptimizer<Model>;

/// Creates the model and its optimizer, for a training of `updates` updates.
///
/// # Errors
/// The settings of the learning-rate schedule are invalid.
pub fn create_model_and_optimizer(
    args: &Args,
    updates: usize,
    device: &Device,
) -> Result<Trainable> {
    device.seed(args.options.seed);
    let model = Model::new(device);
    // TODO(optimizer.choice): Choose the optimizer and its settings.
    //   Now: Adam; --learning-rate, --schedule and --warm-up set its learning rate.
    //   Note: `with_weight_decay` makes it AdamW. Any optimizer of Burn and `kiln_engine::optim::NadamConfig`
    //         also work, as does any schedule of `burn::optim::lr_scheduler`, with one step per update.
    //         `.with_groups([Group::new("^conv1\\.").frozen()])` freezes parameters by name; `optim::Group` also
    //         sets their learning rate and optimizer.
    //   Shapes: those of the parameters.
    let adam = AdamConfig::new().init();
    let schedule = args
        .schedule
        .create(args.learning_rate, args.warm_up, updates)?;
    let optimizer = ScheduledOptimizer::new(adam, schedule);
    Ok(Trainable { model, optimizer })
}
