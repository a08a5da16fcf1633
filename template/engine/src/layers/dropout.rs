//! Dropout that draws from the random numbers of its replica.

use burn::{
    module::Module,
    nn::DropoutConfig,
    tensor::{Tensor, TensorData},
};
use rand::RngExt;

use crate::{
    anomalies::Watch,
    replica::{ReplicaContext, replica_context},
};

/// Dropout: zeroes values at random during training, and scales the others up to keep their mean.
///
/// Unlike `burn::nn::Dropout`, it draws from the random number generator of its replica, so that replicas
/// do not take turns with Burn's global one (see [`forward_pass`](crate::model::forward_pass)).
///
/// Source: N. Srivastava and others, "Dropout: a simple way to prevent neural networks from
/// overfitting", JMLR 15, 2014.
#[derive(Module, Debug)]
pub struct Dropout {
    layer: burn::nn::Dropout,
}

impl Dropout {
    /// Creates the layer with drop probability `probability`, at least 0 and below 1.
    ///
    /// # Panics
    /// The probability is out of range.
    pub fn new(probability: f64) -> Self {
        Dropout {
            layer: DropoutConfig::new(probability).init(),
        }
    }

    /// From `[..]` to the same shape. The identity without autodiff, as in validation.
    ///
    /// # Panics
    /// No replica runs on this thread while training.
    pub fn forward<const D: usize>(&self, input: Tensor<D>) -> Tensor<D> {
        let probability = self.layer.prob;
        let training = self.layer.training.is_enabled() && input.device().is_autodiff();
        if !training || probability == 0.0 {
            return input;
        }
        let replica = replica_context().expect("dropout draws from the stream of its replica");
        let mask = mask(&replica, input.shape().num_elements(), probability);
        let device = input.device().without_autodiff();
        let mask = Tensor::from_data(TensorData::new(mask, input.shape()), &device);
        let watch = Watch::begin("dropout", None);
        let output = watch.input(input) * Tensor::from_inner(mask);
        watch.output(output)
    }
}

/// `len` factors from the random numbers of a replica: 0 with this probability, or else what keeps the mean.
fn mask(replica: &ReplicaContext, len: usize, probability: f64) -> Vec<f32> {
    let scale = (1.0 / (1.0 - probability)) as f32;
    replica.with_random(|random| {
        let mut draw = || f32::from(!random.random_bool(probability)) * scale;
        (0..len).map(|_| draw()).collect()
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use burn::tensor::Device;

    use super::*;
    use crate::{
        data::BatchInfo,
        strategy::{MirroredStrategy, Strategy},
    };

    /// The dropout of ones on two replicas, at a position in the data.
    fn dropped(seed: u64, position: usize) -> Vec<Vec<f32>> {
        let strategy = MirroredStrategy::new(vec![Device::flex(); 2], None).unwrap();
        let strategy: Arc<dyn Strategy> = Arc::new(strategy);
        let outputs = strategy.run_on_all(move |replica| {
            replica.begin_batch(BatchInfo {
                seed,
                epoch: 1,
                position,
                examples: 1,
                examples_in_update: 1,
                batches_in_update: 1,
                completes_update: true,
                ends_epoch: true,
            });
            let ones = Tensor::<2>::ones([100, 100], replica.device());
            let output = Dropout::new(0.25).forward(ones).into_data();
            Ok(output.iter::<f32>().collect())
        });
        outputs.unwrap().into_iter().collect()
    }

    #[test]
    fn masks_repeat_and_differ_by_replica_position_and_seed() {
        let masks = dropped(7, 32);
        assert_eq!(dropped(7, 32), masks);
        assert_ne!(masks[0], masks[1]);
        assert_ne!(dropped(7, 64), masks);
        assert_ne!(dropped(8, 32), masks);
        let kept = masks[0].iter().filter(|value| **value > 0.0).count();
        assert!((7_300..7_700).contains(&kept), "{kept} of 10,000 are kept");
        let scale = 1.0 / 0.75;
        assert!(
            masks[0]
                .iter()
                .all(|value| *value == 0.0 || (*value - scale).abs() < 1e-6)
        );
    }

    #[test]
    fn nothing_is_dropped_without_recording() {
        let ones = Tensor::<1>::ones([100], &Device::flex());
        let output = Dropout::new(0.9).forward(ones.clone());
        assert_eq!(output.into_data(), ones.into_data());
    }
}
