//! Operations of Burn in the precision of this thread, recorded by autodiff: float32 in and out.

use burn::{
    module::{Module, ModuleMapper, Param},
    nn::{
        Linear,
        conv::{Conv2d, ConvTranspose2d},
    },
    tensor::{DType, FloatDType, Tensor},
};

use super::{Half, active, is_cpu, loss_scale};
use kiln_kernels::autodiff::map_gradient;

use crate::anomalies::Watch;

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
    layer_in_half(layer, x, D - 1, Linear::forward, |layer| {
        (&mut layer.weight, &mut layer.bias)
    }) // [.., outputs]
}

/// As [`linear`].
pub(crate) fn conv2d(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    layer_in_half(layer, x, 1, Conv2d::forward, |layer| {
        (&mut layer.weight, &mut layer.bias)
    }) // [batch, outputs, height, width]
}

/// As [`linear`].
pub(crate) fn conv_transpose2d(layer: &ConvTranspose2d, x: Tensor<4>) -> Tensor<4> {
    layer_in_half(layer, x, 1, ConvTranspose2d::forward, |layer| {
        (&mut layer.weight, &mut layer.bias)
    }) // [batch, outputs, height, width]
}

/// The weight and the bias of a layer.
type Parameters<'a, const W: usize> = (&'a mut Param<Tensor<W>>, &'a mut Option<Param<Tensor<1>>>);

/// `forward(layer, x)` with a rounded weight and input, and the bias, along dimension `outputs`, in float32.
fn layer_in_half<L: Clone, const W: usize, const D: usize>(
    layer: &L,
    x: Tensor<D>,
    outputs: usize,
    forward: fn(&L, Tensor<D>) -> Tensor<D>,
    parameters: fn(&mut L) -> Parameters<'_, W>,
) -> Tensor<D> {
    let Some(cast) = Cast::of(&x) else {
        return forward(layer, x);
    };
    let mut low = layer.clone();
    let (weight, bias) = parameters(&mut low);
    *weight = weight.clone().map(|weight| cast.enter(weight));
    let bias = bias.take();
    let output = cast.leave(forward(&low, cast.enter(x)));
    match bias {
        None => output,
        Some(bias) => {
            let mut shape = [1; D];
            shape[outputs] = bias.dims()[0];
            output + bias.val().reshape(shape)
        }
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
    map_gradient(&x, move |gradient| gradient * factor).unwrap_or_else(|| {
        let constant = x.clone().detach();
        constant.clone() + (x - constant) * factor
    })
}
