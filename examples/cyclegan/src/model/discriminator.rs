//! The discriminator, which tells images of a kind from those that a generator made.

use burn::{
    module::Module,
    nn::{
        PaddingConfig2d,
        conv::{Conv2d, Conv2dConfig},
    },
    tensor::{Device, Tensor, activation::leaky_relu},
};
use kiln_engine::layers::conv2d;

use super::layers::{ConvNorm, NORMAL, conv_with_bias};

/// The slope of the activation below zero.
const SLOPE: f64 = 0.2;

/// A PatchGAN: it says of each patch of an image whether it is real.
///
/// Source: P. Isola et al., "Image-to-image translation with conditional adversarial networks", 2017.
#[derive(Module, Debug)]
pub struct Discriminator {
    first: Conv2d,
    down: Vec<ConvNorm>,
    last: Conv2d,
}

impl Discriminator {
    /// With `filters` in the first layer and eight times as many in the last but one.
    pub fn new(filters: usize, device: &Device) -> Self {
        let conv = |channels| {
            Conv2dConfig::new(channels, [4, 4])
                .with_padding(PaddingConfig2d::Same)
                .with_initializer(NORMAL)
        };
        let down = |(channels, stride)| {
            let channels = [channels, 2 * channels];
            ConvNorm::new(channels, 4, stride, PaddingConfig2d::Same, device)
        };
        Discriminator {
            first: conv_with_bias(conv([3, filters]).with_stride([2, 2]), device),
            down: [(filters, 2), (2 * filters, 2), (4 * filters, 1)]
                .map(down)
                .into(),
            last: conv_with_bias(conv([8 * filters, 1]), device),
        }
    }

    /// From images `[batch, 3, height, width]` to a value for each patch
    /// `[batch, 1, height / 8, width / 8]`: near 1 where it looks real, near 0 where not.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<4> {
        let mut x = leaky_relu(conv2d(&self.first, images), SLOPE); // [batch, filters, height / 2, ..]
        for down in &self.down {
            x = leaky_relu(down.forward(x), SLOPE); // up to [batch, 8 * filters, height / 8, ..]
        }
        conv2d(&self.last, x)
    }
}
