//! Adam, in one pass over memory on the CPU.

use burn::{
    config::Config,
    optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource},
    tensor::{DType, Device, Tensor, TensorData},
};
use kiln_kernels::adam::Step;

use crate::device::read_data;

/// The settings of [`Adam`].
#[derive(Config, Debug)]
pub struct AdamConfig {
    /// Decay of the mean of gradients.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// Decay of the mean of squared gradients.
    #[config(default = 0.999)]
    pub beta_2: f64,
    /// Epsilon, which keeps the divisor above zero.
    #[config(default = 1e-7)]
    pub epsilon: f64,
    /// Whether epsilon is added before the bias correction of the second moment, as in Keras, rather than
    /// after it, as in Burn and PyTorch.
    ///
    /// At the first update, epsilon then has 32 times the effect, which matters for small gradients, such as
    /// those of a penalty.
    #[config(default = false)]
    pub epsilon_hat: bool,
    /// Decoupled weight decay per update, for a learning rate of 1; AdamW if not 0.
    #[config(default = 0.0)]
    pub weight_decay: f64,
}

impl AdamConfig {
    /// The default settings of Keras.
    ///
    /// Source: `tf.keras.optimizers.Adam`.
    pub fn keras() -> Self {
        AdamConfig::new().with_epsilon_hat(true)
    }

    /// The optimizer of a whole model.
    pub fn init(&self) -> ModuleOptimizer {
        self.build().into()
    }

    /// The optimizer of a group of parameters, for `ModuleOptimizer::with_group`.
    pub fn build(&self) -> Adam {
        Adam(self.clone())
    }
}

/// Adam. Burn's also has AMSGrad, and passes over memory once per operation.
///
/// Source: D. Kingma and J. Ba, "Adam: A Method for Stochastic Optimization", 2015, with
/// `epsilon_hat` as at the end of section 2; I. Loshchilov and F. Hutter, "Decoupled Weight
/// Decay Regularization", 2019.
#[derive(Clone)]
pub struct Adam(AdamConfig);

/// The state of a parameter of rank `D`.
#[derive(Clone)]
pub struct AdamState<const D: usize> {
    /// Updates so far.
    pub time: usize,
    /// Mean of gradients.
    pub moment_1: Tensor<D>,
    /// Mean of squared gradients.
    pub moment_2: Tensor<D>,
}

impl<const D: usize> AdamState<D> {
    /// The state before the first update.
    pub fn new(parameter: &Tensor<D>) -> Self {
        AdamState {
            time: 0,
            moment_1: parameter.zeros_like(),
            moment_2: parameter.zeros_like(),
        }
    }
}

/// Names of the state for checkpoint files. Burn's derive macro works within Burn only.
impl<const D: usize> RecordState for AdamState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_scalar(prefix, "time", self.time.into());
        for (name, moment) in [("moment_1", &self.moment_1), ("moment_2", &self.moment_2)] {
            let moment = read_data(moment.clone()).expect("a device that gives a moment");
            out.push_tensor(prefix, name, moment);
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, _device: &Device) -> Option<Self> {
        let time = source.take_scalar(prefix, "time")?.try_into().ok()?;
        // Burn gives its default device, which may be a GPU that is built in and not there. An update moves
        // the state to the device of the parameter.
        let device = Device::flex();
        let mut moment = |name| {
            Some(Tensor::from_data(
                source.take_tensor(prefix, name)?,
                &device,
            ))
        };
        Some(AdamState {
            time,
            moment_1: moment("moment_1")?,
            moment_2: moment("moment_2")?,
        })
    }
}

impl Optimizer for Adam {
    type State<const D: usize> = AdamState<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let mut state = state.unwrap_or_else(|| AdamState::new(&tensor));
        state.time += 1;
        let step = self.step_at(learning_rate, state.time);
        let one_pass = tensor.device() == Device::flex()
            && [&tensor, &gradient].map(Tensor::dtype) == [DType::F32; 2];
        let moments = [state.moment_1, state.moment_2];
        let (tensor, [moment_1, moment_2]) = match one_pass {
            true => in_one_pass(&step, tensor, gradient, moments),
            false => by_operations(&step, tensor, gradient, moments),
        };
        state.moment_1 = moment_1;
        state.moment_2 = moment_2;
        (tensor, Some(state))
    }

    fn to_device<const D: usize>(mut state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.moment_1 = state.moment_1.to_device(device);
        state.moment_2 = state.moment_2.to_device(device);
        state
    }
}

impl Adam {
    fn step_at(&self, learning_rate: LearningRate, time: usize) -> Step {
        let betas = [self.0.beta_1, self.0.beta_2];
        let [bias_1, bias_2] = betas.map(|beta| 1.0 - beta.powf(time as f64));
        let scale = if self.0.epsilon_hat {
            1.0
        } else {
            bias_2.sqrt()
        };
        Step {
            betas,
            rate: learning_rate * bias_2.sqrt() / bias_1,
            epsilon: self.0.epsilon * scale,
            kept: 1.0 - learning_rate * self.0.weight_decay,
        }
    }
}

/// An update by operations of Burn.
fn by_operations<const D: usize>(
    step: &Step,
    tensor: Tensor<D>,
    gradient: Tensor<D>,
    [moment_1, moment_2]: [Tensor<D>; 2],
) -> (Tensor<D>, [Tensor<D>; 2]) {
    let [beta_1, beta_2] = step.betas;
    let moment_1 = moment_1 * beta_1 + gradient.clone() * (1.0 - beta_1);
    let moment_2 = moment_2 * beta_2 + gradient.square() * (1.0 - beta_2);
    let update = moment_1.clone() * step.rate / (moment_2.clone().sqrt() + step.epsilon);
    (tensor * step.kept - update, [moment_1, moment_2])
}

/// The same in place, in one pass. On the CPU, reading a tensor without other owners, and creating one
/// from the values, copies nothing.
fn in_one_pass<const D: usize>(
    step: &Step,
    tensor: Tensor<D>,
    gradient: Tensor<D>,
    moments: [Tensor<D>; 2],
) -> (Tensor<D>, [Tensor<D>; 2]) {
    let shape = tensor.shape();
    let [mut weights, gradient] = [tensor, gradient].map(values);
    let mut moments = moments.map(values);
    step.update(
        &mut weights,
        &gradient,
        moments.each_mut().map(|moment| &mut moment[..]),
    );
    let tensor =
        |values| Tensor::from_data(TensorData::new(values, shape.clone()), &Device::flex());
    (tensor(weights), moments.map(tensor))
}

/// The values of a tensor of `f32`.
fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    let values = read_data(tensor).expect("a tensor on the CPU can be read");
    values.try_into_vec().expect("a tensor of f32")
}

#[cfg(test)]
mod tests {
    use burn::{optim::AdamWConfig, tensor::Distribution};
    use kiln_kernels::threads::PIECE;

    use super::*;

    fn random(values: usize) -> Tensor<1> {
        Tensor::random([values], Distribution::Normal(0.0, 1.0), &Device::flex())
    }

    /// The maximum difference of two tensors.
    fn distance(one: &Tensor<1>, other: &Tensor<1>) -> f32 {
        (one.clone() - other.clone()).abs().max().into_scalar()
    }

    /// Both implementations, with large, small and zero gradients over several pieces.
    #[test]
    fn one_pass_gives_what_operations_give() {
        let values = 2 * PIECE + 3;
        let decaying = AdamConfig::new().with_weight_decay(0.1);
        for config in [AdamConfig::new(), AdamConfig::keras(), decaying] {
            let adam = Adam(config);
            let start = (
                random(values),
                [0, 1].map(|_| Tensor::zeros([values], &Device::flex())),
            );
            let (mut pass, mut operations) = (start.clone(), start);
            for time in 1..=3 {
                let step = adam.step_at(1e-2, time);
                let gradient = random(values) * [1e3, 1e-6, 0.0][time - 1];
                pass = in_one_pass(&step, pass.0, gradient.clone(), pass.1);
                operations = by_operations(&step, operations.0, gradient, operations.1);
            }
            assert!(distance(&pass.0, &operations.0) < 1e-6);
            for (one, other) in pass.1.iter().zip(&operations.1) {
                let largest: f32 = other.clone().abs().max().into_scalar();
                assert!(distance(one, other) <= 1e-6 * largest);
            }
        }
    }

    /// The weights after some steps with the same gradients.
    fn after_steps<O: Optimizer>(
        optimizer: &O,
        start: &Tensor<1>,
        gradients: &[Tensor<1>],
    ) -> Tensor<1> {
        let steps = gradients.iter();
        let (weights, _) = steps.fold((start.clone(), None), |(weights, state), gradient| {
            optimizer.step(1e-2, weights, gradient.clone(), state)
        });
        weights
    }

    #[test]
    fn weights_are_those_of_burn() {
        let (start, gradients) = (random(5), [0; 5].map(|_| random(5)));
        let ours = AdamConfig::new().with_epsilon(1e-3);
        let plain = burn::optim::AdamConfig::new().with_epsilon(1e-3).build();
        let decaying = AdamWConfig::new().with_epsilon(1e-3).with_weight_decay(0.5);
        let ours = [0.0, 0.5].map(|decay| ours.clone().with_weight_decay(decay).build());
        let ours = ours.map(|adam| after_steps(&adam, &start, &gradients));
        let burns = [
            after_steps(&plain, &start, &gradients),
            after_steps(&decaying.build(), &start, &gradients),
        ];
        for (ours, burns) in ours.iter().zip(&burns) {
            assert!(distance(ours, burns) < 1e-6);
        }
        assert!(distance(&ours[0], &ours[1]) > 1e-3);
    }
}
