//! Groups of parameters with settings of their own: frozen ones, learning rates, optimizers.

use std::{collections::HashSet, sync::Arc};

use anyhow::{Result, anyhow, ensure};
use burn::{
    module::{Module, ModuleVisitor, Param, ParamGroup, ParamGroupError, ParamId},
    optim::{
        ModuleOptimizer, Optimizer,
        lr_scheduler::module_lr_scheduler::{ModuleLearningRate, ModuleLrScheduler},
    },
    tensor::Tensor,
};
use indexmap::IndexMap;

use crate::similar::nearest;

/// Names in a list of a message.
const LISTED: usize = 12;

/// The parameters whose names match a regular expression, with settings of their own, for
/// [`ScheduledOptimizer::with_groups`](super::ScheduledOptimizer::with_groups).
///
/// Names are those of `export` and `--init-from`, such as `conv1.weight`; an expression may match anywhere in them.
///
/// Source: the parameter groups of `torch.optim`.
#[derive(Clone)]
pub struct Group {
    pattern: String,
    frozen: bool,
    factor: f64,
    optimizer: Option<WithOptimizer>,
}

/// Gives an optimizer to a group of parameters of another one.
type WithOptimizer = Arc<dyn Fn(ModuleOptimizer, ParamGroup) -> ModuleOptimizer + Send + Sync>;

impl Group {
    /// The parameters whose names match the regular expression `pattern`, with the settings of all others.
    pub fn new(pattern: impl Into<String>) -> Self {
        Group {
            pattern: pattern.into(),
            frozen: false,
            factor: 1.0,
            optimizer: None,
        }
    }

    /// Freezes the parameters: they keep their values to the bit, no gradients are computed for them, and they
    /// have no optimizer state. Running statistics, as of batch normalisation, still change.
    #[must_use]
    pub fn frozen(self) -> Self {
        Group {
            frozen: true,
            ..self
        }
    }

    /// Multiplies the learning rate of the schedule by `factor`, a finite number that is not negative.
    #[must_use]
    pub fn learning_rate_times(self, factor: f64) -> Self {
        Group { factor, ..self }
    }

    /// Updates the parameters with another optimizer, or the same with other settings: if all others have weight
    /// decay, with `AdamConfig::new().build()` these have none.
    #[must_use]
    pub fn optimizer(self, optimizer: impl Optimizer) -> Self {
        let with = move |all: ModuleOptimizer, group: ParamGroup| {
            all.with_group(group, optimizer.clone(), None)
        };
        Group {
            optimizer: Some(Arc::new(with)),
            ..self
        }
    }

    pub(super) fn is_frozen(&self) -> bool {
        self.frozen
    }

    pub(super) fn factor(&self) -> f64 {
        self.factor
    }

    /// `all` with the optimizer of this group, if it has one of its own, for the parameters `ids`.
    pub(super) fn add_optimizer(&self, all: ModuleOptimizer, ids: &[ParamId]) -> ModuleOptimizer {
        match &self.optimizer {
            Some(with) => with(all, ParamGroup::from_ids(ids.to_vec())),
            None => all,
        }
    }
}

/// The parameters of each of `groups`: those for which it is the last group that matches.
///
/// # Errors
/// A group has a pattern that is no regular expression, matches no parameter or only parameters of later groups, or
/// a factor that is no number.
pub(super) fn parameters_of(
    groups: &[Group],
    parameters: &[(String, ParamId)],
) -> Result<Vec<Vec<ParamId>>> {
    let site = |problem| anyhow!("TODO(optimizer.choice): the group {problem}");
    let mut taken = HashSet::new();
    let mut of_groups = Vec::new();
    for group in groups.iter().rev() {
        let (pattern, factor) = (&group.pattern, group.factor);
        ensure!(
            factor.is_finite() && factor >= 0.0,
            "TODO(optimizer.choice): the group {pattern:?} multiplies the learning rate by {factor}: give a finite \
             number that is not negative"
        );
        let mut own = matching(pattern, parameters).map_err(site)?;
        own.retain(|id| taken.insert(*id));
        ensure!(
            !own.is_empty(),
            "TODO(optimizer.choice): the group {pattern:?} has no effect, as later groups match all of its \
             parameters, and the last one counts: put it after them"
        );
        of_groups.push(own);
    }
    of_groups.reverse();
    Ok(of_groups)
}

/// The parameters that match a regular expression; otherwise what is wrong with it.
pub(crate) fn matching(
    pattern: &str,
    parameters: &[(String, ParamId)],
) -> Result<Vec<ParamId>, String> {
    let group = ParamGroup::from_regex(pattern)
        .map_err(|error| format!("{pattern:?} is no regular expression: {}", reason(&error)))?;
    let matching = parameters
        .iter()
        .filter(|(name, id)| group.matches(id, Some(name)));
    let ids: Vec<ParamId> = matching.map(|(_, id)| *id).collect();
    match ids.is_empty() {
        true => Err(format!(
            "{pattern:?} matches no parameter of the model{}",
            hint(pattern, parameters)
        )),
        false => Ok(ids),
    }
}

/// The reason in the error of several lines.
fn reason(ParamGroupError::InvalidPatternError(error): &ParamGroupError) -> &str {
    error.rsplit("error: ").next().unwrap_or(error)
}

/// The nearest name or layer to a pattern, or the first names of the model.
fn hint(pattern: &str, parameters: &[(String, ParamId)]) -> String {
    let literal: String = pattern
        .chars()
        .filter(|letter| !"^$\\*+?()[]".contains(*letter))
        .collect();
    let names = || parameters.iter().map(|(name, _)| name.as_str());
    let layers = names().flat_map(|name| name.match_indices('.').map(|(end, _)| &name[..end]));
    match nearest(literal.trim_end_matches('.'), names().chain(layers)) {
        Some((_, name)) => format!("; it has `{name}`"),
        None => {
            let listed: Vec<&str> = names().take(LISTED).collect();
            format!(", whose first are {}", listed.join(", "))
        }
    }
}

/// `rates` with those of some parameters multiplied by `factors`.
pub(super) fn scaled<M: Module>(
    rates: &ModuleLearningRate,
    factors: &IndexMap<ParamId, f64>,
    model: &M,
) -> ModuleLearningRate {
    struct Scale<'a> {
        rates: &'a ModuleLearningRate,
        factors: &'a IndexMap<ParamId, f64>,
        path: Vec<String>,
        /// The parameters of each rate, by its bits.
        scaled: IndexMap<u64, Vec<ParamId>>,
    }

    impl ModuleVisitor for Scale<'_> {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let rate = self
                .rates
                .lr_from_param(param.id, Some(&self.path.join(".")));
            let rate = rate * self.factors.get(&param.id).unwrap_or(&1.0);
            self.scaled
                .entry(rate.to_bits())
                .or_default()
                .push(param.id);
        }
    }

    let mut scale = Scale {
        rates,
        factors,
        path: Vec::new(),
        scaled: IndexMap::new(),
    };
    model.visit(&mut scale);
    // Burn makes learning rates of groups in schedulers only.
    let mut scheduler = ModuleLrScheduler::new(rates.base());
    for (rate, ids) in scale.scaled {
        scheduler = scheduler.with_group(ParamGroup::from_ids(ids), f64::from_bits(rate));
    }
    scheduler.step()
}

#[cfg(test)]
mod tests;
