//! The learning rates of the updates.

use burn::optim::{
    LearningRate,
    lr_scheduler::{LrScheduler, LrSchedulerRecord},
};

/// A schedule from one learning rate to another, in equal steps of the logarithm; after that the last one.
#[derive(Clone, Debug)]
pub struct Sweep {
    min: f64,
    max: f64,
    updates: usize,
    done: usize,
}

impl Sweep {
    /// From `min` at the first to `max` at the last of `updates` updates, at least 2.
    pub fn new(min: f64, max: f64, updates: usize) -> Self {
        Sweep {
            min,
            max,
            updates,
            done: 0,
        }
    }

    /// The learning rate of an update, from 1: `min (max / min)^((update - 1) / (updates - 1))`.
    pub fn rate(&self, update: usize) -> f64 {
        let last = self.updates - 1;
        let share = (update - 1).min(last) as f64 / last as f64;
        self.min * (self.max / self.min).powf(share)
    }
}

impl LrScheduler for Sweep {
    fn step(&mut self) -> LearningRate {
        self.done += 1;
        self.rate(self.done)
    }

    fn to_record(&self) -> LrSchedulerRecord {
        LrSchedulerRecord::new().with_scalar("updates", self.done)
    }

    fn load_record(&mut self, record: LrSchedulerRecord) {
        self.done = record.scalar("updates").unwrap_or(self.done);
    }
}
