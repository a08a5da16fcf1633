use anyhow::{Result, ensure};
use burn::tensor::Tensor;
use indexmap::IndexMap;

use super::{PerReplica, replica_context};

/// What a loss object does with its values. There is no mean: how many examples to divide by is
/// known only of the global batch, and [`compute_average_loss`] does it.
///
/// Source: `tf.keras.losses.Reduction` as custom training with `tf.distribute` restricts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// One value an example.
    #[default]
    None,
    /// The sum over the replica's examples.
    Sum,
}

impl Reduction {
    /// Reduces `values` of shape `[batch, ...]` to `[batch]` or, for `Sum`, `[1]`. Dimensions
    /// after the first, as labels of several values an example have, are averaged.
    pub fn apply<const D: usize>(self, values: Tensor<D>) -> Tensor<1> {
        let batch = values.dims()[0];
        let per_example = match D {
            1 => values.reshape([batch]), // [batch]
            _ => values.flatten::<2>(1, D - 1).mean_dim(1).reshape([batch]), // [batch]
        };
        match self {
            Reduction::None => per_example,
            Reduction::Sum => per_example.sum(),
        }
    }
}

/// The sum of a replica's losses `[batch]` over `denominator`, the examples of the global batch;
/// the sum over replicas is then the mean over the global batch. Shape `[1]`.
///
/// With `sample_weights` `[batch]` each loss is weighted first. A denominator of 0 gives 0.
///
/// # Errors
/// The weights differ in number from the losses.
///
/// Source: `tf.nn.compute_average_loss`.
pub fn compute_average_loss(
    per_example_losses: Tensor<1>,
    sample_weights: Option<Tensor<1>>,
    denominator: usize,
) -> Result<Tensor<1>> {
    let weighted = match sample_weights {
        None => per_example_losses,
        Some(weights) => {
            let ([losses], [weights_len]) = (per_example_losses.dims(), weights.dims());
            ensure!(
                losses == weights_len,
                "{losses} losses have {weights_len} sample weights"
            );
            per_example_losses * weights
        }
    };
    Ok(match denominator {
        0 => Tensor::zeros([1], &weighted.device()),
        _ => weighted.sum() / denominator as f64,
    })
}

/// A loss that does not depend on examples, such as weight decay, divided by the replicas: each
/// replica adds it and their losses are summed.
///
/// # Errors
/// The thread is no replica's.
///
/// Source: `tf.nn.scale_regularization_loss`.
pub fn scale_regularization_loss(regularization: Tensor<1>) -> Result<Tensor<1>> {
    Ok(regularization / replica_context()?.num_replicas_in_sync() as f64)
}

/// The losses of a step by name, in the order in which they were added.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Losses(IndexMap<&'static str, f64>);

impl Losses {
    pub fn new() -> Self {
        Losses::default()
    }

    /// Adds a loss of shape `[1]`, read from its device.
    #[must_use]
    pub fn with(mut self, name: &'static str, loss: &Tensor<1>) -> Self {
        self.0
            .insert(name, f64::from(loss.clone().into_scalar::<f32>()));
        self
    }

    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&'static str, f64)> + '_ {
        self.0.iter().map(|(name, loss)| (*name, *loss))
    }

    /// The sum of each loss over replicas; a replica without examples has none.
    pub(super) fn sum(per_replica: PerReplica<Losses>) -> Self {
        let mut sums = IndexMap::new();
        for (name, loss) in per_replica.iter().flat_map(Losses::iter) {
            *sums.entry(name).or_insert(0.0) += loss;
        }
        Losses(sums)
    }
}

impl FromIterator<(&'static str, f64)> for Losses {
    fn from_iter<I: IntoIterator<Item = (&'static str, f64)>>(losses: I) -> Self {
        Losses(losses.into_iter().collect())
    }
}
