use burn::{
    module::Module,
    nn::DropoutConfig,
    tensor::{Tensor, TensorData},
};
use rand::RngExt;

use super::replica_context;

/// Sets values to zero at random while training, and scales the others up to keep their mean.
///
/// Burn's own layer draws from one generator of the whole process, in the order in which replicas
/// come. This one draws from the stream of its replica, so the same run repeats bit for bit.
///
/// Source: N. Srivastava and others, "Dropout: a simple way to prevent neural networks from
/// overfitting", JMLR 15, 2014.
#[derive(Module, Debug)]
pub struct Dropout {
    layer: burn::nn::Dropout,
}

impl Dropout {
    /// Drops each value with `probability`, at least 0 and below 1.
    ///
    /// # Panics
    /// The probability is out of range.
    pub fn new(probability: f64) -> Self {
        Dropout {
            layer: DropoutConfig::new(probability).init(),
        }
    }

    /// From `[..]` to the same shape. Without recording, as in validation, nothing is dropped.
    ///
    /// # Panics
    /// It trains on a thread that is no replica's.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let probability = self.layer.prob;
        let training = self.layer.training.is_enabled() && input.device().is_autodiff();
        if !training || probability == 0.0 {
            return input;
        }
        let scale = (1.0 / (1.0 - probability)) as f32;
        let replica = replica_context().expect("dropout draws from the stream of its replica");
        let mask: Vec<f32> = replica.with_random(|random| {
            let mut draw = || f32::from(!random.random_bool(probability)) * scale;
            (0..input.shape().num_elements()).map(|_| draw()).collect()
        });
        let device = input.device().without_autodiff();
        let mask = Tensor::from_data(TensorData::new(mask, input.shape()), &device);
        input * Tensor::from_inner(mask)
    }
}
