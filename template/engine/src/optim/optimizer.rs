use burn::{
    module::Module,
    optim::{
        GradientsParams, ModuleOptimizer, OptimizerRecord,
        lr_scheduler::{LrSchedulerRecord, module_lr_scheduler::ModuleLrScheduler},
    },
};

/// An optimizer with its learning-rate schedule, which advances once per update.
#[derive(Clone)]
pub struct ScheduledOptimizer {
    optimizer: ModuleOptimizer,
    schedule: ModuleLrScheduler,
    learning_rate: f64,
}

impl ScheduledOptimizer {
    /// Combines an optimizer with a schedule of `burn::optim::lr_scheduler`, or a number for a constant rate.
    pub fn new(optimizer: ModuleOptimizer, schedule: impl Into<ModuleLrScheduler>) -> Self {
        ScheduledOptimizer {
            optimizer,
            schedule: schedule.into(),
            learning_rate: 0.0,
        }
    }

    /// Updates the parameters of `model`, except those without a gradient.
    #[must_use]
    pub fn update<M: Module>(&mut self, model: M, gradients: GradientsParams) -> M {
        let rates = self.schedule.step();
        self.learning_rate = rates.base();
        self.optimizer.step(rates, model, gradients)
    }

    /// The learning rate of the last update; 0 before the first.
    pub fn learning_rate(&self) -> f64 {
        self.learning_rate
    }

    /// The state for a checkpoint.
    pub fn to_records(&self) -> (OptimizerRecord, LrSchedulerRecord) {
        (self.optimizer.to_record(), self.schedule.to_record())
    }

    /// Restores the state of a checkpoint.
    pub fn load_records(&mut self, optimizer: OptimizerRecord, schedule: LrSchedulerRecord) {
        self.optimizer = self.optimizer.clone().load_record(optimizer);
        self.schedule = self.schedule.clone().load_record(schedule);
    }
}

#[cfg(test)]
mod tests {
    use burn::{
        module::Param,
        optim::{SgdConfig, lr_scheduler::linear::LinearLrSchedulerConfig},
        tensor::{Device, Tensor},
    };

    use super::*;

    #[derive(Module, Debug)]
    struct Weight {
        value: Param<Tensor<1>>,
    }

    fn optimizer() -> ScheduledOptimizer {
        let schedule = LinearLrSchedulerConfig::new(0.4, 0.1, 3).init().unwrap();
        ScheduledOptimizer::new(SgdConfig::new().init(), schedule)
    }

    /// Updates with a gradient of 1.
    fn update(optimizer: &mut ScheduledOptimizer, model: Weight) -> Weight {
        let loss = model.value.val().sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        optimizer.update(model, gradients)
    }

    fn weight(model: &Weight) -> f32 {
        model.value.val().into_scalar::<f32>()
    }

    #[test]
    fn the_schedule_advances_once_an_update_and_goes_on_from_a_record() {
        let device = Device::flex().autodiff();
        let mut model = Weight {
            value: Param::from_tensor(Tensor::from_floats([1.0], &device)),
        };
        let mut first = optimizer();
        for rate in [0.4, 0.3] {
            let before = weight(&model);
            model = update(&mut first, model);
            assert!((before - weight(&model) - rate as f32).abs() < 1e-6);
            assert!((first.learning_rate() - rate).abs() < 1e-9);
        }
        let mut second = optimizer();
        let (state, schedule) = first.to_records();
        second.load_records(state, schedule);
        model = update(&mut second, model);
        assert!((second.learning_rate() - 0.2).abs() < 1e-9);
        assert!((weight(&model) - 0.1).abs() < 1e-6);
    }
}
