//! Step 5: the model and its optimizer.

use anyhow::Result;
use burn::{
    module::Module,
    nn::{
        Initializer, Linear, LinearConfig,
        conv::{Conv2d, Conv2dConfig},
        pool::{MaxPool2d, MaxPool2dConfig},
    },
    tensor::{Device, Tensor, activation::relu},
};
use kiln_engine::{
    ModelAndOptimizer,
    layers::{self, conv2d_relu_max_pool2d},
    loss::scale_regularization_loss,
    optim::{AdamConfig, ScheduledOptimizer},
    pipeline::Stage,
    weights::WeightNames,
};

use crate::{
    cli::Args,
    dataset::{Batch, CLASSES},
    fashion_mnist::SIZE,
};

/// The weight of the penalty for large kernels.
pub const L2: f64 = 1e-5;

/// Rows and columns that two convolutions without padding, each halved, leave of an image.
const POOLED: usize = ((SIZE - 2) / 2 - 2) / 2;

/// How Keras draws kernels.
const GLOROT_UNIFORM: Initializer = Initializer::XavierUniform { gain: 1.0 };

/// The output of the model: logits `[batch, classes]`.
pub type Predictions = Tensor<2>;

/// Two convolutions, each with a maximum over 2x2 pixels, and two linear layers.
///
/// Source: `create_model` of the TensorFlow tutorial "Custom training with tf.distribute.Strategy".
#[derive(Module, Debug)]
pub struct Model {
    conv1: Conv2d,
    conv2: Conv2d,
    hidden: Linear,
    output: Linear,
    pool: MaxPool2d,
}

impl Model {
    pub fn new(device: &Device) -> Self {
        Model {
            conv1: conv([1, 32], device),
            conv2: conv([32, 64], device),
            hidden: linear([64 * POOLED * POOLED, 64], device),
            output: linear([64, CLASSES], device),
            pool: MaxPool2dConfig::new([2, 2]).init(),
        }
    }

    /// The predictions for a prepared batch.
    pub fn forward(&self, batch: &Batch) -> Predictions {
        self.finish(self.begin(batch))
    }

    fn begin(&self, batch: &Batch) -> Tensor<4> {
        conv2d_relu_max_pool2d(&self.conv1, &self.pool, batch.features.clone()) // [batch, 32, 13, 13]
    }

    fn finish(&self, x: Tensor<4>) -> Predictions {
        let x = conv2d_relu_max_pool2d(&self.conv2, &self.pool, x); // [batch, 64, 5, 5]
        let x = relu(layers::linear(&self.hidden, x.flatten(1, 3))); // [batch, 64]
        layers::linear(&self.output, x) // [batch, classes]
    }

    /// The sum of the squares of the kernels that the tutorial regularises, shape `[1]`: all but
    /// that of the last layer.
    pub fn squared_kernels(&self) -> Tensor<1> {
        let device = self.output.weight.device();
        let conv1 = self.conv1.weight.val().square().sum(); // [1]
        let conv2 = self.conv2.weight.val().square().sum(); // [1]
        let hidden = self.hidden.weight.val().square().sum(); // [1]
        conv1.to_device(&device) + conv2.to_device(&device) + hidden.to_device(&device)
    }

    /// The replica's part of the penalty for large kernels, shape `[1]`: over all replicas, and all
    /// batches of an update, it adds up to [`L2`] times the sum of the squared kernels. Training only.
    ///
    /// Source: `tf.keras.regularizers.L2` with `tf.nn.scale_regularization_loss`.
    ///
    /// # Errors
    /// This thread is no replica's.
    pub fn regularization_loss(&self) -> Result<Tensor<1>> {
        scale_regularization_loss(self.squared_kernels() * L2)
    }
}

/// A convolution with 3x3 kernels and no padding, as Keras starts it.
fn conv(channels: [usize; 2], device: &Device) -> Conv2d {
    let config = Conv2dConfig::new(channels, [3, 3]).with_initializer(GLOROT_UNIFORM);
    Conv2d {
        bias: Some(Initializer::Zeros.init([channels[1]], device)),
        ..config.init(device)
    }
}

/// A linear layer, as Keras starts it.
fn linear([inputs, outputs]: [usize; 2], device: &Device) -> Linear {
    let config = LinearConfig::new(inputs, outputs).with_initializer(GLOROT_UNIFORM);
    Linear {
        bias: Some(Initializer::Zeros.init([outputs], device)),
        ..config.init(device)
    }
}

/// The pipeline stages of the model, one device each, with about equal work.
pub const STAGES: &[Stage<Model, Batch>] = &[
    Stage {
        layers: &["conv1"],
        forward: |model, batch, _| model.begin(batch).into(),
    },
    Stage {
        layers: &["conv2", "hidden", "output"],
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
    let model = Model::new(device);
    let adam = AdamConfig::keras().init();
    let schedule = args
        .schedule
        .create(args.learning_rate, args.warm_up, updates)?;
    let optimizer = ScheduledOptimizer::new(adam, schedule);
    Ok(Trainable { model, optimizer })
}
