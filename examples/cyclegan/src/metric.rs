//! Step 3: the metrics.

use anyhow::Result;
use burn::tensor::Tensor;
use kiln_engine::{
    checkpoint::{Best, Goal},
    metric::{Mean, Metric},
};

use crate::{
    dataset::Batch,
    loss::{ERRORS, LOSSES, create_loss_objects, errors},
    model::Predictions,
};

/// The metrics of one split; each replica has one set per split.
#[derive(Clone, Debug)]
pub struct Metrics {
    /// The sum of what the four networks minimise.
    pub loss: Mean,
    pub losses: [Mean; LOSSES.len()],
    pub errors: [Mean; ERRORS.len()],
}

/// Creates the metrics.
pub fn create_metrics() -> Metrics {
    Metrics {
        loss: Mean::new("loss"),
        losses: LOSSES.map(Mean::new),
        errors: ERRORS.map(Mean::new),
    }
}

impl Metrics {
    /// Adds the examples of a batch. An image with a value that is not finite makes the means of its
    /// losses and errors so.
    ///
    /// # Errors
    /// Predictions and batch do not fit together.
    pub fn update(
        &mut self,
        losses: &Tensor<1>,
        predictions: &Predictions,
        batch: &Batch,
    ) -> Result<()> {
        // Not those of `globals`, which lends the metrics now and nothing else.
        let objects = create_loss_objects();
        let of_networks = objects.cycle_losses(predictions, batch)?; // [batch] each
        let errors = errors(predictions, batch)?; // [batch] each
        self.loss.update(losses);
        let losses = self.losses.iter_mut().zip(of_networks.values());
        let errors = self.errors.iter_mut().zip(&errors);
        losses
            .chain(errors)
            .for_each(|(metric, values)| metric.update(values));
        Ok(())
    }
}

impl kiln_engine::Metrics for Metrics {
    fn all(&mut self) -> Vec<&mut dyn Metric> {
        let means = [&mut self.loss].into_iter();
        let means = means.chain(&mut self.losses).chain(&mut self.errors);
        means.map(|mean| mean as &mut dyn Metric).collect()
    }
}

/// The lowest sum of what the four networks minimise, in which cycles and identities weigh most.
pub const BEST: Best = Best {
    metric: "loss",
    goal: Goal::Lowest,
};
