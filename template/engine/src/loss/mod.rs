//! Losses: objects with one value per example, and averages over the global batch.

mod binary;
mod cross_entropy;
mod ctc;
mod focal;
mod huber;

use std::cell::{Cell, RefCell};

use anyhow::{Result, ensure};
use burn::tensor::Tensor;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

use crate::{
    anomalies::Watch,
    device::{is_cpu, read_all},
    replica::replica_context,
};

pub use binary::BinaryCrossentropy;
pub use cross_entropy::SparseCategoricalCrossentropy;
pub use ctc::Ctc;
pub use focal::{BinaryFocal, SparseCategoricalFocal};
pub use huber::{Huber, SmoothL1};

/// The reduction of a loss object. There is no mean, whose denominator is the global batch size:
/// [`compute_average_loss`] divides.
///
/// Source: `tf.keras.losses.Reduction` as custom training with `tf.distribute` restricts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// One value per example.
    #[default]
    None,
    /// The sum over the replica's examples.
    Sum,
}

impl Reduction {
    /// Reduces `values` of shape `[batch, ...]` to `[batch]` or, for `Sum`, `[1]`. Dimensions after the first
    /// are averaged.
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

/// The sum over all but the batch dimension: from `[batch, ..]` to `[batch]`.
pub(crate) fn sum_per_example<const D: usize>(values: Tensor<D>) -> Tensor<1> {
    let batch = values.dims()[0];
    match D {
        1 => values.reshape([batch]), // [batch]
        _ => values.flatten::<2>(1, D - 1).sum_dim(1).reshape([batch]), // [batch]
    }
}

/// The sum of a replica's losses `[batch]`, multiplied by `sample_weights` `[batch]` if given, divided by
/// `denominator`, the global batch size. Shape `[1]`; 0 for a denominator of 0.
///
/// The sum over replicas is then the mean over the global batch.
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
    let watch = Watch::begin("compute_average_loss", None);
    let per_example_losses = watch.input(per_example_losses);
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
    Ok(watch.output(match denominator {
        0 => Tensor::zeros([1], &weighted.device()),
        _ => weighted.sum() / denominator as f64,
    }))
}

/// A regularisation loss `[1]`, such as weight decay, divided by the number of losses summed in an update,
/// since each replica with examples adds it to the loss of each batch. Shape `[1]`.
///
/// # Errors
/// No replica runs on this thread.
///
/// Source: `tf.nn.scale_regularization_loss`.
pub fn scale_regularization_loss(regularization: Tensor<1>) -> Result<Tensor<1>> {
    Ok(regularization / replica_context()?.losses_in_update() as f64)
}

/// The losses of a step by name, in the order in which they were added.
///
/// Those computed on a GPU are read when a value is asked for, all at once: see [`read`](Self::read).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(from = "IndexMap<String, f64>", into = "IndexMap<String, f64>")]
pub struct Losses(IndexMap<String, Loss>);

/// A sum: the values read so far, and tensors `[1]` still on the device.
#[derive(Clone, Debug, Default)]
struct Loss {
    read: Cell<f64>,
    unread: RefCell<Vec<Tensor<1>>>,
}

impl Loss {
    fn known(value: f64) -> Self {
        Loss {
            read: Cell::new(value),
            unread: RefCell::default(),
        }
    }

    fn add(&mut self, other: Loss) {
        self.read.set(self.read.get() + other.read.get());
        self.unread.get_mut().append(&mut other.unread.take());
    }
}

impl Losses {
    /// Creates an empty set; [`with`](Self::with) adds losses.
    pub fn new() -> Self {
        Losses::default()
    }

    /// Adds a loss of shape `[1]`.
    #[must_use]
    pub fn with(self, name: &str, loss: &Tensor<1>) -> Self {
        let loss = loss.clone().detach(); // The graph would stay in memory.
        let losses = self.with_unread(name, loss.clone());
        // A CPU has no queue to wait for.
        if is_cpu(&[loss.device()]) {
            losses.read().expect("a CPU that gives the losses");
        }
        losses
    }

    /// As [`with`](Self::with) on a GPU, without a read.
    fn with_unread(self, name: &str, loss: Tensor<1>) -> Self {
        let loss = Loss {
            read: Cell::new(0.0),
            unread: RefCell::new(vec![loss]),
        };
        self.with_loss(name, loss)
    }

    fn with_loss(mut self, name: &str, loss: Loss) -> Self {
        self.0.insert(name.to_owned(), loss);
        self
    }

    /// Reads the losses from their devices, after all work queued there. Does nothing if they were read.
    ///
    /// # Errors
    /// A device failed.
    pub fn read(&self) -> Result<()> {
        self.note_read(&read_all(self.unread())?);
        Ok(())
    }

    /// Whether a loss is still to be read from its device.
    pub(crate) fn is_unread(&self) -> bool {
        self.0.values().any(|loss| !loss.unread.borrow().is_empty())
    }

    /// The tensors `[1]` to be read, for [`note_read`](Self::note_read).
    pub(crate) fn unread(&self) -> Vec<Tensor<1>> {
        let losses = self.0.values();
        losses
            .flat_map(|loss| loss.unread.borrow().clone())
            .collect()
    }

    /// Adds the values of the tensors that [`unread`](Self::unread) returned.
    pub(crate) fn note_read(&self, values: &[Vec<f32>]) {
        let mut values = values.iter().flatten();
        for loss in self.0.values() {
            let unread = loss.unread.take().len();
            let read = values.by_ref().take(unread).map(|value| f64::from(*value));
            loss.read
                .set(read.fold(loss.read.get(), |sum, value| sum + value));
        }
    }

    /// The value of the loss `name`; `None` if there is none of that name.
    ///
    /// # Panics
    /// A device failed, unless the losses were [`read`](Self::read) before. In a callback, that ends training
    /// with an error.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.iter()
            .find(|(of, _)| *of == name)
            .map(|(_, value)| value)
    }

    /// True without losses, as on a replica without examples.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Names and values, in the order in which they were added.
    ///
    /// # Panics
    /// A device failed.
    pub fn iter(&self) -> impl Iterator<Item = (&str, f64)> {
        self.read()
            .unwrap_or_else(|error| panic!("the losses cannot be read: {error:#}"));
        self.0
            .iter()
            .map(|(name, loss)| (name.as_str(), loss.read.get()))
    }

    /// The sum of each loss over replicas, by name; a replica without examples has no losses.
    pub fn sum(of_replicas: Vec<Losses>) -> Self {
        let mut sums = IndexMap::<String, Loss>::new();
        for (name, loss) in of_replicas.into_iter().flat_map(|losses| losses.0) {
            sums.entry(name).or_default().add(loss);
        }
        Losses(sums)
    }

    /// # Errors
    /// A device failed.
    pub(crate) fn divide(&mut self, divisor: f64) -> Result<()> {
        self.read()?;
        let losses = self.0.values();
        losses.for_each(|loss| loss.read.set(loss.read.get() / divisor));
        Ok(())
    }
}

impl PartialEq for Losses {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl From<IndexMap<String, f64>> for Losses {
    fn from(values: IndexMap<String, f64>) -> Self {
        let losses = values.into_iter();
        Losses(
            losses
                .map(|(name, value)| (name, Loss::known(value)))
                .collect(),
        )
    }
}

impl From<Losses> for IndexMap<String, f64> {
    fn from(losses: Losses) -> Self {
        let values = losses.iter();
        values
            .map(|(name, value)| (name.to_owned(), value))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn losses(values: [f32; 2]) -> Tensor<1> {
        Tensor::from_floats(values, &Device::flex())
    }

    fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    #[test]
    fn parts_of_two_replicas_sum_to_the_mean_of_the_global_batch() {
        let part = |values| compute_average_loss(losses(values), None, 4).unwrap();
        let (first, second) = (part([2.0, 3.0]), part([4.0, 5.0]));
        assert_eq!(values(first.clone()), [1.25]);
        assert_eq!(values(second.clone()), [2.25]);
        assert_eq!(values(first + second), [3.5]);
    }

    #[test]
    fn a_denominator_of_zero_gives_zero() {
        let loss = compute_average_loss(losses([2.0, f32::NAN]), None, 0).unwrap();
        assert_eq!(values(loss), [0.0]);
    }

    #[test]
    fn examples_are_weighted_before_they_are_summed() {
        let weights = Some(losses([0.5, 2.0]));
        let loss = compute_average_loss(losses([2.0, 3.0]), weights, 2).unwrap();
        assert_eq!(values(loss), [3.5]);
        let one_weight = Some(losses([0.5, 2.0]).narrow(0, 0, 1));
        let error = compute_average_loss(losses([2.0, 3.0]), one_weight, 2).unwrap_err();
        assert_eq!(error.to_string(), "2 losses have 1 sample weights");
    }

    #[test]
    fn labels_of_several_values_are_averaged_over_all_but_the_batch() {
        let of_pixels = Tensor::<3>::from_floats(
            [[[1.0, 2.0], [3.0, 6.0]], [[4.0, 4.0], [4.0, 8.0]]],
            &Device::flex(),
        ); // [batch, height, width]
        assert_eq!(values(Reduction::None.apply(of_pixels.clone())), [3.0, 5.0]);
        assert_eq!(values(Reduction::Sum.apply(of_pixels)), [8.0]);
    }

    #[test]
    fn named_losses_are_summed_by_name() {
        let of = |loss: f32| {
            let [loss, decay] =
                [loss, 1.0].map(|value| Tensor::from_floats([value], &Device::flex()));
            Losses::new().with("loss", &loss).with("decay", &decay)
        };
        // The fourth replica has no examples, and so no losses.
        let replicas = [of(1.2934016), of(1.4167924), of(1.2807639), Losses::new()];
        let sum = Losses::sum(replicas.to_vec());
        assert!((sum.get("loss").unwrap() - 3.990958).abs() < 1e-6);
        assert_eq!(sum.get("decay"), Some(3.0));
        assert_eq!(
            sum.iter().map(|(name, _)| name).collect::<Vec<_>>(),
            ["loss", "decay"]
        );
    }

    /// On the CPU, as if it were a GPU.
    fn unread(values: [f32; 2]) -> Losses {
        let [first, second] = values.map(|value| Tensor::from_floats([value], &Device::flex()));
        Losses::new()
            .with_unread("first", first)
            .with_unread("second", second)
    }

    #[test]
    fn losses_of_a_gpu_are_read_when_they_are_asked_for() {
        let known = Losses::from(IndexMap::from([("first".to_owned(), 0.5)]));
        let sum = Losses::sum(vec![unread([1.0, 2.0]), known, unread([3.0, 4.0])]);
        assert!(sum.is_unread());
        assert_eq!(sum.unread().len(), 4);
        assert_eq!(sum.get("second"), Some(6.0));
        assert!(!sum.is_unread());
        assert_eq!(sum.get("first"), Some(4.5));
        assert!(sum.unread().is_empty());
        let mut mean = unread([1.0, 2.0]);
        mean.divide(4.0).unwrap();
        let text = serde_json::to_string(&mean).unwrap();
        assert_eq!(text, r#"{"first":0.25,"second":0.5}"#);
        assert_eq!(serde_json::from_str::<Losses>(&text).unwrap(), mean);
    }
}
