//! The objective of the training, penalty included.

use kiln_engine::{data::BatchInfo, loss::Losses};

/// The loss of the steps of an epoch, as a mean over examples.
#[derive(Clone, Copy, Debug, Default)]
pub struct Objective {
    total: f64,
    examples: usize,
}

impl Objective {
    /// Counts a batch by its examples: a short last one weighs less than a full one.
    pub fn add(&mut self, batch: BatchInfo, losses: &Losses) {
        // With a parameter server none may be finished yet.
        if let Some(loss) = losses.get("loss") {
            // The losses of the batches of an update add up to the mean over that update.
            self.total += loss * batch.examples_in_update as f64;
            self.examples += batch.examples;
        }
    }

    /// The mean; 0 of no examples.
    pub fn mean(&self) -> f64 {
        self.total / self.examples.max(1) as f64
    }
}
