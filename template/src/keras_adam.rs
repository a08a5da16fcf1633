//! Adam as Keras computes it.

use burn::{
    config::Config,
    optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource},
    tensor::{Device, Tensor},
};

/// The settings of [`KerasAdam`].
#[derive(Config, Debug)]
pub struct KerasAdamConfig {
    /// Decay of the mean of gradients.
    #[config(default = 0.9)]
    pub beta_1: f64,
    /// Decay of the mean of squared gradients.
    #[config(default = 0.999)]
    pub beta_2: f64,
    /// Keeps the divisor from zero.
    #[config(default = 1e-7)]
    pub epsilon: f64,
}

impl KerasAdamConfig {
    /// The optimizer of a whole model.
    pub fn init(&self) -> ModuleOptimizer {
        KerasAdam(self.clone()).into()
    }
}

/// Adam with the epsilon of Keras.
///
/// Keras adds epsilon to the root of the second moment before its bias is corrected, and Burn after
/// it. At the first update the same number so weighs 32 times as much in Keras, which matters where
/// gradients are as small as those of a penalty.
///
/// Source: `tf.keras.optimizers.Adam`; D. Kingma and J. Ba, "Adam: A Method for Stochastic
/// Optimization", 2015, the form with "epsilon hat" at the end of section 2.
#[derive(Clone)]
pub struct KerasAdam(KerasAdamConfig);

/// What is kept of a parameter of rank `D`.
#[derive(Clone)]
pub struct KerasAdamState<const D: usize> {
    /// Updates so far.
    pub time: usize,
    /// Mean of gradients.
    pub moment_1: Tensor<D>,
    /// Mean of squared gradients.
    pub moment_2: Tensor<D>,
}

/// Names the parts for the file of a checkpoint. Burn's derive for this works in Burn only.
impl<const D: usize> RecordState for KerasAdamState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        out.push_scalar(prefix, "time", self.time.into());
        for (name, moment) in [("moment_1", &self.moment_1), ("moment_2", &self.moment_2)] {
            out.push_tensor(prefix, name, moment.clone().into_data());
        }
    }

    fn state_unflatten(prefix: &str, source: &mut StateSource, device: &Device) -> Option<Self> {
        let time = source.take_scalar(prefix, "time")?.try_into().ok()?;
        let mut moment = |name| Some(Tensor::from_data(source.take_tensor(prefix, name)?, device));
        Some(KerasAdamState {
            time,
            moment_1: moment("moment_1")?,
            moment_2: moment("moment_2")?,
        })
    }
}

impl Optimizer for KerasAdam {
    type State<const D: usize> = KerasAdamState<D>;

    fn step<const D: usize>(
        &self,
        learning_rate: LearningRate,
        tensor: Tensor<D>,
        gradient: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let state = state.unwrap_or_else(|| KerasAdamState {
            time: 0,
            moment_1: tensor.zeros_like(),
            moment_2: tensor.zeros_like(),
        });
        let KerasAdamConfig {
            beta_1,
            beta_2,
            epsilon,
        } = self.0;
        let time = state.time + 1;
        let moment_1 = state.moment_1 * beta_1 + gradient.clone() * (1.0 - beta_1);
        let moment_2 = state.moment_2 * beta_2 + gradient.square() * (1.0 - beta_2);
        let [bias_1, bias_2] = [beta_1, beta_2].map(|beta| 1.0 - beta.powf(time as f64));
        let rate = learning_rate * bias_2.sqrt() / bias_1;
        let update = moment_1.clone() * rate / (moment_2.clone().sqrt() + epsilon);
        let state = KerasAdamState {
            time,
            moment_1,
            moment_2,
        };
        (tensor - update, Some(state))
    }

    fn to_device<const D: usize>(mut state: Self::State<D>, device: &Device) -> Self::State<D> {
        state.moment_1 = state.moment_1.to_device(device);
        state.moment_2 = state.moment_2.to_device(device);
        state
    }
}
