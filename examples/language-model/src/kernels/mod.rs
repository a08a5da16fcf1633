//! What a transformer computes between its matrix products, in one pass each on the CPU, where Burn goes
//! through memory once for each operation. As [`layers`](crate::layers), it is Burn's elsewhere.

#[cfg(feature = "cpu-layers")]
mod attention;
#[cfg(feature = "cpu-layers")]
mod cross_entropy;
#[cfg(feature = "cpu-layers")]
mod gelu;
#[cfg(feature = "cpu-layers")]
mod norm;
#[cfg(feature = "cpu-layers")]
mod vectors;

use burn::{
    nn::LayerNorm,
    tensor::{
        Bool, Device, FloatDType, Int, Tensor,
        activation::{self, log_softmax, softmax},
    },
};

/// What is added to a variance by [`layer_norm`]. A layer of Burn does not tell its own.
pub const EPSILON: f64 = 1e-5;

/// What `layer.forward(x)` gives, within rounding, where the layer was made with [`EPSILON`]: from
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

/// The Gaussian error linear unit of each value.
///
/// Source: D. Hendrycks and K. Gimpel, Gaussian error linear units, 2016.
pub fn gelu(x: Tensor<3>) -> Tensor<3> {
    #[cfg(feature = "cpu-layers")]
    if !cfg!(debug_assertions)
        && let Some(output) = gelu::on_cpu(&x)
    {
        return output;
    }
    activation::gelu(x)
}

/// Attention of each position to itself and those before it: from queries, keys and values, each of
/// `heads` heads, side by side in `[batch, time, 3 * width]`, to `[batch, time, width]`.
///
/// Source: A. Vaswani and others, Attention is all you need, 2017.
///
/// # Panics
/// `3 * heads` does not divide the last dimension.
pub fn causal_attention(all: Tensor<3>, heads: usize) -> Tensor<3> {
    #[cfg(feature = "cpu-layers")]
    if !cfg!(debug_assertions)
        && let Some(mixed) = attention::on_cpu(&all, heads)
    {
        return mixed;
    }
    let [batch, time, width] = all.dims();
    let (width, size) = (width / 3, width / 3 / heads);
    let part = |number| {
        let part = all.clone().narrow(2, number * width, width); // [batch, time, width]
        part.reshape([batch, time, heads, size]).swap_dims(1, 2) // [batch, heads, time, size]
    };
    let (queries, keys, values) = (part(0), part(1), part(2));
    let scores = queries.matmul(keys.swap_dims(2, 3)); // [batch, heads, time, time]
    // The softmax adds up many numbers.
    let scores = scores.cast(FloatDType::F32) / (size as f64).sqrt();
    let later = later(time, &all.device());
    let shares = softmax(scores.mask_fill(later, f32::NEG_INFINITY), 3);
    let mixed = shares.cast(all.dtype()).matmul(values); // [batch, heads, time, size]
    mixed.swap_dims(1, 2).reshape([batch, time, width])
}

/// True where a row's position would look at a later one, `[1, 1, time, time]`.
fn later(time: usize, device: &Device) -> Tensor<4, Bool> {
    let device = device.clone().without_autodiff();
    // In Burn, this is false in and below the diagonal.
    Tensor::<2, Bool>::tril_mask([time, time], 0, &device).unsqueeze()
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
    let log_probabilities = log_softmax(logits, 2); // [batch, time, classes]
    let of_label = log_probabilities.gather(2, labels.unsqueeze_dim(2)); // [batch, time, 1]
    of_label.neg().squeeze_dim(2)
}

#[cfg(all(test, feature = "cpu-layers"))]
mod tests {
    use burn::{
        module::Module,
        nn::LayerNormConfig,
        tensor::{Distribution, GradientCheckpointingStrategy, TensorData, Tolerance},
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

    fn random<const D: usize>(shape: [usize; D]) -> Tensor<D> {
        let device = Device::flex().autodiff();
        Tensor::random(shape, Distribution::Normal(0.0, 2.0), &device)
    }

    /// The output, and the gradient of `x`, where that of the output differs from place to place.
    fn results<const D: usize>(x: &Tensor<3>, kernel: Kernel<D>) -> [TensorData; 2] {
        let x = x.clone().detach().require_grad();
        let output = kernel(x.clone());
        let shape = output.dims();
        let factors = Tensor::arange(0..shape.iter().product::<usize>() as i64, &x.device());
        let factors = factors.float().sin().reshape(shape);
        let gradients = (output.clone() * factors).sum().backward();
        [output.into_data(), x.grad(&gradients).unwrap().into_data()]
    }

    fn ensure_same<const D: usize>(x: &Tensor<3>, own: Kernel<D>, of_burn: Kernel<D>) {
        let tolerance = Tolerance::<f32>::rel_abs(1e-4, 1e-5);
        let (own, of_burn) = (results(x, own), results(x, of_burn));
        for (own, of_burn) in own.iter().zip(&of_burn) {
            own.assert_approx_eq(of_burn, tolerance);
        }
    }

    #[test]
    fn the_norm_is_that_of_burn() {
        for shape in SHAPES {
            let x = random(shape);
            let mut layer = LayerNormConfig::new(shape[2]).init(&x.device());
            layer.gamma = layer.gamma.map(|gamma| random(gamma.dims()).require_grad());
            layer.beta = layer
                .beta
                .map(|beta| beta.map(|beta| random(beta.dims()).require_grad()));
            let own = |x| norm::on_cpu(&layer, &x).unwrap();
            ensure_same(&x, &own, &|x| layer.forward(x));

            let of_parameters = |kernel: Kernel<3>| {
                let output = kernel(x.clone());
                let gradients = (output.clone() * output.sin()).sum().backward();
                let beta = layer.beta.as_ref().unwrap().grad(&gradients);
                [layer.gamma.grad(&gradients), beta].map(|gradient| gradient.unwrap().into_data())
            };
            let of_burn = of_parameters(&|x| layer.forward(x));
            for (own, of_burn) in of_parameters(&own).iter().zip(&of_burn) {
                own.assert_approx_eq(of_burn, Tolerance::<f32>::rel_abs(1e-3, 1e-4));
            }
        }
    }

    #[test]
    fn the_unit_is_that_of_burn() {
        for shape in SHAPES {
            let own = |x| gelu::on_cpu(&x).unwrap();
            ensure_same(&random(shape), &own, &activation::gelu);
        }
    }

    #[test]
    fn attention_is_that_of_burn() {
        for (shape, heads) in SHAPES.into_iter().zip([1, 2, 3, 4, 4, 5]) {
            let own = |all| attention::on_cpu(&all, heads).unwrap();
            // In debug builds, this is composed of Burn's operations.
            ensure_same(&random(shape), &own, &|all| causal_attention(all, heads));
        }
    }

    #[test]
    fn the_cross_entropy_is_that_of_burn() {
        for shape in SHAPES {
            let [batch, time, classes] = shape;
            let labels = Tensor::<1, Int>::arange(0..(batch * time) as i64, &Device::flex());
            let labels = (labels * 7)
                .remainder_scalar(classes as i64)
                .reshape([batch, time]);
            let own = |logits| cross_entropy::on_cpu(&logits, &labels).unwrap();
            let of_burn = |logits| cross_entropy(logits, labels.clone());
            ensure_same(&random(shape), &own, &of_burn);
        }
    }

    #[test]
    fn bits_do_not_depend_on_the_threads() {
        let x = random([9, 37, 48]);
        let layer = LayerNormConfig::new(48).init(&x.device());
        let labels = Tensor::<2, Int>::ones([9, 37], &Device::flex());
        let all = || {
            let parts = [
                results(&x, &|x| norm::on_cpu(&layer, &x).unwrap()),
                results(&x, &|x| gelu::on_cpu(&x).unwrap()),
                results(&x, &|x| attention::on_cpu(&x, 4).unwrap()),
                results(&x, &|x| cross_entropy::on_cpu(&x, &labels).unwrap()),
            ];
            let gradients = norm::on_cpu(&layer, &x).unwrap().sum().backward();
            let gamma = layer.gamma.grad(&gradients).unwrap().into_data();
            (parts, gamma)
        };
        let on = |threads| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build();
            pool.unwrap().install(all)
        };
        assert_eq!(on(1), on(3));
    }

    #[test]
    fn what_is_not_a_number_stays() {
        let broken = |shape: [usize; 3]| {
            let mut x = random(shape).into_data().try_into_vec::<f32>().unwrap();
            x[0] = f32::NAN;
            Tensor::<3>::from_data(TensorData::new(x, shape), &Device::flex())
        };
        let x = broken([1, 2, 12]);
        let layer = LayerNormConfig::new(12).init(&Device::flex()).no_grad();
        let labels = Tensor::<2, Int>::ones([1, 2], &Device::flex());
        let outputs = [
            norm::on_cpu(&layer, &x).unwrap().into_data(),
            gelu::on_cpu(&x).unwrap().into_data(),
            attention::on_cpu(&x, 2).unwrap().into_data(),
            cross_entropy::on_cpu(&x, &labels).unwrap().into_data(),
        ];
        for output in outputs {
            assert!(output.iter::<f32>().next().unwrap().is_nan(), "{output}");
        }
    }

    #[test]
    fn what_is_computed_again_is_left_to_burn() {
        let x = random([1, 2, 12]).require_grad();
        let x = x.with_gradient_checkpointing_strategy(GradientCheckpointingStrategy::Balanced);
        assert!(gelu::on_cpu(&x).is_none());
    }
}
