//! Optimizers with learning-rate schedules.

use anyhow::Result;
use burn::{
    module::{Module, ParamId},
    optim::{
        GradientsParams, ModuleOptimizer, OptimizerRecord,
        lr_scheduler::{LrSchedulerRecord, module_lr_scheduler::ModuleLrScheduler},
    },
};
use indexmap::IndexMap;

use super::groups::{Group, parameters_of, scaled};

/// An optimizer with its learning-rate schedule, which advances once per update.
#[derive(Clone)]
pub struct ScheduledOptimizer {
    optimizer: ModuleOptimizer,
    schedule: ModuleLrScheduler,
    learning_rate: f64,
    groups: Vec<Group>,
    /// Factors of the learning rates of some parameters; `None` before the groups have their parameters.
    factors: Option<IndexMap<ParamId, f64>>,
}

impl ScheduledOptimizer {
    /// Combines an optimizer with a schedule of `burn::optim::lr_scheduler`, or a number for a constant rate.
    pub fn new(optimizer: ModuleOptimizer, schedule: impl Into<ModuleLrScheduler>) -> Self {
        ScheduledOptimizer {
            optimizer,
            schedule: schedule.into(),
            learning_rate: 0.0,
            groups: Vec::new(),
            factors: Some(IndexMap::new()),
        }
    }

    /// Adds groups of parameters with settings of their own. If several match a parameter, the last one counts.
    ///
    /// Names are those of the whole model, also if this optimizer updates a part of it only. A group that matches no
    /// parameter is an error when the model is registered.
    #[must_use]
    pub fn with_groups(mut self, groups: impl IntoIterator<Item = Group>) -> Self {
        self.groups.extend(groups);
        self.factors = None;
        self
    }

    /// Whether the groups have their parameters.
    pub(crate) fn has_parameters_of_groups(&self) -> bool {
        self.factors.is_some()
    }

    /// Gives the groups their parameters among those of the whole model, or again if they have other ids now.
    /// Returns the parameters to freeze.
    ///
    /// # Errors
    /// A group does not match the model.
    pub(crate) fn assign_groups(
        &mut self,
        parameters: &[(String, ParamId)],
    ) -> Result<Vec<ParamId>> {
        let of_groups = parameters_of(&self.groups, parameters)?;
        let (mut frozen, mut factors) = (Vec::new(), IndexMap::new());
        for (group, ids) in self.groups.iter().zip(of_groups) {
            if group.is_frozen() {
                frozen.extend(ids);
                continue;
            }
            if group.factor() != 1.0 {
                factors.extend(ids.iter().map(|id| (*id, group.factor())));
            }
            self.optimizer = group.add_optimizer(self.optimizer.clone(), &ids);
        }
        self.factors = Some(factors);
        Ok(frozen)
    }

    /// Replaces the schedule.
    pub(crate) fn set_schedule(&mut self, schedule: impl Into<ModuleLrScheduler>) {
        self.schedule = schedule.into();
    }

    /// Updates the parameters of `model`, except those without a gradient.
    #[must_use]
    pub fn update<M: Module>(&mut self, model: M, gradients: GradientsParams) -> M {
        let rates = self.schedule.step();
        self.learning_rate = rates.base();
        let rates = match &self.factors {
            Some(factors) if !factors.is_empty() => scaled(&rates, factors, &model),
            _ => rates,
        };
        self.optimizer.step(rates, model, gradients)
    }

    /// The learning rate of the last update, without the factors of groups; 0 before the first.
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
