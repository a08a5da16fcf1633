//! Convolutions: batches split into pieces for all threads.

mod passes;
mod sizes;
mod unfolded;

use std::ops::Range;

use burn::{
    backend::{Flex, flex::FlexTensor},
    nn::{PaddingConfig2d, conv::Conv2d, pool::MaxPool2d},
    tensor::Tensor,
};
use rayon::prelude::*;

use self::{
    sizes::Convolution,
    unfolded::{Buffers, Gradients},
};
use crate::{
    autodiff::operation::{self, Operation, tensor},
    elementwise::add,
    half::Half,
};

/// Parts of a batch with partial gradient sums; independent of the number of threads, for a fixed order
/// of summation.
const PARTS: usize = 16;

/// True for a 2x2 max pooling with stride 2.
pub fn is_2x2(pool: &MaxPool2d) -> bool {
    let unpadded = matches!(
        pool.padding,
        PaddingConfig2d::Valid | PaddingConfig2d::Explicit(0, 0, 0, 0)
    );
    let sizes = [pool.kernel_size, pool.stride, pool.dilation];
    unpadded && sizes == [[2, 2], [2, 2], [1, 1]] && !pool.ceil_mode
}

/// The output of the layer; `None` if unsupported: another device or type, gradient checkpointing, groups,
/// or shapes that do not match, which Burn's layer reports. If `pooled`, a ReLU and a 2x2 max pooling follow.
pub fn on_cpu(
    layer: &Conv2d,
    pooled: bool,
    half: Option<Half>,
    x: &Tensor<4>,
) -> Option<Tensor<4>> {
    let convolution = convolution(layer, pooled, half, x)?;
    let [x, weight] = [x.clone(), layer.weight.val()].map(Tensor::into_dispatch);
    let output = match &layer.bias {
        Some(bias) => operation::on_cpu(convolution, [x, weight, bias.val().into_dispatch()]),
        None => operation::on_cpu(convolution, [x, weight]),
    };
    output.map(Tensor::from_dispatch)
}

fn convolution(
    layer: &Conv2d,
    pooled: bool,
    half: Option<Half>,
    x: &Tensor<4>,
) -> Option<Convolution> {
    let [batch, channels, height, width] = x.dims();
    let [outputs, inputs, rows, columns] = layer.weight.dims();
    let image = [height, width];
    let padding = match layer.padding {
        PaddingConfig2d::Valid => [(0, 0); 2],
        PaddingConfig2d::Explicit(top, left, bottom, right) => [(top, bottom), (left, right)],
        PaddingConfig2d::Same => [0, 1].map(|axis| {
            let stride = layer.stride[axis];
            let reach =
                image[axis].div_ceil(stride).saturating_sub(1) * stride + layer.kernel_size[axis];
            let needed = reach.saturating_sub(image[axis]);
            (needed / 2, needed - needed / 2)
        }),
    };
    let convolution = Convolution {
        channels,
        image,
        outputs,
        kernel: [rows, columns],
        stride: layer.stride,
        dilation: layer.dilation,
        padding,
        pooled,
        half,
    };
    let is_ours = layer.groups == 1 && inputs == channels && batch > 0;
    let is_ours = is_ours && convolution.fits() && convolution.output_values() > 0;
    is_ours.then_some(convolution)
}

impl Operation<Flex> for Convolution {
    /// With pooling, the argmax of each window.
    type Kept = Vec<u32>;

    fn forward(&self, inputs: &[FlexTensor]) -> (FlexTensor, Self::Kept) {
        let (x, weight) = (&inputs[0], self.weight_by_tap(inputs[1].storage()));
        let zeros = vec![0.0; self.outputs];
        let bias = inputs.get(2).map_or(&zeros[..], |bias| bias.storage());
        let parameters = [&weight, bias];
        let images = x.storage::<f32>();
        let batch = images.len() / self.image_values();
        let (group, values) = (self.group(), self.output_values());
        let mut output = vec![0.0; batch * values];
        let mut chosen = vec![0; if self.pooled { batch * values } else { 0 }];
        // Empty without pooling.
        let mut pieces: Vec<&mut [u32]> = chosen.chunks_mut(group * values).collect();
        pieces.resize_with(batch.div_ceil(group), Default::default);
        output
            .par_chunks_mut(group * values)
            .zip(images.par_chunks(group * self.image_values()))
            .zip(pieces)
            .for_each_init(
                || self.buffers(),
                |buffers, ((output, images), chosen)| {
                    self.forward_group(images, parameters, buffers, output, chosen);
                },
            );
        let [rows, columns] = self.output();
        let output = tensor(output, [batch, self.outputs, rows, columns]);
        (output, chosen)
    }

    fn backward(
        &self,
        inputs: &[FlexTensor],
        chosen: Self::Kept,
        gradient: FlexTensor,
        wanted: &[bool],
    ) -> Vec<Option<FlexTensor>> {
        let (x, weight) = (&inputs[0], &inputs[1]);
        let [of_images, of_weight] = [wanted[0], wanted[1]];
        let of_bias = wanted.get(2) == Some(&true);
        let images = x.storage::<f32>();
        let image_values = self.image_values();
        let batch = images.len() / image_values;
        let part = batch.div_ceil(PARTS);
        let mut image_gradient = vec![0.0; if of_images { images.len() } else { 0 }];
        let mut pieces: Vec<&mut [f32]> = image_gradient.chunks_mut(part * image_values).collect();
        pieces.resize_with(batch.div_ceil(part), Default::default);
        let by_output = of_images.then(|| self.weight_by_output(weight.storage()));
        let inputs = Inputs {
            images,
            weight: &by_output.unwrap_or_default(),
            gradient: gradient.storage(),
            chosen: &chosen,
        };
        let weights = if of_weight {
            self.taps() * self.outputs
        } else {
            0
        };
        let biases = if of_bias { self.outputs } else { 0 };
        let sums = pieces.into_par_iter().enumerate().map_init(
            || self.buffers(),
            |buffers, (number, image_gradient)| {
                let mut sums = Gradients {
                    weight: vec![0.0; weights],
                    bias: vec![0.0; biases],
                };
                let part = number * part..batch.min((number + 1) * part);
                self.backward_part(part, &inputs, buffers, &mut sums, image_gradient);
                sums
            },
        );
        let sum = sums
            .collect::<Vec<_>>()
            .into_iter()
            .reduce(|mut sum, part| {
                add(&mut sum.weight, &part.weight);
                add(&mut sum.bias, &part.bias);
                sum
            });
        let sum = sum.expect("a batch has images");
        let like = |values, other: &FlexTensor| tensor(values, other.layout().shape().clone());
        vec![
            of_images.then(|| like(image_gradient, x)),
            of_weight.then(|| like(self.weight_gradient(&sum.weight), weight)),
            of_bias.then(|| tensor(sum.bias, [self.outputs])),
        ]
    }
}

/// The inputs of the backward pass.
struct Inputs<'a> {
    images: &'a [f32],
    /// By output; empty if the gradient of the images is not needed.
    weight: &'a [f32],
    gradient: &'a [f32],
    chosen: &'a [u32],
}

impl Convolution {
    /// Adds the gradients of a part's images to the sums, by group.
    fn backward_part(
        &self,
        part: Range<usize>,
        inputs: &Inputs,
        buffers: &mut Buffers,
        sums: &mut Gradients,
        mut image_gradient: &mut [f32],
    ) {
        let (image_values, values) = (self.image_values(), self.output_values());
        for start in part.clone().step_by(self.group()) {
            let group = start..part.end.min(start + self.group());
            let images = group.start * image_values..group.end * image_values;
            let outputs = group.start * values..group.end * values;
            let wanted = images.len().min(image_gradient.len());
            let of_group;
            (of_group, image_gradient) = image_gradient.split_at_mut(wanted);
            let chosen = match self.pooled {
                true => &inputs.chosen[outputs.clone()],
                false => &[],
            };
            self.backward_group(
                &inputs.images[images],
                inputs.weight,
                (&inputs.gradient[outputs], chosen),
                buffers,
                sums,
                of_group,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        module::Module,
        nn::{Initializer, conv::Conv2dConfig, pool::MaxPool2dConfig},
        tensor::{DType, Device, Distribution, TensorData, Tolerance, activation::relu},
    };
    use rayon::ThreadPoolBuilder;

    use super::*;

    type Layer<'a> = &'a dyn Fn(&Conv2d, Tensor<4>) -> Tensor<4>;

    fn device() -> Device {
        let device = Device::flex().autodiff();
        device.seed(1);
        device
    }

    fn random(shape: [usize; 4], device: &Device) -> Tensor<4> {
        Tensor::random(shape, Distribution::Normal(0.0, 1.0), device)
    }

    /// The output, and the gradients of images, weight and bias (if any), for a non-constant gradient of the
    /// output.
    fn results(conv: &Conv2d, x: &Tensor<4>, layer: Layer) -> Vec<TensorData> {
        let x = x.clone().detach().require_grad();
        let output = layer(conv, x.clone());
        let shape: [usize; 4] = output.dims();
        let factors = Tensor::arange(0..shape.iter().product::<usize>() as i64, &x.device());
        let factors = factors.float().sin().reshape(shape);
        let gradients = (output.clone() * factors).sum().backward();
        let bias = conv.bias.as_ref().map(|bias| bias.grad(&gradients));
        let mut all = vec![output.into_data(), x.grad(&gradients).unwrap().into_data()];
        all.push(conv.weight.grad(&gradients).unwrap().into_data());
        all.extend(bias.map(|bias| bias.unwrap().into_data()));
        all
    }

    fn own(pooled: bool) -> impl Fn(&Conv2d, Tensor<4>) -> Tensor<4> {
        move |conv, x| on_cpu(conv, pooled, None, &x).expect("a convolution for this module")
    }

    fn of_burn(pooled: bool) -> impl Fn(&Conv2d, Tensor<4>) -> Tensor<4> {
        let pool = MaxPool2dConfig::new([2, 2]).init();
        move |conv, x| match pooled {
            true => pool.forward(relu(conv.forward(x))),
            false => conv.forward(x),
        }
    }

    /// Convolutions of all kinds, and images for them.
    fn cases() -> Vec<(Conv2dConfig, [usize; 4])> {
        let conv = Conv2dConfig::new;
        let same = PaddingConfig2d::Same;
        let uneven = PaddingConfig2d::Explicit(2, 0, 1, 3);
        vec![
            (conv([1, 32], [3, 3]), [3, 1, 28, 28]),
            (conv([8, 5], [3, 3]), [37, 8, 7, 6]),
            (conv([3, 4], [1, 1]).with_bias(false), [17, 3, 5, 4]),
            (
                conv([3, 4], [2, 4]).with_padding(same.clone()),
                [2, 3, 9, 35],
            ),
            (conv([3, 4], [5, 3]).with_padding(uneven), [1, 3, 6, 6]),
            (conv([2, 3], [3, 3]).with_stride([2, 3]), [5, 2, 12, 13]),
            (
                conv([2, 3], [3, 2]).with_padding(same).with_stride([3, 2]),
                [20, 2, 8, 7],
            ),
            (conv([2, 3], [3, 2]).with_dilation([2, 3]), [4, 2, 11, 9]),
            // Unfolded in pieces of several rows.
            (conv([64, 3], [7, 7]), [2, 64, 15, 27]),
        ]
    }

    #[test]
    fn outputs_and_gradients_are_those_of_burn() {
        let device = device();
        for (config, images) in cases() {
            let (conv, x) = (config.init(&device), random(images, &device));
            for pooled in [false, true] {
                let own = results(&conv, &x, &own(pooled));
                let burns = results(&conv, &x, &of_burn(pooled));
                assert_eq!(own.len(), burns.len());
                for (own, burns) in own.iter().zip(&burns) {
                    own.assert_approx_eq::<f32>(burns, Tolerance::rel_abs(1e-4, 1e-4));
                }
            }
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bits() {
        let device = device();
        let conv = Conv2dConfig::new([3, 4], [3, 3]).init(&device);
        let x = random([45, 3, 10, 10], &device);
        let with = |threads| {
            let pool = ThreadPoolBuilder::new().num_threads(threads).build();
            pool.unwrap().install(|| results(&conv, &x, &own(true)))
        };
        assert_eq!(with(1), with(3));
    }

    #[test]
    fn what_a_thread_keeps_of_another_convolution_changes_no_bit() {
        let device = device();
        let value = f64::NAN;
        let other = Conv2dConfig::new([9, 40], [7, 7]);
        let other = other.with_initializer(Initializer::Constant { value });
        let (other, images) = (other.init(&device), random([9, 9, 20, 20], &device));
        let thread = || ThreadPoolBuilder::new().num_threads(1).build().unwrap();
        let used = thread();
        for (config, shape) in cases() {
            let (conv, x) = (config.init(&device), random(shape, &device));
            for pooled in [false, true] {
                let new = thread().install(|| results(&conv, &x, &own(pooled)));
                used.install(|| results(&other, &images, &own(pooled)));
                let again = used.install(|| results(&conv, &x, &own(pooled)));
                assert_eq!(again, new, "{conv}");
            }
        }
    }

    #[test]
    fn an_image_has_the_same_bits_in_any_batch() {
        let device = device();
        for (config, [_, channels, height, width]) in cases() {
            let conv = config.init(&device);
            let images = random([5, channels, height, width], &device);
            let all = on_cpu(&conv, false, None, &images).unwrap();
            for (number, image) in images.split(1, 0).into_iter().enumerate() {
                let alone = on_cpu(&conv, false, None, &image).unwrap().into_data();
                let of_all = all.clone().narrow(0, number, 1).into_data();
                assert_eq!(alone, of_all, "{conv}, image {number}");
            }
        }
    }

    #[test]
    fn without_recording_outputs_are_the_same() {
        let device = device();
        let conv = Conv2dConfig::new([3, 4], [3, 3]).init(&device);
        let x = random([5, 3, 10, 10], &device);
        let recorded = on_cpu(&conv, true, None, &x).unwrap().into_data();
        assert_eq!(
            on_cpu(&conv.valid(), true, None, &x.inner())
                .unwrap()
                .into_data(),
            recorded
        );
    }

    #[test]
    fn frozen_weights_get_no_gradient_and_images_still_do() {
        let device = device();
        let conv = Conv2dConfig::new([3, 4], [3, 3]).init(&device).no_grad();
        let x = random([5, 3, 10, 10], &device).require_grad();
        let gradients = on_cpu(&conv, true, None, &x).unwrap().sum().backward();
        assert!(conv.weight.grad(&gradients).is_none());
        let expected = of_burn(true)(&conv, x.clone()).sum().backward();
        let [own, burns] = [&gradients, &expected].map(|all| x.grad(all).unwrap().into_data());
        own.assert_approx_eq::<f32>(&burns, Tolerance::rel_abs(1e-4, 1e-4));
    }

    #[test]
    fn what_is_not_a_number_stays_so() {
        let device = device();
        let conv = Conv2dConfig::new([1, 1], [1, 1]).init(&device);
        for place in 0..4 {
            let mut values = [1.0; 4];
            values[place] = f32::NAN;
            let x = Tensor::<1>::from_floats(values, &device).reshape([1, 1, 2, 2]);
            let pooled: f32 = on_cpu(&conv, true, None, &x).unwrap().into_scalar();
            assert!(pooled.is_nan(), "{place}");
        }
    }

    #[test]
    fn what_this_module_does_not_do_is_left_to_burn() {
        let device = device();
        let x = random([2, 4, 5, 5], &device);
        let is_left = |config: Conv2dConfig, x: &Tensor<4>| {
            on_cpu(&config.init(&x.device()), false, None, x).is_none()
        };
        let conv = |channels| Conv2dConfig::new(channels, [3, 3]);
        assert!(!is_left(conv([4, 4]), &x));
        assert!(is_left(conv([4, 4]).with_groups(2), &x));
        assert!(is_left(conv([3, 4]), &x), "other channels");
        assert!(
            is_left(Conv2dConfig::new([4, 4], [6, 6]), &x),
            "a large kernel"
        );
        assert!(
            is_left(conv([4, 4]), &x.clone().cast(DType::F64)),
            "another type"
        );
        let checkpointed = random(
            [2, 4, 5, 5],
            &Device::flex().autodiff().gradient_checkpointing(),
        );
        assert!(is_left(conv([4, 4]), &checkpointed), "checkpointing");
        let pool = MaxPool2dConfig::new([2, 2]);
        assert!(is_2x2(&pool.init()));
        assert!(!is_2x2(&pool.clone().with_strides([1, 1]).init()));
        assert!(!is_2x2(&pool.clone().with_ceil_mode(true).init()));
        assert!(!is_2x2(&pool.with_padding(PaddingConfig2d::Same).init()));
    }
}
