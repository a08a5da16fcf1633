//! The mean of a value per example or observation.

use std::{cell::RefCell, mem};

use anyhow::{Result, ensure};
use burn::tensor::Tensor;

use super::{Metric, unread::Unread};
use crate::loss::sum_per_example;

/// The mean of one value per example, or per observation such as a pixel or a token, optionally weighted.
/// Its state is the sums of values and of weights, so it is the mean over all observations rather than a mean
/// of means. A NaN or infinite value makes the mean so, over all replicas and until the reset, and such a
/// checkpoint is never the best.
///
/// Source: `tf.keras.metrics.Mean`, with `sample_weight`.
#[derive(Clone, Debug)]
pub struct Mean {
    name: &'static str,
    counted: RefCell<Counted>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    /// The sums read so far, by place.
    sums: [f64; SUMS],
    /// Parts `[batch]` of sums, and the place of each in `sums`.
    unread: Unread<1>,
    places: Vec<usize>,
}

/// Places in the state: the sum of weighted values, the sum of weights, and the numbers of examples and
/// observations.
const TOTAL: usize = 0;
const WEIGHT: usize = 1;
const EXAMPLES: usize = 2;
const OBSERVATIONS: usize = 3;
const SUMS: usize = 4;

impl Counted {
    /// Queues parts of sums, and reads them in batches: reading in each step would wait for a GPU before the
    /// next operations are queued.
    ///
    /// # Errors
    /// A device failed.
    fn add<const N: usize>(&mut self, parts: [(usize, Tensor<1>); N]) -> Result<()> {
        let mut is_due = false;
        for (place, part) in parts {
            self.places.push(place);
            is_due = self.unread.push([part]);
        }
        match is_due {
            true => self.read(),
            false => Ok(()),
        }
    }

    fn read(&mut self) -> Result<()> {
        let places = mem::take(&mut self.places).into_iter();
        for (place, [part]) in places.zip(self.unread.read()?) {
            self.sums[place] += part.into_iter().map(f64::from).sum::<f64>();
        }
        Ok(())
    }
}

impl Mean {
    /// Creates an empty mean, called `name` in reports.
    pub fn new(name: &'static str) -> Self {
        Mean {
            name,
            counted: RefCell::default(),
        }
    }

    /// Adds the values `[batch]` of a replica's batch, with equal weights.
    ///
    /// # Panics
    /// A device failed.
    pub fn update(&mut self, per_example: &Tensor<1>) {
        let counted = self.counted.get_mut();
        let examples = per_example.dims()[0] as f64;
        for place in [WEIGHT, EXAMPLES, OBSERVATIONS] {
            counted.sums[place] += examples;
        }
        // Without the autodiff graph, which would stay in memory.
        let added = counted.add([(TOTAL, per_example.clone().detach())]);
        added.expect("a device that gives the values of a metric");
    }

    /// Adds one value per observation, with optional weights. A weight of 0, as of padding, ignores an
    /// observation, even if its value is NaN. Each example is summed in 32 bits on its device, and the sums
    /// of examples in 64.
    ///
    /// Shapes: values `[batch, ..]`, weights of the same shape.
    ///
    /// # Errors
    /// The shapes differ; nothing is added then. A device failed.
    pub fn update_observations<const D: usize>(
        &mut self,
        values: &Tensor<D>,
        weights: Option<&Tensor<D>>,
    ) -> Result<()> {
        let shape = values.dims();
        let values = values.clone().detach(); // [batch, ..]
        let counted = self.counted.get_mut();
        match weights {
            None => {
                let observations = shape.iter().product::<usize>() as f64;
                counted.sums[WEIGHT] += observations;
                counted.sums[OBSERVATIONS] += observations;
                counted.add([(TOTAL, sum_per_example(values))])?;
            }
            Some(weights) => {
                ensure!(
                    weights.dims() == shape,
                    "the mean `{}` got values of shape {shape:?} with weights of shape {:?}; each \
                     observation needs a weight",
                    self.name,
                    weights.dims()
                );
                let weights = weights.clone().detach(); // [batch, ..]
                let is_left_out = weights.clone().equal_elem(0.0); // [batch, ..]
                let values = values.mask_fill(is_left_out.clone(), 0.0); // [batch, ..]
                counted.add([
                    (TOTAL, sum_per_example(values * weights.clone())),
                    (WEIGHT, sum_per_example(weights)),
                    (
                        OBSERVATIONS,
                        sum_per_example(is_left_out.bool_not().float()),
                    ),
                ])?;
            }
        }
        counted.sums[EXAMPLES] += shape[0] as f64;
        Ok(())
    }

    /// The mean; 0 without observations, or if all weights are 0.
    ///
    /// # Panics
    /// A device failed.
    pub fn result(&self) -> f64 {
        let sums = self.sums();
        if sums[WEIGHT] == 0.0 {
            0.0
        } else {
            sums[TOTAL] / sums[WEIGHT]
        }
    }

    /// # Panics
    /// A device failed.
    fn sums(&self) -> [f64; SUMS] {
        let mut counted = self.counted.borrow_mut();
        let read = counted.read();
        read.expect("a device that gives the values of a metric");
        counted.sums
    }
}

impl Metric for Mean {
    fn name(&self) -> &'static str {
        self.name
    }

    fn examples(&self) -> usize {
        self.counted.borrow().sums[EXAMPLES] as usize
    }

    fn observations(&self) -> usize {
        self.sums()[OBSERVATIONS] as usize
    }

    fn read(&self) -> Result<()> {
        self.counted.borrow_mut().read()
    }

    fn state(&self) -> Vec<f64> {
        self.sums().to_vec()
    }

    fn add_state(&mut self, state: &[f64]) -> Result<()> {
        ensure!(
            state.len() == SUMS,
            "the state of the mean `{}` has {} numbers, and {SUMS} are needed: the sums of values and \
             weights, and how many examples and observations",
            self.name,
            state.len()
        );
        for (sum, more) in self.counted.get_mut().sums.iter_mut().zip(state) {
            *sum += more;
        }
        Ok(())
    }

    fn results(&self) -> Vec<(String, f64)> {
        vec![(self.name.to_owned(), self.result())]
    }

    fn reset(&mut self) {
        self.counted = RefCell::default();
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::{metric::unread::TENSORS, replica::visible_devices};

    const NAN: f32 = f32::NAN;

    /// Two examples of three observations, and their weights; the last observation is padding.
    const VALUES: [[f32; 3]; 2] = [[1.0, 2.0, 3.0], [4.0, 6.0, NAN]];
    const WEIGHTS: [[f32; 3]; 2] = [[1.0, 1.0, 1.0], [2.0, 0.5, 0.0]];

    fn weighted(examples: std::ops::Range<usize>, device: &Device) -> Mean {
        let part = |values: [[f32; 3]; 2]| {
            let values = Tensor::<2>::from_floats(values, device);
            values.narrow(0, examples.start, examples.len())
        };
        let mut mean = Mean::new("loss");
        mean.update_observations(&part(VALUES), Some(&part(WEIGHTS)))
            .unwrap();
        mean
    }

    #[test]
    fn observations_are_weighted_and_those_of_no_weight_are_left_out() {
        for device in visible_devices() {
            let mean = weighted(0..2, &device);
            // 1 + 2 + 3 + 2 * 4 + 0.5 * 6 = 17, over weights of 5.5.
            assert_eq!(mean.state(), [17.0, 5.5, 2.0, 5.0]);
            assert_eq!(mean.result(), 17.0 / 5.5);
            assert_eq!((mean.examples(), mean.observations()), (2, 5));
        }
    }

    #[test]
    fn replicas_merge_by_weights() {
        let device = Device::flex();
        let mut merged = weighted(0..1, &device);
        merged.add_state(&weighted(1..2, &device).state()).unwrap();
        assert_eq!(merged.state(), weighted(0..2, &device).state());
    }

    #[test]
    fn observations_without_weights_count_once() {
        let mut mean = Mean::new("loss");
        let values = Tensor::<3>::from_floats([[[1.0, 2.0], [3.0, 6.0]]], &Device::flex());
        mean.update_observations(&values, None).unwrap();
        mean.update(&Tensor::from_floats([8.0], &Device::flex()));
        assert_eq!(mean.state(), [20.0, 5.0, 2.0, 5.0]);
        assert_eq!(mean.result(), 4.0);
    }

    #[test]
    fn all_weights_of_zero_give_zero_and_a_weight_of_nan_does_not() {
        let counted = |weight: f32| {
            let [value, weight] =
                [7.0, weight].map(|value| Tensor::<1>::from_floats([value], &Device::flex()));
            let mut mean = Mean::new("loss");
            mean.update_observations(&value, Some(&weight)).unwrap();
            mean
        };
        let padding = counted(0.0);
        assert_eq!(padding.result(), 0.0);
        assert_eq!((padding.examples(), padding.observations()), (1, 0));
        assert!(counted(NAN).result().is_nan());
    }

    #[test]
    fn weights_of_another_shape_are_refused() {
        let device = Device::flex();
        let mut mean = Mean::new("loss");
        let values = Tensor::<2>::zeros([2, 3], &device);
        let error = mean
            .update_observations(&values, Some(&Tensor::ones([2, 1], &device)))
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "the mean `loss` got values of shape [2, 3] with weights of shape [2, 1]; each observation \
             needs a weight"
        );
        assert_eq!(mean.state(), [0.0; 4], "nothing of it is counted");
    }

    #[test]
    fn weighted_sums_may_wait_until_they_are_asked_for() {
        for device in visible_devices() {
            let mut mean = Mean::new("loss");
            let values = Tensor::<2>::from_floats(VALUES, &device);
            let weights = Tensor::from_floats(WEIGHTS, &device);
            let batches = 2 * TENSORS + 3;
            for _ in 0..batches {
                mean.update_observations(&values, Some(&weights)).unwrap();
            }
            assert!(mean.counted.borrow().places.len() < TENSORS);
            assert_eq!(mean.examples(), 2 * batches);
            let expected = [17.0, 5.5, 2.0, 5.0].map(|sum| sum * batches as f64);
            assert_eq!(mean.clone().state(), expected);
            assert_eq!(mean.observations(), 5 * batches, "asked again");
        }
    }

    #[test]
    fn a_mean_stays_what_a_value_that_is_not_finite_made_it() {
        for (device, value) in visible_devices()
            .iter()
            .flat_map(|device| [NAN, f32::INFINITY, f32::NEG_INFINITY].map(|value| (device, value)))
        {
            let counted = |values: &[f32]| {
                let mut mean = Mean::new("loss");
                for value in values {
                    mean.update(&Tensor::from_floats([*value], device));
                }
                mean
            };
            let mut mean = counted(&[1.0, value, 2.0]);
            assert!(!mean.result().is_finite(), "{value} before 2");
            mean.add_state(&counted(&[3.0]).state()).unwrap();
            assert!(!mean.result().is_finite(), "{value} in a merge");
            let mut other = counted(&[3.0]);
            other.add_state(&mean.state()).unwrap();
            assert!(!other.result().is_finite(), "{value} of another replica");
            assert_eq!(other.examples(), 5);
        }
    }

    #[test]
    fn values_may_wait_until_they_are_asked_for() {
        for device in visible_devices() {
            let mut mean = Mean::new("loss");
            for batch in 0..2 * TENSORS + 3 {
                mean.update(&Tensor::from_floats([batch as f32, 1.0], &device));
            }
            let batches = (2 * TENSORS + 3) as f64;
            assert_eq!(mean.examples() as f64, 2.0 * batches);
            let total = batches * (batches - 1.0) / 2.0 + batches;
            assert_eq!(
                mean.clone().state(),
                [total, 2.0 * batches, 2.0 * batches, 2.0 * batches]
            );
            assert_eq!(mean.result(), total / (2.0 * batches));
            assert_eq!(mean.results()[0].1, mean.result(), "asked again");
        }
    }

    #[test]
    fn replicas_merge_by_examples_and_not_by_means() {
        let counted = |values: &[f32]| {
            let mut mean = Mean::new("loss");
            mean.update(&Tensor::from_floats(values, &Device::flex()));
            mean
        };
        let (mut three, one) = (counted(&[1.0, 1.0, 1.0]), counted(&[5.0]));
        three.add_state(&one.state()).unwrap();
        assert_eq!((three.result(), three.examples()), (2.0, 4));
        three.reset();
        assert_eq!((three.result(), three.examples()), (0.0, 0));
    }
}
