//! What a transformer computes between its matrix products, on the CPU in few passes over memory, where
//! Burn takes one for each operation. Like [`layers`](kiln_engine::layers), it is Burn's elsewhere.

#[cfg(feature = "cpu-layers")]
mod attention;
#[cfg(feature = "cpu-layers")]
mod cross_entropy;
#[cfg(feature = "cpu-layers")]
mod norm;
#[cfg(feature = "cpu-layers")]
mod rows;

use burn::{
    nn::{LayerNorm, LayerNormConfig},
    tensor::{Device, Int, Tensor, activation::log_softmax},
};
use kiln_engine::layers;

/// What is added to the variance in a norm. A layer of Burn does not tell its own.
const EPSILON: f64 = 1e-5;

/// A layer for [`layer_norm`].
pub fn create_layer_norm(width: usize, device: &Device) -> LayerNorm {
    let norm = LayerNormConfig::new(width).with_epsilon(EPSILON);
    norm.init(device)
}

/// What `layer.forward(x)` gives, within rounding, for a layer of [`create_layer_norm`]: from
/// `[batch, time, width]` to the same shape.
///
/// # Panics
/// As [`LayerNorm::forward`]: shapes that do not fit.
pub fn layer_norm(layer: &LayerNorm, x: Tensor<3>) -> Tensor<3> {
    #[cfg(feature = "cpu-layers")]
    if !cfg!(debug_assertions)
        && let Some(normed) = norm::on_cpu(layer, &x)
    {
        return normed;
    }
    layer.forward(x)
}

/// Attention of each position to itself and those before it: from queries, keys and values, each of
/// `heads` heads, side by side in `[batch, time, 3 * width]`, to `[batch, time, width]`.
///
/// Source: A. Vaswani and others, Attention is all you need, 2017.
///
/// # Panics
/// `3 * heads` does not divide the last dimension.
pub fn causal_attention(all: Tensor<3>, heads: usize) -> Tensor<3> {
    let width = all.dims()[2];
    assert!(
        heads > 0 && width.is_multiple_of(3 * heads),
        "{width} values are not queries, keys and values of {heads} heads"
    );
    #[cfg(feature = "cpu-layers")]
    if !cfg!(debug_assertions)
        && let Some(mixed) = attention::on_cpu(&all, heads)
    {
        let [batch, time, width] = all.dims();
        // Queries by keys, and their scores by values; twice each in the backward pass.
        let product = 2.0 * (batch * time * time * width / 3) as f64;
        kiln_engine::flops::add(2.0 * product, 4.0 * product);
        return mixed;
    }
    attention_of_parts(all, heads)
}

fn attention_of_parts(all: Tensor<3>, heads: usize) -> Tensor<3> {
    let [batch, time, width] = all.dims();
    let (width, size) = (width / 3, width / 3 / heads);
    let part = |number| {
        let part = all.clone().narrow(2, number * width, width); // [batch, time, width]
        part.reshape([batch, time, heads, size]).swap_dims(1, 2) // [batch, heads, time, size]
    };
    let mixed = layers::causal_attention(part(0), part(1), part(2)); // [batch, heads, time, size]
    mixed.swap_dims(1, 2).reshape([batch, time, width])
}

/// The negative logarithm of the probability of each label: from logits `[batch, time, classes]` and
/// labels `[batch, time]` to `[batch, time]`.
///
/// # Panics
/// A label is no class.
pub fn cross_entropy(logits: Tensor<3>, labels: Tensor<2, Int>) -> Tensor<2> {
    #[cfg(feature = "cpu-layers")]
    if !cfg!(debug_assertions)
        && let Some(losses) = cross_entropy::on_cpu(&logits, &labels)
    {
        return losses;
    }
    composed_cross_entropy(logits, labels)
}

fn composed_cross_entropy(logits: Tensor<3>, labels: Tensor<2, Int>) -> Tensor<2> {
    let log_probabilities = log_softmax(logits, 2); // [batch, time, classes]
    let of_label = log_probabilities.gather(2, labels.unsqueeze_dim(2)); // [batch, time, 1]
    of_label.neg().squeeze_dim(2)
}

#[cfg(all(test, feature = "cpu-layers"))]
mod tests {
    use burn::{
        module::Module,
        tensor::{DType, GradientCheckpointingStrategy, TensorData, Tolerance},
    };
    use rayon::ThreadPoolBuilder;

    use super::*;

    type Kernel<'a, const D: usize> = &'a dyn Fn(Tensor<3>) -> Tensor<D>;

    /// Shapes around those at which vectors and pieces for threads end.
    const SHAPES: [[usize; 3]; 6] = [
        [1, 1, 24],
        [2, 3, 12],
        [3, 70, 36],
        [2, 65, 48],
        [1, 64, 192],
        [5, 17, 120],
    ];

    /// Distinct values between `-size` and `size`.
    fn values<const D: usize>(shape: [usize; D], size: f32) -> Tensor<D> {
        let places = 0..shape.iter().product();
        let values: Vec<f32> = places
            .map(|place| ((place * 7_919 % 2_003) as f32 / 1_001.0 - 1.0) * size)
            .collect();
        Tensor::from_data(TensorData::new(values, shape), &Device::flex().autodiff())
    }

    /// The output, and the gradient of `x`, where that of the output differs from place to place.
    fn results<const D: usize>(x: &Tensor<3>, kernel: Kernel<D>) -> [TensorData; 2] {
        let x = x.clone().detach().require_grad();
        let output = kernel(x.clone());
        let factors = values(output.dims(), 1.0);
        let gradients = (output.clone() * factors).sum().backward();
        [output.into_data(), x.grad(&gradients).unwrap().into_data()]
    }

    fn ensure_same<const D: usize>(x: &Tensor<3>, own: Kernel<D>, of_burn: Kernel<D>) {
        let (own, of_burn) = (results(x, own), results(x, of_burn));
        for (own, of_burn) in own.iter().zip(&of_burn) {
            let largest = of_burn.iter::<f32>().map(f32::abs).fold(1.0, f32::max);
            own.assert_approx_eq(of_burn, Tolerance::<f32>::rel_abs(1e-4, 1e-5 * largest));
        }
    }

    fn norm(width: usize) -> LayerNorm {
        let mut layer = create_layer_norm(width, &Device::flex().autodiff());
        let factors = values([width], 3.0).require_grad();
        layer.gamma = layer.gamma.map(|_| factors.clone().detach().require_grad());
        layer.beta = layer.beta.map(|beta| beta.map(|_| factors));
        layer
    }

    fn own_norm(layer: &LayerNorm) -> impl Fn(Tensor<3>) -> Tensor<3> {
        move |x| norm::on_cpu(layer, &x).unwrap()
    }

    fn labels([batch, time, classes]: [usize; 3]) -> Tensor<2, Int> {
        let labels = Tensor::<1, Int>::arange(0..(batch * time) as i64, &Device::flex());
        let labels = (labels * 7).remainder_scalar(classes as i64);
        labels.reshape([batch, time])
    }

    #[test]
    fn the_norm_is_that_of_burn() {
        for shape in SHAPES {
            let layer = norm(shape[2]);
            // Where the variance is as small as what is added to it, too.
            for size in [1e-3, 3.0, 1e3] {
                let x = values(shape, size);
                let own = own_norm(&layer);
                ensure_same(&x, &own, &|x| layer.forward(x));
            }
        }
    }

    #[test]
    fn the_parameters_of_a_norm_get_the_gradients_of_burn() {
        for shape in SHAPES {
            let layer = norm(shape[2]);
            let of_parameters = |kernel: Kernel<3>| {
                let output = kernel(values(shape, 2.0));
                let gradients = (output.clone() * output.sin()).sum().backward();
                let beta = layer.beta.as_ref().unwrap().grad(&gradients);
                [layer.gamma.grad(&gradients), beta].map(|gradient| gradient.unwrap().into_data())
            };
            let own = of_parameters(&own_norm(&layer));
            let of_burn = of_parameters(&|x| layer.forward(x));
            for (own, of_burn) in own.iter().zip(&of_burn) {
                own.assert_approx_eq(of_burn, Tolerance::<f32>::rel_abs(1e-3, 1e-3));
            }
        }
    }

    #[test]
    fn attention_is_that_of_burn() {
        for (shape, heads) in SHAPES.into_iter().zip([1, 2, 3, 4, 4, 5]) {
            for size in [1.0, 8.0] {
                let own = |all| attention::on_cpu(&all, heads).unwrap();
                let of_burn = |all| attention_of_parts(all, heads);
                ensure_same(&values(shape, size), &own, &of_burn);
            }
        }
    }

    #[test]
    fn the_cross_entropy_is_that_of_burn() {
        for shape in SHAPES {
            let labels = labels(shape);
            for size in [1.0, 1e4] {
                let own = |logits| cross_entropy::on_cpu(&logits, &labels).unwrap();
                let of_burn = |logits| composed_cross_entropy(logits, labels.clone());
                ensure_same(&values(shape, size), &own, &of_burn);
            }
        }
    }

    #[test]
    fn bits_depend_on_neither_threads_nor_recording() {
        let shape = [9, 37, 48];
        let (x, layer, labels) = (values(shape, 2.0), norm(48), labels(shape));
        let layer = &layer;
        let all = |x: &Tensor<3>, layer: &LayerNorm| {
            let outputs = [
                norm::on_cpu(layer, x),
                attention::on_cpu(x, 4),
                cross_entropy::on_cpu(x, &labels).map(Tensor::unsqueeze),
            ];
            outputs.map(|output| output.unwrap().into_data())
        };
        let recorded = || {
            let gradients = own_norm(layer)(x.clone()).sum().backward();
            let gamma = layer.gamma.grad(&gradients).unwrap().into_data();
            (results(&x, &own_norm(layer)), gamma, all(&x, layer))
        };
        let on = |threads| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build();
            pool.unwrap().install(recorded)
        };
        assert_eq!(on(1), on(3));
        assert_eq!(all(&x.clone().inner(), &layer.valid()), on(1).2);
    }

    #[test]
    fn what_is_not_a_number_stays() {
        let broken = |shape: [usize; 3]| {
            let x = values(shape, 2.0).inner();
            x.slice_fill([0..1, 0..1, 0..1], f32::NAN)
        };
        let x = broken([1, 2, 12]);
        let outputs = [
            norm::on_cpu(&norm(12).valid(), &x).unwrap().into_data(),
            attention::on_cpu(&x, 2).unwrap().into_data(),
            cross_entropy::on_cpu(&x, &labels([1, 2, 12]))
                .unwrap()
                .into_data(),
        ];
        for output in outputs {
            assert!(output.iter::<f32>().next().unwrap().is_nan(), "{output}");
        }
    }

    #[test]
    fn other_types_and_what_is_computed_again_are_left_to_burn() {
        let x = values([1, 2, 12], 2.0);
        assert!(attention::on_cpu(&x.clone().cast(DType::F64), 2).is_none());
        let x = x.with_gradient_checkpointing_strategy(GradientCheckpointingStrategy::Balanced);
        assert!(attention::on_cpu(&x, 2).is_none());
    }

    #[test]
    fn views_are_read_in_their_order() {
        let x = values([4, 3, 12], 2.0);
        let swapped = x.clone().swap_dims(0, 1);
        let copied = Tensor::<3>::from_data(swapped.to_data(), &x.device());
        let own = |x: &Tensor<3>| attention::on_cpu(x, 2).unwrap().into_data();
        assert_eq!(own(&swapped), own(&copied));
    }

    #[test]
    #[should_panic = "index out of bounds"]
    fn a_label_that_is_no_class_is_refused() {
        let labels = Tensor::<2, Int>::from_ints([[12]], &Device::flex());
        cross_entropy::on_cpu(&values([1, 1, 12], 1.0), &labels);
    }

    #[test]
    #[should_panic = "14 values are not queries, keys and values of 2 heads"]
    fn heads_that_do_not_fit_are_refused() {
        causal_attention(values([1, 1, 14], 1.0), 2);
    }
}
