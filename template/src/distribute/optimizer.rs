use burn::{
    module::Module,
    optim::{
        GradientsParams, ModuleOptimizer, OptimizerRecord,
        lr_scheduler::{DynLrScheduler, LrSchedulerRecord},
    },
};

/// An optimizer with the schedule of its learning rate, which advances once an update.
#[derive(Clone)]
pub struct ScheduledOptimizer {
    optimizer: ModuleOptimizer,
    schedule: DynLrScheduler,
    learning_rate: f64,
}

impl ScheduledOptimizer {
    /// The schedule can be any of `burn::optim::lr_scheduler`, or a number for a constant rate.
    pub fn new(optimizer: ModuleOptimizer, schedule: impl Into<DynLrScheduler>) -> Self {
        ScheduledOptimizer {
            optimizer,
            schedule: schedule.into(),
            learning_rate: 0.0,
        }
    }

    /// Takes one step down the gradients. Parameters without a gradient stay as they are.
    #[must_use]
    pub fn update<M: Module>(&mut self, model: M, gradients: GradientsParams) -> M {
        self.learning_rate = self.schedule.step();
        self.optimizer.step(self.learning_rate, model, gradients)
    }

    /// The learning rate of the last update; 0 before the first.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// The state for a checkpoint.
    pub fn to_records(&self) -> (OptimizerRecord, LrSchedulerRecord) {
        (self.optimizer.to_record(), self.schedule.to_record())
    }

    /// Goes on from the state of a checkpoint.
    pub fn load_records(&mut self, optimizer: OptimizerRecord, schedule: LrSchedulerRecord) {
        self.optimizer = self.optimizer.clone().load_record(optimizer);
        self.schedule = self.schedule.clone().load_record(schedule);
    }
}
