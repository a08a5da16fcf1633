//! Nadam, which Burn lacks.

use burn::{
    config::Config,
    optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource},
    tensor::{Device, Tensor},
};

use super::{Adam, AdamState};

/// The settings of [`Nadam`].
#[derive(Config, Debug)]
pub struct NadamConfig {
    /// Decay of the mean of gradients.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// Decay of the mean of squared gradients.
    #[config(default = 0.999)]
    pub beta_2: f64,
    /// Epsilon, which keeps the divisor above zero.
    #[config(default = 1e-3)]
    pub epsilon: f64,
    /// The rate of the momentum warm-up, `beta_1 * (1 - 0.96^(momentum_decay * step) / 2)`.
    /// 0.004 in the paper and in PyTorch, 1 in Keras 3.
    #[config(default = 0.004)]
    pub momentum_decay: f64,
}

impl NadamConfig {
    /// The optimizer of a whole model.
    pub fn init(&self) -> ModuleOptimizer {
        Nadam(self.clone()).into()
    }
}

/// Adam with Nesterov momentum.
///
/// Source: T. Dozat, "Incorporating Nesterov momentum into Adam", 2016; `tf.keras.optimizers.Nadam`.
#[derive(Clone)]
pub struct Nadam(NadamConfig);

/// The state of a parameter of rank `D`.
#[derive(Clone)]
pub struct NadamState<const D: usize> {
    /// Updates so far and both moments.
    pub adam: AdamState<D>,
    /// The product of the momenta of all updates.
    pub momentum_product: f64,
}

/// Names of the state for checkpoint files. Burn's derive macro works within Burn only.
impl<const D: usize> RecordState for NadamState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        self.adam.state_flatten(prefix, out);
        out.push_scalar(prefix, "momentum_product", self.momentum_product.into());
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let product = source.take_scalar(prefix, "momentum_product")?;
        Some(NadamState {
            adam: AdamState::state_unflatten(prefix, source, device)?,
            momentum_product: product.try_into().ok()?,
        })
    }
}

impl Nadam {
    /// The momentum of update number `time`, from 1.
    fn momentum(&self, time: usize) -> f64 {
        let NadamConfig {
            beta_1,
            momentum_decay,
            ..
        } = self.0;
        beta_1 * (1.0 - 0.5 * 0.96_f64.powf(momentum_decay * time as f64))
    }
}

impl Optimizer for Nadam {
    type State<const D: usize> = NadamState<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let state = state.unwrap_or_else(|| NadamState {
            adam: AdamState::new(&tensor),
            momentum_product: 1.0,
        });
        let NadamConfig {
            beta_1,
            beta_2,
            epsilon,
            ..
        } = self.0;
        let time = state.adam.time + 1;
        let (momentum, next_momentum) = (self.momentum(time), self.momentum(time + 1));
        let product = state.momentum_product * momentum;
        let moment_1 = state.adam.moment_1 * beta_1 + gradient.clone() * (1.0 - beta_1);
        let moment_2 = state.adam.moment_2 * beta_2 + gradient.clone().square() * (1.0 - beta_2);
        let ahead = moment_1.clone() * (next_momentum / (1.0 - product * next_momentum))
            + gradient * ((1.0 - momentum) / (1.0 - product));
        let variance = moment_2.clone() / (1.0 - beta_2.powf(time as f64));
        let update = ahead * learning_rate / (variance.sqrt() + epsilon);
        let state = NadamState {
            adam: AdamState {
                time,
                moment_1,
                moment_2,
            },
            momentum_product: product,
        };
        (tensor - update, Some(state))
    }

    fn to_device<const D: usize>(mut state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.adam = Adam::to_device(state.adam, device);
        state
    }
}
