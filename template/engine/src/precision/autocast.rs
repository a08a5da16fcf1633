//! Operations of Burn in the precision of this thread, recorded by autodiff: float32 in and out.

use burn::{
    module::{Module, ModuleMapper, Param},
    nn::{
        Linear,
        conv::{Conv2d, ConvTranspose2d},
    },
    tensor::{DType, FloatDType, Tensor},
};

use crate::anomalies::Watch;
#[cfg(any(feature = "gpu", feature = "cpu-layers"))]
use crate::layers::operation::{Operation, OperationBackend, Primitive, on_backend};

use super::{Half, active, is_cpu, loss_scale};

/// The matrix product `left * right` in the precision of this thread: from `[.., rows, inner]` and
/// `[.., inner, columns]` to `[.., rows, columns]`. Operands of another type than float32 keep it.
///
/// # Panics
/// As [`Tensor::matmul`]: shapes do not match.
pub fn matmul<const D: usize>(left: Tensor<D>, right: Tensor<D>) -> Tensor<D> {
    let watch = Watch::begin("matmul", None);
    let (left, right) = (watch.input(left), watch.input(right));
    watch.output(product(left, right))
}

/// As [`matmul`], for layers that are checked as a whole by `--detect-anomalies`.
pub(crate) fn product<const D: usize>(left: Tensor<D>, right: Tensor<D>) -> Tensor<D> {
    let Some(cast) = Cast::of(&left).filter(|_| right.dtype() == DType::F32) else {
        return left.matmul(right);
    };
    let scale = scale_for(&left).unwrap_or(1.0);
    let enter = |x| cast.enter(with_gradient_times(x, 1.0 / scale));
    let product = enter(left).matmul(enter(right)); // [.., rows, columns]
    with_gradient_times(cast.leave(product), scale)
}

/// `layer.forward(x)` in the precision of this thread, without a loss scale.
pub(crate) fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    let Some(cast) = Cast::of(&x) else {
        return layer.forward(x);
    };
    let mut low = layer.clone();
    low.weight = low.weight.map(|weight| cast.enter(weight));
    low.bias = None;
    let output = cast.leave(low.forward(cast.enter(x))); // [.., outputs]
    match &layer.bias {
        Some(bias) => output + bias.val().unsqueeze(),
        None => output,
    }
}

/// `layer.forward(x)` in the precision of this thread, without a loss scale.
pub(crate) fn conv2d(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    let Some(cast) = Cast::of(&x) else {
        return layer.forward(x);
    };
    let mut low = layer.clone();
    low.weight = low.weight.map(|weight| cast.enter(weight));
    low.bias = None;
    let output = cast.leave(low.forward(cast.enter(x))); // [batch, outputs, height, width]
    with_bias(output, layer.bias.as_ref())
}

/// `layer.forward(x)` in the precision of this thread, without a loss scale.
pub(crate) fn conv_transpose2d(layer: &ConvTranspose2d, x: Tensor<4>) -> Tensor<4> {
    let Some(cast) = Cast::of(&x) else {
        return layer.forward(x);
    };
    let mut low = layer.clone();
    low.weight = low.weight.map(|weight| cast.enter(weight));
    low.bias = None;
    let output = cast.leave(low.forward(cast.enter(x))); // [batch, outputs, height, width]
    with_bias(output, layer.bias.as_ref())
}

/// Adds `[outputs]` to `[batch, outputs, height, width]`.
fn with_bias(output: Tensor<4>, bias: Option<&Param<Tensor<1>>>) -> Tensor<4> {
    match bias {
        Some(bias) => {
            let outputs = bias.dims()[0];
            output + bias.val().reshape([1, outputs, 1, 1])
        }
        None => output,
    }
}

/// The casts around an operation.
#[derive(Clone, Copy)]
pub(crate) struct Cast {
    half: Half,
    /// Whether operands return to float32, in which the CPU computes.
    is_cpu: bool,
}

impl Cast {
    /// The casts around an operation on `x`; `None` if it stays in its type.
    pub fn of<const D: usize>(x: &Tensor<D>) -> Option<Self> {
        let half = active().filter(|_| x.dtype() == DType::F32)?;
        let is_cpu = is_cpu(&x.device());
        Some(Cast { half, is_cpu })
    }

    /// An operand, rounded. Its gradient arrives in float32.
    pub fn enter<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        let rounded = x.cast(self.half.dtype());
        match self.is_cpu {
            true => rounded.cast(FloatDType::F32),
            false => rounded,
        }
    }

    /// The output in float32.
    pub fn leave<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        x.cast(FloatDType::F32)
    }
}

/// The loss scale of an operation on `x`; `None` if there is no backward pass, or no scale.
fn scale_for<const D: usize>(x: &Tensor<D>) -> Option<f32> {
    let is_scaled = x.is_autodiff() && x.dtype() == DType::F32;
    Some(loss_scale().filter(|_| is_scaled)?.scale)
}

/// `compute(inputs)`, whose backward pass has the loss scale of this thread: the gradient of the output is
/// multiplied by it, and those of the inputs are divided. For operations with products of their own; `None` if
/// `compute` gives that.
pub fn scale_gradients<const N: usize, const D: usize, const E: usize>(
    inputs: [Tensor<D>; N],
    compute: impl FnOnce([Tensor<D>; N]) -> Option<Tensor<E>>,
) -> Option<Tensor<E>> {
    let scale = inputs.first().and_then(scale_for).unwrap_or(1.0);
    let inputs = inputs.map(|input| with_gradient_times(input, 1.0 / scale));
    Some(with_gradient_times(compute(inputs)?, scale))
}

/// As [`scale_gradients`], for a layer and its input.
pub(crate) fn scale_gradients_of<M: Module, const D: usize, const E: usize>(
    layer: &M,
    x: Tensor<D>,
    compute: impl FnOnce(&M, Tensor<D>) -> Tensor<E>,
) -> Tensor<E> {
    match scale_for(&x) {
        None => compute(layer, x),
        Some(scale) => {
            let layer = layer.clone().map(&mut Unscaled(scale));
            let x = with_gradient_times(x, 1.0 / scale);
            with_gradient_times(compute(&layer, x), scale)
        }
    }
}

/// Parameters whose gradients are divided by a scale.
struct Unscaled(f32);

impl ModuleMapper for Unscaled {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|values| with_gradient_times(values, 1.0 / self.0))
    }
}

/// `x`, whose gradient is multiplied by `factor`.
fn with_gradient_times<const D: usize>(x: Tensor<D>, factor: f32) -> Tensor<D> {
    if factor == 1.0 || !x.is_autodiff() {
        return x;
    }
    #[cfg(feature = "gpu")]
    if let Some(x) = on_backend::<burn::backend::Cube, _, 1, D>(Scaled(factor), [&x]) {
        return x;
    }
    #[cfg(feature = "cpu-layers")]
    if let Some(x) = on_backend::<burn::backend::Flex, _, 1, D>(Scaled(factor), [&x]) {
        return x;
    }
    // Under gradient checkpointing, and on devices of other machines.
    let constant = x.clone().detach();
    constant.clone() + (x - constant) * factor
}

/// The identity, whose backward pass multiplies by a factor.
#[cfg(any(feature = "gpu", feature = "cpu-layers"))]
#[derive(Clone, Debug)]
struct Scaled(f32);

#[cfg(any(feature = "gpu", feature = "cpu-layers"))]
impl<B: OperationBackend> Operation<B, 1> for Scaled {
    type Kept = ();

    fn forward(&self, [x]: [&Primitive<B>; 1]) -> (Primitive<B>, ()) {
        (x.clone(), ())
    }

    fn backward(
        &self,
        _: [&Primitive<B>; 1],
        (): (),
        gradient: Primitive<B>,
        [wanted]: [bool; 1],
    ) -> [Option<Primitive<B>>; 1] {
        [wanted.then(|| B::float_mul_scalar(gradient, self.0.into()))]
    }
}
