//! Step 5: the model and its optimizer.

use anyhow::Result;
use burn::{
    module::Module,
    nn::{
        Linear, LinearConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
        pool::{AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig, MaxPool2d, MaxPool2dConfig},
    },
    tensor::{Device, Tensor, activation::softmax},
};
use kiln_engine::{
    ModelAndOptimizer,
    layers::{Dropout, conv2d_relu_max_pool2d, linear},
    optim::{AdamConfig, ScheduledOptimizer},
    pipeline::Stage,
    weights::WeightNames,
};

use crate::{
    cli::Args,
    dataset::{Batch, CLASSES},
};

/// Height and width of what the last layer sees: that of a 28x28 picture after two poolings.
const GRID: usize = 7;

/// The output of the model: probabilities `[batch, classes]`.
pub type Predictions = Tensor<2>;

/// Two convolutions with pooling, dropout and a linear layer with softmax.
///
/// With 28x28 pictures it is the network of Keras, layer by layer. Pictures of another size are
/// brought to the same grid after the poolings.
#[derive(Module, Debug)]
pub struct Model {
    conv1: Conv2d,
    conv2: Conv2d,
    pool: MaxPool2d,
    resize: AdaptiveAvgPool2d,
    dropout: Dropout,
    output: Linear,
}

impl Model {
    /// `dropout` is the share of the values before the last layer that training sets to zero.
    pub fn new(dropout: f64, device: &Device) -> Self {
        let conv = |channels| {
            Conv2dConfig::new(channels, [3, 3])
                .with_padding(PaddingConfig2d::Same)
                .init(device)
        };
        Model {
            conv1: conv([1, 64]),
            conv2: conv([64, 128]),
            pool: MaxPool2dConfig::new([2, 2]).init(),
            resize: AdaptiveAvgPool2dConfig::new([GRID, GRID]).init(),
            dropout: Dropout::new(dropout),
            output: LinearConfig::new(128 * GRID * GRID, CLASSES).init(device),
        }
    }

    /// The predictions for a prepared batch.
    pub fn forward(&self, batch: &Batch) -> Predictions {
        self.finish(self.begin(batch))
    }

    fn begin(&self, batch: &Batch) -> Tensor<4> {
        // [batch, 64, height / 2, width / 2]
        conv2d_relu_max_pool2d(&self.conv1, &self.pool, batch.features.clone())
    }

    fn finish(&self, x: Tensor<4>) -> Predictions {
        let x = conv2d_relu_max_pool2d(&self.conv2, &self.pool, x); // [batch, 128, height / 4, width / 4]
        let x = self.resize.forward(x); // [batch, 128, 7, 7]
        let x = self.dropout.forward(x.flatten::<2>(1, 3)); // [batch, 128 * 7 * 7]
        softmax(linear(&self.output, x), 1) // [batch, classes]
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
    let model = Model::new(args.dropout, device);
    // Keras's defaults, with the step size of --learning-rate.
    let adam = AdamConfig::keras().init();
    let schedule = args
        .schedule
        .create(args.learning_rate, args.warm_up, updates)?;
    let optimizer = ScheduledOptimizer::new(adam, schedule);
    Ok(Trainable { model, optimizer })
}
