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
    pipeline::Stage,
    weights::WeightNames,
};

use crate::{
    cli::Args,
    dataset::{Batch, CLASSES},
    digits::CALLBACKS,
    train_callbacks::TrainCallbacks,
};

/// How much the squares of the weights of a layer add to the loss.
pub const WEIGHT_DECAY: f64 = 1e-4;

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
            conv1: conv([1, 16]),
            conv2: conv([16, 32]),
            pool: AdaptiveAvgPool2dConfig::new([4, 4]).init(),
            output: LinearConfig::new(32 * 4 * 4, CLASSES).init(device),
        }
    }

    /// The predictions for a prepared batch.
    pub fn forward(&self, batch: &Batch) -> Predictions {
        self.finish(self.begin(batch))
    }

    /// The regularisation terms, each of shape `[1]`: `keras.regularizers.L2` of two weights.
    pub fn losses(&self) -> Vec<Tensor<1>> {
        let conv2 = self.conv2.weight.val().square().sum();
        let output = self.output.weight.val().square().sum();
        vec![conv2 * WEIGHT_DECAY, output * WEIGHT_DECAY]
    }

    fn begin(&self, batch: &Batch) -> Tensor<4> {
        gelu(conv2d(&self.conv1, batch.features.clone())) // [batch, 16, height, width]
    }

    fn finish(&self, x: Tensor<4>) -> Predictions {
        let x = gelu(conv2d(&self.conv2, x)); // [batch, 32, height, width]
        let x = self.pool.forward(x); // [batch, 32, 4, 4]
        linear(&self.output, x.flatten(1, 3)) // [batch, classes]
    }
}

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

/// Renames for `--init-from`: none.
pub const WEIGHT_NAMES: WeightNames = &[];

/// The training state: the model with its optimizer.
pub type Trainable = ModelAndOptimizer<Model>;

/// Creates the model and its optimizer, for a training of `updates` updates.
///
/// # Errors
/// The learning-rate schedule refuses its settings.
pub fn create_model_and_optimizer(
    args: &Args,
    updates: usize,
    device: &Device,
) -> Result<Trainable> {
    device.seed(args.options.seed);
    let model = CALLBACKS.create_model(device);
    let schedule = args
        .schedule
        .create(args.learning_rate, args.warm_up, updates)?;
    let optimizer = CALLBACKS.create_opt(schedule);
    Ok(Trainable { model, optimizer })
}
