//! Perplexity, of language models.

use anyhow::{Context, Result};
use burn::tensor::{Int, Tensor, activation::log_softmax};

use crate::{
    metric::{Mean, Metric, metric_by, value_by_name},
    observations::{ensure_labels_fit, ensure_labels_of_classes},
};

/// The perplexity: the exponential of the mean negative log-probability of the label, over all tokens of all
/// examples. Each token has equal weight, so it is not a mean of perplexities of examples or batches.
///
/// NaN if the loss of a token that counts is not finite. Undefined, and without result, without such tokens.
///
/// Source: `torchmetrics.text.Perplexity(ignore_index)`.
#[derive(Clone, Debug)]
pub struct Perplexity {
    mean: Mean,
    ignored: Option<i64>,
}

impl Perplexity {
    /// Creates an empty metric, called `name` in reports.
    pub fn new(name: &'static str) -> Self {
        Perplexity {
            mean: Mean::new(name),
            ignored: None,
        }
    }

    /// Ignores tokens with this label, such as padding; it may be outside of the classes.
    #[must_use]
    pub fn ignoring(mut self, label: i64) -> Self {
        self.ignored = Some(label);
        self
    }

    /// Adds negative log-probabilities of labels in nats, such as the losses of a step: one of each token, or
    /// one mean of each example, if all have equally many tokens. A weight of 0 leaves out a token, such as
    /// padding.
    ///
    /// Shapes: losses `[batch, ..]`, weights of the same shape.
    ///
    /// # Errors
    /// The shapes differ; nothing is added then.
    ///
    /// # Panics
    /// A device failed.
    pub fn update_losses<const D: usize>(
        &mut self,
        losses: &Tensor<D>,
        weights: Option<&Tensor<D>>,
    ) -> Result<()> {
        self.mean.update_observations(losses, weights)
    }

    /// Adds the tokens of a replica's batch. Those of a GPU are read some batches later.
    ///
    /// Shapes: logits `[batch, classes, ..]`, labels `[batch, ..]`.
    ///
    /// # Errors
    /// The shapes do not match, or, on the CPU, a label is neither that of a class nor ignored; nothing is
    /// added then. On a GPU, where the check would stall the queue, such a label makes the value NaN.
    ///
    /// # Panics
    /// A device failed.
    pub fn update<const D: usize, const E: usize>(
        &mut self,
        logits: &Tensor<D>,
        labels: &Tensor<E, Int>,
    ) -> Result<()> {
        self.count(logits, labels)
            .with_context(|| format!("`{}` cannot count a batch", self.mean.name()))
    }

    fn count<const D: usize, const E: usize>(
        &mut self,
        logits: &Tensor<D>,
        labels: &Tensor<E, Int>,
    ) -> Result<()> {
        ensure_labels_fit(logits.dims(), labels.dims())?;
        let classes = logits.dims()[1];
        ensure_labels_of_classes(labels, classes, self.ignored)?;
        let labels = labels.clone().unsqueeze_dim::<D>(1); // [batch, 1, ..]
        let is_no_class = labels.clone().lower_elem(0); // [batch, 1, ..]
        let is_no_class = is_no_class.bool_or(labels.clone().greater_equal_elem(classes as i64));
        let log_probabilities = log_softmax(logits.clone().detach(), 1); // [batch, classes, ..]
        let of_classes = labels.clone().mask_fill(is_no_class.clone(), 0); // [batch, 1, ..]
        let losses = log_probabilities.gather(1, of_classes).neg(); // [batch, 1, ..]
        let losses = losses.mask_fill(is_no_class, f32::NAN); // [batch, 1, ..]
        let weights = self.ignored.map(|ignored| {
            let is_ignored = labels.equal_elem(ignored); // [batch, 1, ..]
            is_ignored.bool_not().float()
        });
        self.mean.update_observations(&losses, weights.as_ref())
    }

    /// The perplexity, at least 1; `None` without tokens that count.
    pub fn result(&self) -> Option<f64> {
        if self.mean.observations() == 0 {
            return None;
        }
        let loss = self.mean.result();
        // The exponential of minus infinity would be 0, better than any.
        Some(match loss.is_finite() {
            true => loss.exp(),
            false => f64::NAN,
        })
    }

    fn named(&self) -> Vec<(String, f64)> {
        value_by_name(self.name(), self.result())
    }
}

metric_by!(Perplexity, mean);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replica::visible_devices;

    #[test]
    fn each_token_has_equal_weight() {
        for device in visible_devices() {
            let mut perplexity = Perplexity::new("perplexity").ignoring(-1);
            assert_eq!(perplexity.results(), []);
            // Probabilities 1/2 and 1/4: three tokens of the first, one of the second.
            let logits = Tensor::<1>::from_floats([2.0_f32.ln(), 0.0, 0.0], &device);
            let logits = logits.reshape([1, 3, 1]).expand([2, 3, 3]); // [batch, classes, tokens]
            let labels = Tensor::<2, Int>::from_ints([[0, 0, 0], [2, -1, -1]], &device);
            perplexity.update(&logits, &labels).unwrap();
            let result = perplexity.result().unwrap();
            let expected = 2.0_f64.powf(5.0 / 4.0);
            assert!((result - expected).abs() < 1e-6, "{result} and {expected}");
            assert_eq!((perplexity.examples(), perplexity.observations()), (2, 4));
            let padding = Tensor::<2, Int>::full([2, 3], -1, &device);
            perplexity.reset();
            perplexity.update(&logits, &padding).unwrap();
            assert_eq!((perplexity.examples(), perplexity.result()), (2, None));
            perplexity
                .update(&logits.mul_scalar(f32::NAN), &labels)
                .unwrap();
            assert!(perplexity.result().unwrap().is_nan());
            let losses = Tensor::<1>::from_floats([1.0, 3.0, f32::NEG_INFINITY], &device);
            perplexity.reset();
            let of_two = losses.clone().narrow(0, 0, 2);
            perplexity.update_losses(&of_two, None).unwrap();
            assert_eq!(perplexity.result(), Some(2.0_f64.exp()));
            perplexity.update_losses(&losses, None).unwrap();
            assert!(perplexity.result().unwrap().is_nan());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_and_not_counted() {
        let device = burn::tensor::Device::flex();
        let mut perplexity = Perplexity::new("perplexity");
        let logits = Tensor::<3>::zeros([2, 3, 4], &device);
        let refused = |result: Result<()>| format!("{:#}", result.unwrap_err());
        let labels = Tensor::<2, Int>::zeros([2, 3], &device);
        assert_eq!(
            refused(perplexity.update(&logits, &labels)),
            "`perplexity` cannot count a batch: logits of shape [2, 3, 4] need labels of shape [2, 4], and they \
             have [2, 3]"
        );
        let labels = Tensor::<2, Int>::full([2, 4], 3, &device);
        let error = refused(perplexity.update(&logits, &labels));
        assert!(
            error.contains("the label 3, and there are 3 classes"),
            "{error}"
        );
        assert_eq!(perplexity.examples(), 0);
    }
}
