//! Metrics of regression.

mod errors;

use std::{
    cell::{Ref, RefCell},
    iter::zip,
};

use anyhow::{Context, Result, ensure};
use burn::tensor::{FloatDType, Tensor};

use super::{Mean, Metric, metric_by, unread::Unread, value_by_name};
use crate::observations::ensure_equal_shapes;

pub use errors::{mean_absolute_error, mean_squared_error};

/// The root of the mean squared error over all values of all examples; not finite if a prediction is not.
///
/// Source: `tf.keras.metrics.RootMeanSquaredError`; `torchmetrics.MeanSquaredError(squared=False)`. Of
/// several outputs, `sklearn.metrics.root_mean_squared_error` is the mean of roots instead.
#[derive(Clone, Debug)]
pub struct RootMeanSquaredError {
    mean: Mean,
}

impl RootMeanSquaredError {
    /// Creates an empty metric, called `name` in reports.
    pub fn new(name: &'static str) -> Self {
        RootMeanSquaredError {
            mean: Mean::new(name),
        }
    }

    /// Adds the examples of a replica's batch. Those of a GPU are read some batches later.
    ///
    /// Shapes: `[batch, ..]` twice.
    ///
    /// # Errors
    /// The shapes differ; nothing is added then.
    ///
    /// # Panics
    /// A device failed.
    pub fn update<const D: usize>(
        &mut self,
        predictions: &Tensor<D>,
        targets: &Tensor<D>,
    ) -> Result<()> {
        ensure_equal_shapes(predictions, targets)
            .with_context(|| format!("`{}` cannot count a batch", self.mean.name()))?;
        let errors = predictions.clone().detach() - targets.clone().detach(); // [batch, ..]
        self.mean.update_observations(&errors.square(), None)
    }

    /// The root, in the unit of the targets; `None` without examples.
    pub fn result(&self) -> Option<f64> {
        (self.mean.examples() > 0).then(|| self.mean.result().sqrt())
    }

    fn named(&self) -> Vec<(String, f64)> {
        value_by_name(self.name(), self.result())
    }
}

metric_by!(RootMeanSquaredError, mean);

/// The coefficient of determination R²: 1 - sum (p - t)² / sum (t - mean t)², over all observations. Of
/// several outputs, the mean over the outputs.
///
/// An output whose targets are all equal counts 1 if all predictions are right, and else 0. Not finite if a
/// prediction is not. Undefined, and without result, for fewer than two observations. In 64 bits, from
/// central moments, so that a large mean does not cancel.
///
/// Source: `sklearn.metrics.r2_score`, with `multioutput="uniform_average"` and `force_finite=True`.
#[derive(Clone, Debug)]
pub struct R2Score {
    moments: Moments,
}

impl R2Score {
    /// Creates an empty metric of one output, called `name` in reports.
    pub fn new(name: &'static str) -> Self {
        R2Score {
            moments: Moments::new(name),
        }
    }

    /// Sets the number of outputs, at least 1.
    #[must_use]
    pub fn with_outputs(mut self, outputs: usize) -> Self {
        self.moments.set_outputs(outputs);
        self
    }

    /// Adds the examples of a replica's batch. Those of a GPU are read some batches later.
    ///
    /// Shapes: predictions and targets `[batch, outputs, ..]`; of one output, `[batch, ..]`.
    ///
    /// # Errors
    /// The shapes differ, or the number of outputs is not that of the metric; nothing is added then. A device
    /// failed.
    pub fn update<const D: usize>(
        &mut self,
        predictions: &Tensor<D>,
        targets: &Tensor<D>,
    ) -> Result<()> {
        self.moments.update(predictions, targets)
    }

    /// The coefficient, at most 1; `None` for fewer than two observations.
    pub fn result(&self) -> Option<f64> {
        let outputs = self.moments.outputs();
        let is_defined = outputs[0].count >= 2.0;
        let sum: f64 = outputs.iter().map(Output::determination).sum();
        is_defined.then(|| sum / outputs.len() as f64)
    }

    fn named(&self) -> Vec<(String, f64)> {
        value_by_name(self.name(), self.result())
    }
}

metric_by!(R2Score, moments);

/// Pearson's correlation of predictions and targets: their covariance over the product of their standard
/// deviations. `NAME` of one output; `NAME_0`, `NAME_1` .. of several.
///
/// Undefined, and without result, for fewer than two observations, and for an output whose predictions or
/// targets are all equal. Not finite if a prediction is not. In 64 bits, from central moments, so that a
/// large mean does not cancel.
///
/// Source: `torchmetrics.PearsonCorrCoef(num_outputs)`, which gives NaN where the correlation is undefined.
#[derive(Clone, Debug)]
pub struct PearsonCorrelation {
    moments: Moments,
}

impl PearsonCorrelation {
    /// Creates an empty metric of one output, called `name` in reports.
    pub fn new(name: &'static str) -> Self {
        PearsonCorrelation {
            moments: Moments::new(name),
        }
    }

    /// Sets the number of outputs, at least 1.
    #[must_use]
    pub fn with_outputs(mut self, outputs: usize) -> Self {
        self.moments.set_outputs(outputs);
        self
    }

    /// Adds the examples of a replica's batch, as [`R2Score::update`].
    ///
    /// # Errors
    /// As for [`R2Score::update`].
    pub fn update<const D: usize>(
        &mut self,
        predictions: &Tensor<D>,
        targets: &Tensor<D>,
    ) -> Result<()> {
        self.moments.update(predictions, targets)
    }

    /// The correlation of an output, from -1 to 1; `None` if undefined.
    pub fn result(&self, output: usize) -> Option<f64> {
        self.moments.outputs().get(output)?.correlation()
    }

    fn named(&self) -> Vec<(String, f64)> {
        let name = self.name();
        let outputs = self.moments.outputs().len();
        let named = |output| {
            let name = match outputs {
                1 => name.to_owned(),
                _ => format!("{name}_{output}"),
            };
            Some((name, self.result(output)?))
        };
        (0..outputs).filter_map(named).collect()
    }
}

metric_by!(PearsonCorrelation, moments);

/// Numbers of examples and observations, means and central moments of predictions and targets. States merge
/// as in Chan, Golub and LeVeque (1983), "Algorithms for Computing the Sample Variance".
#[derive(Clone, Debug)]
struct Moments {
    name: &'static str,
    counted: RefCell<Counted>,
}

#[derive(Clone, Debug)]
struct Counted {
    examples: f64,
    outputs: Vec<Output>,
    /// Predictions and targets, `[observations * outputs]`.
    unread: Unread<2>,
}

/// The moments of one output.
#[derive(Clone, Copy, Debug, Default)]
struct Output {
    count: f64,
    prediction: f64,
    target: f64,
    /// Sums of squares and products of the differences from the means.
    predictions: f64,
    targets: f64,
    products: f64,
    /// The sum of squared errors.
    errors: f64,
}

/// Numbers in the state of an output.
const NUMBERS: usize = 7;

impl Output {
    /// The moments of observations, in two passes.
    fn of(pairs: &[(f64, f64)]) -> Self {
        let count = pairs.len() as f64;
        let prediction = pairs.iter().map(|(prediction, _)| prediction).sum::<f64>() / count;
        let target = pairs.iter().map(|(_, target)| target).sum::<f64>() / count;
        let mut output = Output {
            count,
            prediction,
            target,
            ..Output::default()
        };
        for (p, t) in pairs {
            output.predictions += (p - prediction).powi(2);
            output.targets += (t - target).powi(2);
            output.products += (p - prediction) * (t - target);
            output.errors += (p - t).powi(2);
        }
        output
    }

    fn add(&mut self, other: Output) {
        if other.count == 0.0 {
            return;
        }
        // To the bits, for a resume.
        if self.count == 0.0 {
            *self = other;
            return;
        }
        let count = self.count + other.count;
        let prediction = other.prediction - self.prediction;
        let target = other.target - self.target;
        let share = other.count / count;
        let weight = self.count * share;
        *self = Output {
            count,
            prediction: self.prediction + prediction * share,
            target: self.target + target * share,
            predictions: self.predictions + other.predictions + prediction.powi(2) * weight,
            targets: self.targets + other.targets + target.powi(2) * weight,
            products: self.products + other.products + prediction * target * weight,
            errors: self.errors + other.errors,
        };
    }

    fn numbers(&self) -> [f64; NUMBERS] {
        [
            self.count,
            self.prediction,
            self.target,
            self.predictions,
            self.targets,
            self.products,
            self.errors,
        ]
    }

    fn from_numbers(numbers: &[f64; NUMBERS]) -> Self {
        let [
            count,
            prediction,
            target,
            predictions,
            targets,
            products,
            errors,
        ] = *numbers;
        Output {
            count,
            prediction,
            target,
            predictions,
            targets,
            products,
            errors,
        }
    }

    fn determination(&self) -> f64 {
        match (self.errors == 0.0, self.targets == 0.0) {
            (true, true) => 1.0,
            (false, true) if self.errors.is_finite() => 0.0,
            _ => 1.0 - self.errors / self.targets,
        }
    }

    fn correlation(&self) -> Option<f64> {
        let is_constant = self.predictions == 0.0 || self.targets == 0.0;
        // The product of the roots, as that of the sums may overflow.
        let correlation = self.products / (self.predictions.sqrt() * self.targets.sqrt());
        // `clamp` keeps NaN.
        (self.count >= 2.0 && !is_constant).then(|| correlation.clamp(-1.0, 1.0))
    }
}

impl Counted {
    fn new(outputs: usize) -> Self {
        Counted {
            examples: 0.0,
            outputs: vec![Output::default(); outputs],
            unread: Unread::default(),
        }
    }

    fn read(&mut self) -> Result<()> {
        let outputs = self.outputs.len();
        for [predictions, targets] in self.unread.read()? {
            for (place, output) in self.outputs.iter_mut().enumerate() {
                let of_output = zip(&predictions, &targets).skip(place).step_by(outputs);
                let pairs: Vec<_> = of_output
                    .map(|(prediction, target)| (f64::from(*prediction), f64::from(*target)))
                    .collect();
                output.add(Output::of(&pairs));
            }
        }
        Ok(())
    }
}

impl Moments {
    fn new(name: &'static str) -> Self {
        Moments {
            name,
            counted: RefCell::new(Counted::new(1)),
        }
    }

    fn set_outputs(&mut self, outputs: usize) {
        *self.counted.get_mut() = Counted::new(outputs.max(1));
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn update<const D: usize>(
        &mut self,
        predictions: &Tensor<D>,
        targets: &Tensor<D>,
    ) -> Result<()> {
        self.count(predictions, targets)
            .with_context(|| format!("`{}` cannot count a batch", self.name))
    }

    fn count<const D: usize>(
        &mut self,
        predictions: &Tensor<D>,
        targets: &Tensor<D>,
    ) -> Result<()> {
        ensure_equal_shapes(predictions, targets)?;
        let shape = predictions.dims();
        let counted = self.counted.get_mut();
        let outputs = counted.outputs.len();
        ensure!(
            outputs == 1 || shape.get(1) == Some(&outputs),
            "it has {outputs} outputs, and the predictions have the shape {shape:?}: their second dimension is \
             that of outputs"
        );
        let by_output = match outputs {
            1 => [shape.iter().product(), 1, 1],
            _ => [shape[0], outputs, shape[2..].iter().product()],
        };
        let flat = |values: &Tensor<D>| {
            let values = values.clone().detach().cast(FloatDType::F32); // [batch, outputs, ..]
            values.reshape(by_output).swap_dims(1, 2).reshape([-1]) // [observations * outputs]
        };
        if counted.unread.push([flat(predictions), flat(targets)]) {
            counted.read()?;
        }
        counted.examples += shape[0] as f64;
        Ok(())
    }

    /// # Errors
    /// A device failed.
    fn read(&self) -> Result<()> {
        self.counted.borrow_mut().read()
    }

    /// # Panics
    /// A device failed.
    fn outputs(&self) -> Ref<'_, Vec<Output>> {
        let read = self.counted.borrow_mut().read();
        read.expect("a device that gives predictions and targets");
        Ref::map(self.counted.borrow(), |counted| &counted.outputs)
    }

    fn examples(&self) -> usize {
        self.counted.borrow().examples as usize
    }

    /// Those of one output.
    fn observations(&self) -> usize {
        self.outputs()[0].count as usize
    }

    fn state(&self) -> Vec<f64> {
        let examples = [self.counted.borrow().examples];
        let outputs = self.outputs();
        let outputs = outputs.iter().flat_map(Output::numbers);
        examples.into_iter().chain(outputs).collect()
    }

    fn add_state(&mut self, state: &[f64]) -> Result<()> {
        let counted = self.counted.get_mut();
        let outputs = counted.outputs.len();
        ensure!(
            state.len() == 1 + NUMBERS * outputs,
            "the state of `{}` has {} numbers, and {} are needed: how many examples, and {NUMBERS} moments of \
             each of {outputs} outputs",
            self.name,
            state.len(),
            1 + NUMBERS * outputs
        );
        counted.examples += state[0];
        let (moments, _) = state[1..].as_chunks::<NUMBERS>();
        for (output, numbers) in zip(&mut counted.outputs, moments) {
            output.add(Output::from_numbers(numbers));
        }
        Ok(())
    }

    fn reset(&mut self) {
        let outputs = self.counted.get_mut().outputs.len();
        *self.counted.get_mut() = Counted::new(outputs);
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::replica::visible_devices;

    const NAN: f32 = f32::NAN;

    fn counted(predictions: &[f32], targets: &[f32]) -> (Option<f64>, Option<f64>) {
        let tensor = |values: &[f32]| Tensor::<1>::from_floats(values, &Device::flex());
        let (predictions, targets) = (tensor(predictions), tensor(targets));
        let mut r2 = R2Score::new("r2");
        r2.update(&predictions, &targets).unwrap();
        let mut pearson = PearsonCorrelation::new("pearson");
        pearson.update(&predictions, &targets).unwrap();
        (r2.result(), pearson.result(0))
    }

    #[test]
    fn constant_values_are_as_in_scikit_learn_and_torchmetrics() {
        // 0.1 is not exact, and its sum is rounded.
        let constant = [0.1; 7];
        let varied = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7];
        assert_eq!(counted(&constant, &constant), (Some(1.0), None));
        assert_eq!(counted(&varied, &constant), (Some(0.0), None));
        assert_eq!(counted(&constant, &varied).1, None);
        assert_eq!(counted(&varied, &varied).0, Some(1.0));
        assert_eq!(counted(&[1.0], &[2.0]), (None, None));
    }

    #[test]
    fn a_prediction_that_is_not_finite_makes_the_value_so() {
        for value in [NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for targets in [[1.0, 2.0, 3.0], [1.0; 3]] {
                let (r2, pearson) = counted(&[1.0, value, 3.0], &targets);
                assert!(!r2.unwrap().is_finite(), "{value} for {targets:?}");
                assert!(pearson.is_none_or(|pearson| !pearson.is_finite()));
            }
        }
    }

    #[test]
    fn nothing_has_no_value() {
        let (r2, pearson) = (R2Score::new("r2"), PearsonCorrelation::new("pearson"));
        assert_eq!((r2.results(), pearson.results()), (vec![], vec![]));
        assert_eq!(RootMeanSquaredError::new("rmse").results(), []);
    }

    #[test]
    fn values_may_wait_until_they_are_asked_for() {
        for device in visible_devices() {
            let [predictions, targets] = [[[1.0, 5.0], [2.0, 7.0]], [[1.0, 4.0], [3.0, 8.0]]]
                .map(|values| Tensor::<2>::from_floats(values, &device));
            let mut r2 = R2Score::new("r2").with_outputs(2);
            for _ in 0..3 {
                r2.update(&predictions, &targets).unwrap();
            }
            assert_eq!((r2.examples(), r2.observations()), (6, 6));
            // 1 - 1 / 2 and 1 - 2 / 8.
            let result = r2.clone().result().unwrap();
            assert!((result - (0.5 + 0.75) / 2.0).abs() < 1e-12, "{result}");
            let mut rmse = RootMeanSquaredError::new("rmse");
            rmse.update(&predictions, &targets).unwrap();
            assert_eq!(rmse.results(), [("rmse".to_owned(), 0.75_f64.sqrt())]);
        }
    }

    #[test]
    fn dimensions_after_the_outputs_are_observations() {
        let device = Device::flex();
        let values = Tensor::<3>::from_floats([[[1.0, 2.0], [9.0, 7.0]]], &device); // [1, outputs, 2]
        let mut pearson = PearsonCorrelation::new("pearson").with_outputs(2);
        let targets = Tensor::from_floats([[[5.0, 6.0], [1.0, 3.0]]], &device);
        pearson.update(&values, &targets).unwrap();
        let results = pearson.results();
        for ((name, value), (of, expected)) in
            zip(results, [("pearson_0", 1.0), ("pearson_1", -1.0)])
        {
            assert_eq!(name, of);
            assert!((value - expected).abs() < 1e-12, "{name} is {value}");
        }
        assert!(pearson.result(1).is_some() && pearson.result(2).is_none());
        assert_eq!((pearson.examples(), pearson.observations()), (1, 2));
    }

    #[test]
    fn what_does_not_fit_is_refused_and_not_counted() {
        let device = Device::flex();
        let refused = |result: Result<()>| format!("{:#}", result.unwrap_err());
        let (wide, narrow) = (
            Tensor::<2>::ones([2, 3], &device),
            Tensor::ones([2, 1], &device),
        );
        let mut r2 = R2Score::new("r2").with_outputs(2);
        assert_eq!(
            refused(r2.update(&wide, &narrow)),
            "`r2` cannot count a batch: predictions of shape [2, 3] have targets of shape [2, 1]"
        );
        assert_eq!(
            refused(r2.update(&wide, &wide)),
            "`r2` cannot count a batch: it has 2 outputs, and the predictions have the shape [2, 3]: their \
             second dimension is that of outputs"
        );
        let mut rmse = RootMeanSquaredError::new("rmse");
        assert!(refused(rmse.update(&wide, &narrow)).contains("`rmse` cannot count a batch: pred"));
        assert_eq!((r2.examples(), rmse.examples()), (0, 0));
        let error = refused(r2.add_state(&[1.0; 8]));
        assert!(
            error.contains("`r2` has 8 numbers, and 15 are needed"),
            "{error}"
        );
    }
}
