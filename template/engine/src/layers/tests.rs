//! Layer norm, causal self-attention and cross-entropy on the CPU against the operations of Burn.

use burn::{
    module::Module,
    nn::LayerNormConfig,
    tensor::{DType, Device, GradientCheckpointingStrategy, TensorData, Tolerance},
};
use rayon::ThreadPoolBuilder;

use kiln_kernels::layers::{cross_entropy, norm};

use super::{
    attention::{attend_by_heads, on_cpu},
    *,
};

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

/// The output, and the gradient of `x` for a non-constant gradient of the output.
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

/// A layer whose parameters differ from each other.
fn norm(width: usize) -> LayerNorm {
    distinct(&LayerNormConfig::new(width))
}

fn distinct(config: &LayerNormConfig) -> LayerNorm {
    let width = config.d_model;
    let mut layer = config.init(&Device::flex().autodiff());
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
        // With a variance of the size of epsilon, too.
        for size in [1e-3, 3.0, 1e3] {
            let x = values(shape, size);
            let own = own_norm(&layer);
            ensure_same(&x, &own, &|x| layer.forward(x));
        }
    }
}

#[test]
fn each_norm_has_its_own_epsilon_and_may_have_no_bias() {
    for epsilon in [1e-12, 1e-5, 0.1, 3.0] {
        for bias in [true, false] {
            let config = LayerNormConfig::new(36);
            let layer = distinct(&config.with_epsilon(epsilon).with_bias(bias));
            assert_eq!(norm::epsilon(&layer), Some(epsilon));
            let x = values([2, 3, 36], 0.1);
            ensure_same(&x, &own_norm(&layer), &|x| layer.forward(x));
        }
    }
}

#[test]
fn rows_of_any_rank_are_normalized() {
    let (layer, x) = (norm(12), values([2, 3, 12], 2.0));
    let expected = layer_norm(&layer, x.clone()).into_data();
    let of_flat = layer_norm(&layer, x.reshape([6, 12])).into_data();
    assert!(of_flat.iter::<f32>().eq(expected.iter::<f32>()));
    let other = norm::on_cpu(&layer, &values([2, 3, 24], 2.0));
    assert!(other.is_none(), "Burn's layer reports another width");
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
            let own = |all| on_cpu(&all, heads).unwrap();
            let of_burn = |all| attend_by_heads(all, heads);
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
            on_cpu(x, 4),
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
        on_cpu(&x, 2).unwrap().into_data(),
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
    assert!(on_cpu(&x.clone().cast(DType::F64), 2).is_none());
    let x = x.with_gradient_checkpointing_strategy(GradientCheckpointingStrategy::Balanced);
    assert!(on_cpu(&x, 2).is_none());
}

#[test]
fn views_are_read_in_their_order() {
    let x = values([4, 3, 12], 2.0);
    let swapped = x.clone().swap_dims(0, 1);
    let copied = Tensor::<3>::from_data(swapped.to_data(), &x.device());
    let own = |x: &Tensor<3>| on_cpu(x, 2).unwrap().into_data();
    assert_eq!(own(&swapped), own(&copied));
}

#[test]
#[should_panic = "14 values are not queries, keys and values of 2 heads"]
fn heads_that_do_not_fit_are_refused() {
    causal_self_attention(values([1, 1, 14], 1.0), 2);
}
