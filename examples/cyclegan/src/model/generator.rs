//! The generator, which makes an image of the other kind from an image.

use burn::{
    module::Module,
    nn::{
        Initializer, PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Tensor, activation::relu},
};
use kiln_engine::layers::conv2d;

use super::layers::{ConvNorm, UpNorm, conv_with_bias, reflect};

/// Two layers that halve the image, residual blocks, and two layers that double it.
///
/// Source: J. Johnson et al., "Perceptual losses for real-time style transfer and super-resolution",
/// 2016, as J.-Y. Zhu et al., "Unpaired image-to-image translation using cycle-consistent adversarial
/// networks", 2017, use it.
#[derive(Module, Debug)]
pub struct Generator {
    first: ConvNorm,
    down: Vec<ConvNorm>,
    blocks: Vec<ResidualBlock>,
    up: Vec<UpNorm>,
    last: Conv2d,
}

impl Generator {
    /// With `filters` in the first layer and four times as many in each of the `blocks`.
    pub fn new(filters: usize, blocks: usize, device: &Device) -> Self {
        let down = |channels| {
            ConvNorm::new(
                [channels, 2 * channels],
                3,
                2,
                PaddingConfig2d::Same,
                device,
            )
        };
        let up = |channels| UpNorm::new([channels, channels / 2], device);
        let last = Conv2dConfig::new([filters, 3], [7, 7])
            .with_initializer(Initializer::XavierUniform { gain: 1.0 });
        Generator {
            first: ConvNorm::new([3, filters], 7, 1, PaddingConfig2d::Valid, device),
            down: [filters, 2 * filters].map(down).into(),
            blocks: (0..blocks)
                .map(|_| ResidualBlock::new(4 * filters, device))
                .collect(),
            up: [4 * filters, 2 * filters].map(up).into(),
            last: conv_with_bias(last, device),
        }
    }

    /// From images `[batch, 3, height, width]` to images of the same size, -1 to 1. Height and
    /// width are multiples of 4.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let mut x = relu(self.first.forward(reflect(images, 3))); // [batch, filters, height, width]
        for down in &self.down {
            x = relu(down.forward(x)); // [batch, 2 * filters, ..], then [batch, 4 * filters, ..]
        }
        for block in &self.blocks {
            x = block.forward(x); // [batch, 4 * filters, height / 4, width / 4]
        }
        for up in &self.up {
            x = relu(up.forward(x)); // [batch, 2 * filters, ..], then [batch, filters, ..]
        }
        conv2d(&self.last, reflect(x, 3)).tanh() // [batch, 3, height, width]
    }
}

/// Two convolutions whose output is added to their input.
#[derive(Module, Debug)]
pub struct ResidualBlock {
    first: ConvNorm,
    second: ConvNorm,
}

impl ResidualBlock {
    fn new(channels: usize, device: &Device) -> Self {
        let conv = || ConvNorm::new([channels, channels], 3, 1, PaddingConfig2d::Valid, device);
        ResidualBlock {
            first: conv(),
            second: conv(),
        }
    }

    /// Shapes: `[batch, channels, height, width]` in and out.
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = relu(self.first.forward(reflect(x.clone(), 1)));
        x + self.second.forward(reflect(y, 1))
    }
}
