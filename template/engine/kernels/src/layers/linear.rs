//! Linear layers.

use burn::{
    backend::{DispatchTensor, Flex, flex::FlexTensor},
    nn::Linear,
    tensor::Tensor,
};

use crate::{
    autodiff::operation::{self, Operation, tensor},
    elementwise::add,
    half::Half,
    products::{
        matrix::{Matrix, Threads, columns_of},
        multiply_in, product_in,
    },
};

/// The output of the layer; `None` if unsupported: another device or type, gradient checkpointing, or shapes
/// that do not match, which Burn's layer reports.
pub fn on_cpu<const D: usize>(
    layer: &Linear,
    half: Option<Half>,
    x: &Tensor<D>,
) -> Option<Tensor<D>> {
    output(layer, half, &x.dims(), x.clone().into_dispatch()).map(Tensor::from_dispatch)
}

/// As [`on_cpu`], for an input of dimensions `dims`.
fn output(
    layer: &Linear,
    half: Option<Half>,
    dims: &[usize],
    x: DispatchTensor,
) -> Option<DispatchTensor> {
    let [inputs, outputs] = layer.weight.dims();
    if dims.last() != Some(&inputs) || dims.contains(&0) || outputs == 0 {
        return None;
    }
    let product = Product {
        inputs,
        outputs,
        half,
    };
    let weight = layer.weight.val().into_dispatch();
    match &layer.bias {
        Some(bias) => operation::on_cpu(product, [x, weight, bias.val().into_dispatch()]),
        None => operation::on_cpu(product, [x, weight]),
    }
}

/// `x * weight`, or `x * weight + bias`, from `[.., inputs]` to `[.., outputs]`.
#[derive(Clone, Copy, Debug)]
struct Product {
    inputs: usize,
    outputs: usize,
    /// The type of operands.
    half: Option<Half>,
}

impl Operation<Flex> for Product {
    type Kept = ();

    fn forward(&self, tensors: &[FlexTensor]) -> (FlexTensor, ()) {
        let Product {
            inputs,
            outputs,
            half,
        } = *self;
        let (x, weight, bias) = (&tensors[0], &tensors[1], tensors.get(2));
        let values = x.storage::<f32>();
        let rows = values.len() / inputs;
        let left = Matrix::new(values, [rows, inputs]);
        let right = Matrix::new(weight.storage(), [inputs, outputs]);
        // [rows, outputs]
        let output = match bias {
            Some(bias) => {
                let mut output = bias.storage::<f32>().repeat(rows);
                multiply_in(half, &mut output, true, left, right, Threads::All);
                output
            }
            None => product_in(half, left, right, Threads::All),
        };
        (rows_of(x, output, outputs), ())
    }

    fn backward(
        &self,
        tensors: &[FlexTensor],
        (): (),
        gradient: FlexTensor,
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let Product {
            inputs,
            outputs,
            half,
        } = *self;
        let (x, weight) = (&tensors[0], &tensors[1]);
        let values = gradient.storage::<f32>();
        let rows = values.len() / outputs;
        let gradient = Matrix::new(values, [rows, outputs]);
        let of_x = || {
            let weight = Matrix::new(weight.storage(), [inputs, outputs]);
            rows_of(x, x_gradient(half, gradient, weight), inputs)
        };
        let of_weight = || {
            let x = Matrix::new(x.storage(), [rows, inputs]).transposed();
            let sums = product_in(half, x, gradient, Threads::All);
            tensor(sums, [inputs, outputs])
        };
        let of_bias = || tensor(sum_of_rows(values, outputs), [outputs]);
        vec![
            wanted[0].then(of_x),
            wanted[1].then(of_weight),
            (wanted.get(2) == Some(&true)).then(of_bias),
        ]
    }
}

/// A tensor of the shape of `like`, except for rows of `columns` values.
fn rows_of(like: &FlexTensor, values: Vec<f32>, columns: usize) -> FlexTensor {
    let mut dims: Vec<usize> = like.layout().shape().iter().copied().collect();
    if let Some(last) = dims.last_mut() {
        *last = columns;
    }
    tensor(values, dims)
}

/// `gradient * transposed weight`, `[rows, inputs]`, from `[rows, outputs]` and `[inputs, outputs]`.
fn x_gradient(half: Option<Half>, gradient: Matrix, weight: Matrix) -> Vec<f32> {
    let ([rows, outputs], [inputs, _]) = (gradient.size(), weight.size());
    // In bfloat16, all operands are packed at the same cost.
    if rows >= outputs || half == Some(Half::Bfloat16) {
        return product_in(half, gradient, weight.transposed(), Threads::All);
    }
    // The library packs its operands, and packing a large transposed weight can take as long as the
    // product. The transposed product uses the weight as it is.
    let product = product_in(half, weight, gradient.transposed(), Threads::All);
    columns_of(Matrix::new(&product, [inputs, rows]), Threads::All)
}

/// `[columns]` from `[rows, columns]`.
fn sum_of_rows(values: &[f32], columns: usize) -> Vec<f32> {
    let mut sums = vec![0.0; columns];
    for row in values.chunks_exact(columns) {
        add(&mut sums, row);
    }
    sums
}

#[cfg(test)]
mod tests {
    use burn::{
        module::Module,
        nn::LinearConfig,
        tensor::{Device, Distribution, TensorData, Tolerance},
    };
    use rayon::ThreadPoolBuilder;

    use super::*;

    type Layer<'a> = &'a dyn Fn(&Linear, Tensor<3>) -> Tensor<3>;

    fn device() -> Device {
        let device = Device::flex().autodiff();
        device.seed(1);
        device
    }

    fn own(layer: &Linear, x: Tensor<3>) -> Tensor<3> {
        on_cpu(layer, None, &x).expect("a layer for this module")
    }

    /// The output, and the gradients of input, weight and bias (if any), for a non-constant gradient of the
    /// output.
    fn results(linear: &Linear, x: &Tensor<3>, layer: Layer) -> Vec<TensorData> {
        let x = x.clone().detach().require_grad();
        let output = layer(linear, x.clone());
        let gradients = (output.clone() * output.clone().sin()).sum().backward();
        let bias = linear.bias.as_ref().map(|bias| bias.grad(&gradients));
        let mut all = vec![output.into_data(), x.grad(&gradients).unwrap().into_data()];
        all.push(linear.weight.grad(&gradients).unwrap().into_data());
        all.extend(bias.map(|bias| bias.unwrap().into_data()));
        all
    }

    /// Layers, with input shapes of more and of fewer rows than outputs.
    fn cases() -> Vec<(LinearConfig, [usize; 3])> {
        vec![
            (LinearConfig::new(5, 7), [2, 3, 5]),
            (LinearConfig::new(33, 70), [1, 37, 33]),
            (LinearConfig::new(3, 2).with_bias(false), [4, 5, 3]),
            (LinearConfig::new(784, 257), [1, 128, 784]),
            (LinearConfig::new(1, 1), [1, 1, 1]),
        ]
    }

    fn random(shape: [usize; 3], device: &Device) -> Tensor<3> {
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
    }

    #[test]
    fn outputs_and_gradients_are_those_of_burn() {
        let device = device();
        for (config, shape) in cases() {
            let (linear, x) = (config.init(&device), random(shape, &device));
            let ours = results(&linear, &x, &own);
            let theirs = results(&linear, &x, &|linear, x| linear.forward(x));
            assert_eq!(ours.len(), theirs.len());
            for (ours, theirs) in ours.iter().zip(&theirs) {
                ours.assert_approx_eq::<f32>(theirs, Tolerance::rel_abs(1e-4, 1e-4));
            }
            let plain = linear.clone().valid();
            let output = own(&plain, x.clone().inner()).into_data();
            output.assert_eq(&ours[0], true);
        }
    }

    #[test]
    fn threads_do_not_change_a_bit() {
        let device = device();
        let (linear, x) = (
            LinearConfig::new(784, 257).init(&device),
            random([1, 128, 784], &device),
        );
        let with = |threads| {
            let pool = ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            pool.install(|| results(&linear, &x, &own))
        };
        let one = with(1);
        for threads in [2, 3, 7] {
            for (one, other) in one.iter().zip(with(threads)) {
                other.assert_eq(one, true);
            }
        }
    }

    #[test]
    fn a_frozen_layer_passes_gradients_on() {
        let device = device();
        let linear = LinearConfig::new(5, 7).init(&device).no_grad();
        let x = random([1, 2, 5], &device).require_grad();
        let gradient = |layer: Layer| {
            let gradients = layer(&linear, x.clone()).sum().backward();
            assert!(linear.weight.grad(&gradients).is_none());
            x.grad(&gradients).unwrap().into_data()
        };
        let theirs = gradient(&|linear, x| linear.forward(x));
        gradient(&own).assert_approx_eq::<f32>(&theirs, Tolerance::default());
    }

    #[test]
    fn sizes_that_do_not_fit_are_left_to_burn() {
        let device = device();
        let linear = LinearConfig::new(5, 7).init(&device);
        assert!(on_cpu(&linear, None, &random([1, 2, 4], &device)).is_none());
        assert!(on_cpu(&linear, None, &random([1, 0, 5], &device)).is_none());
    }
}
