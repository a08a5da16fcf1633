//! Step 3: the metrics.

use kiln_engine::{
    checkpoint::{Best, Goal},
    distribute::{Mean, Metric},
};

use crate::loss::{CycleLosses, ERRORS, Errors, LOSSES};

/// The metrics of one split, of which each replica has a set for each of the three.
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
    /// Counts the examples of a batch. An image with a value that is not finite makes the means of its
    /// losses and errors so.
    pub fn update(&mut self, losses: &CycleLosses, errors: &Errors) {
        self.loss.update(&losses.sum());
        let losses = self.losses.iter_mut().zip(losses.values());
        let errors = self.errors.iter_mut().zip(errors.values());
        losses
            .chain(errors)
            .for_each(|(metric, values)| metric.update(values));
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
