//! Records of what layers compute.

use std::sync::{Arc, Mutex, PoisonError};

use burn::{
    module::{Param, ParamId},
    nn::{
        Linear, PaddingConfig2d,
        conv::{Conv2d, ConvTranspose2d},
    },
    tensor::Tensor,
};

use super::{STATE, State};

/// One use of a layer in a forward pass.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The weight; `None` for products of activations, as in attention.
    pub(super) weight: Option<ParamId>,
    pub(super) kind: Kind,
    /// FLOPs of the forward pass: two for a multiplication with its addition.
    pub(super) forward: f64,
    /// FLOPs of the backward pass: those of the forward pass for each operand with a gradient.
    pub(super) backward: f64,
}

/// Operation of a layer on its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Each of `rows` vectors is multiplied by a matrix, to `outputs` values.
    Product { rows: usize, outputs: usize },
    /// Images of `outputs` channels result.
    Convolution { outputs: usize },
    /// Neither has a weight.
    Other,
}

/// Uses of layers, recorded by all threads that share the recording.
#[derive(Clone, Debug, Default)]
pub struct Recording(Arc<Mutex<Vec<Observed>>>);

impl Recording {
    /// Runs `step` and records the layers that it uses on this thread.
    pub fn during<R>(self, step: impl FnOnce() -> R) -> R {
        /// Ends the recording also if `step` panics.
        struct Guard(Option<State>);

        impl Drop for Guard {
            fn drop(&mut self) {
                if let Some(earlier) = self.0.take() {
                    STATE.set(earlier);
                }
            }
        }

        let _guard = Guard(Some(STATE.replace(State::Recording(self))));
        step()
    }

    /// The uses so far.
    pub fn finish(&self) -> Vec<Observed> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn add(&self, observed: Observed) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.push(observed);
    }
}

/// Adds a use to this thread's recording, if there is one.
fn record(observe: impl FnOnce() -> Observed) {
    STATE.with_borrow(|state| {
        if let State::Recording(recording) = state {
            recording.add(observe());
        }
    });
}

/// Counts the FLOPs of an operation of the task's own, forward and backward, during a count for `--throughput`: those
/// of products without a weight, as in attention, cannot be known otherwise.
pub fn add(forward: f64, backward: f64) {
    record(|| Observed {
        weight: None,
        kind: Kind::Other,
        forward,
        backward,
    });
}

/// Records the product of `x`, `[.., inputs]`, and the weight of a linear layer.
pub(crate) fn product<const D: usize>(layer: &Linear, x: &Tensor<D>) {
    record(|| {
        let [inputs, outputs] = layer.weight.dims();
        let rows = x.shape().num_elements() / inputs.max(1);
        let forward = 2.0 * product_of(&[rows, inputs, outputs]);
        with_weight(&layer.weight, x, Kind::Product { rows, outputs }, forward)
    });
}

/// Records a convolution of images `x`, `[batch, channels, height, width]`.
pub(crate) fn convolution(layer: &Conv2d, x: &Tensor<4>) {
    record(|| {
        let [batch, _, height, width] = x.dims();
        let [outputs, inputs, rows, columns] = layer.weight.dims();
        let places = output_size(layer, 0, height) * output_size(layer, 1, width);
        let forward = 2.0 * product_of(&[batch, places, outputs, inputs, rows, columns]);
        with_weight(&layer.weight, x, Kind::Convolution { outputs }, forward)
    });
}

/// Records a transposed convolution of images `x`, `[batch, channels, height, width]`.
pub(crate) fn transposed_convolution(layer: &ConvTranspose2d, x: &Tensor<4>) {
    record(|| {
        let [batch, _, height, width] = x.dims();
        let outputs = layer.channels[1];
        let weight = layer.weight.shape().num_elements();
        let forward = 2.0 * product_of(&[batch, height, width, weight]);
        with_weight(&layer.weight, x, Kind::Convolution { outputs }, forward)
    });
}

/// Records attention of queries to keys and values, `[batch, heads, time, size]`: two products over all pairs of
/// positions, also of those that a mask hides. What a fused kernel computes again is not counted, as by convention
/// in model FLOPs utilisation.
///
/// Source: A. Chowdhery and others, PaLM, 2022, appendix B.
pub(crate) fn attention(queries: &Tensor<4>, keys: &Tensor<4>, values: &Tensor<4>) {
    record(|| {
        let [batch, heads, time, size] = queries.dims();
        let seen = keys.dims()[2];
        let product = 2.0 * product_of(&[batch, heads, time, seen, size]);
        of_attention(product, [queries, keys, values].map(Tensor::is_tracked))
    });
}

/// As [`attention`], of queries, keys and values side by side in `[batch, time, 3 * width]`.
pub(crate) fn self_attention(all: &Tensor<3>) {
    record(|| {
        let [batch, time, values] = all.dims();
        let product = 2.0 * product_of(&[batch, time, time, values / 3]);
        of_attention(product, [all.is_tracked(); 3])
    });
}

/// Attention of two products of `product` FLOPs each, with the inputs that have a gradient.
fn of_attention(product: f64, with_gradient: [bool; 3]) -> Observed {
    let [queries, keys, values] = with_gradient.map(f64::from);
    let scores = f64::from(with_gradient[0] || with_gradient[1]);
    Observed {
        weight: None,
        kind: Kind::Other,
        forward: 2.0 * product,
        backward: (queries + keys + values + scores) * product,
    }
}

fn with_weight<const D: usize, const W: usize>(
    weight: &Param<Tensor<W>>,
    x: &Tensor<D>,
    kind: Kind,
    forward: f64,
) -> Observed {
    let with_gradient = [x.is_tracked(), weight.val().is_tracked()].map(f64::from);
    Observed {
        weight: Some(weight.id),
        kind,
        forward,
        backward: forward * with_gradient.iter().sum::<f64>(),
    }
}

/// Height or width, by `axis`, of the output of a convolution.
fn output_size(layer: &Conv2d, axis: usize, size: usize) -> usize {
    let (stride, dilation) = (layer.stride[axis].max(1), layer.dilation[axis]);
    let kernel = layer.kernel_size[axis];
    let padding = match layer.padding {
        PaddingConfig2d::Valid => 0,
        PaddingConfig2d::Explicit(top, left, bottom, right) => [top + bottom, left + right][axis],
        PaddingConfig2d::Same => {
            let reach = size.div_ceil(stride).saturating_sub(1) * stride + kernel;
            reach.saturating_sub(size)
        }
    };
    let reach = dilation * kernel.saturating_sub(1) + 1;
    (size + padding)
        .checked_sub(reach)
        .map_or(0, |rest| rest / stride + 1)
}

/// The product of sizes, which may exceed an integer.
fn product_of(sizes: &[usize]) -> f64 {
    sizes.iter().map(|size| *size as f64).product()
}
