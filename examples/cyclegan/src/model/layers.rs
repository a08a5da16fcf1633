//! Layers of both kinds of networks.

use burn::{
    module::Module,
    nn::{
        Initializer, InstanceNorm, InstanceNormConfig, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig, ConvTranspose2d, ConvTranspose2dConfig},
    },
    tensor::{Device, Tensor, ops::PadMode},
};
use kiln_engine::layers::{conv_transpose2d, conv2d};

/// Initializer of all weights, but those of the last convolution of a generator.
pub const NORMAL: Initializer = Initializer::Normal {
    mean: 0.0,
    std: 0.02,
};

/// The epsilon of `tfa.layers.InstanceNormalization`.
const EPSILON: f64 = 1e-3;

/// Pads height and width by `by` pixels that mirror those inside.
///
/// Shapes: `[batch, channels, height, width]` in, height and width larger by `2 * by` out.
pub fn reflect(x: Tensor<4>, by: usize) -> Tensor<4> {
    x.pad([(by, by), (by, by)], PadMode::Reflect)
}

/// A convolution with a bias that begins at zero.
pub fn conv_with_bias(config: Conv2dConfig, device: &Device) -> Conv2d {
    let channels = config.channels[1];
    let mut conv = config.with_bias(true).init(device);
    conv.bias = Some(Initializer::Zeros.init([channels], device));
    conv
}

/// Instance normalisation with a scale around 1.
fn norm(channels: usize, device: &Device) -> InstanceNorm {
    let scale = Initializer::Normal {
        mean: 1.0,
        std: 0.02,
    };
    let mut norm = InstanceNormConfig::new(channels)
        .with_epsilon(EPSILON)
        .init(device);
    norm.gamma = Some(scale.init([channels], device));
    norm
}

/// A convolution and an instance normalisation. A bias in between would do nothing: the
/// normalisation subtracts the mean.
#[derive(Module, Debug)]
pub struct ConvNorm {
    conv: Conv2d,
    norm: InstanceNorm,
}

impl ConvNorm {
    /// From `channels[0]` to `channels[1]` with a square kernel.
    pub fn new(
        channels: [usize; 2],
        kernel: usize,
        stride: usize,
        padding: PaddingConfig2d,
        device: &Device,
    ) -> Self {
        let conv = Conv2dConfig::new(channels, [kernel, kernel])
            .with_stride([stride, stride])
            .with_padding(padding)
            .with_bias(false)
            .with_initializer(NORMAL);
        ConvNorm {
            conv: conv.init(device),
            norm: norm(channels[1], device),
        }
    }

    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        self.norm.forward(conv2d(&self.conv, x))
    }
}

/// A transposed convolution that doubles height and width, and an instance normalisation.
#[derive(Module, Debug)]
pub struct UpNorm {
    conv: ConvTranspose2d,
    norm: InstanceNorm,
}

impl UpNorm {
    pub fn new(channels: [usize; 2], device: &Device) -> Self {
        let conv = ConvTranspose2dConfig::new(channels, [3, 3])
            .with_stride([2, 2])
            .with_bias(false)
            .with_initializer(NORMAL);
        UpNorm {
            conv: conv.init(device),
            norm: norm(channels[1], device),
        }
    }

    /// From `[batch, channels, height, width]` to `[batch, channels / 2, 2 * height, 2 * width]`.
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let [_, _, height, width] = x.dims();
        let x = conv_transpose2d(&self.conv, x); // [batch, channels / 2, 2 * height + 1, 2 * width + 1]
        // TensorFlow's padding "same" cuts off the last row and column.
        let x = x.narrow(2, 0, 2 * height).narrow(3, 0, 2 * width);
        self.norm.forward(x)
    }
}
