//! Frozen parameters: those that were excluded from training, whose values stay as they are.
//!
//! A frozen parameter does not require a gradient, so that the backward pass computes none, and nothing that
//! follows sees the parameter: the sum over replicas, clipping, checks, the optimizer and averages.
//!
//! Source: `torch.nn.Module.requires_grad_`.

use std::{
    collections::{HashMap, HashSet},
    sync::{LazyLock, PoisonError, RwLock},
};

use anyhow::{Result, ensure};
use burn::{
    module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId},
    tensor::Tensor,
};

/// Ids of the frozen parameters of all models of this process. Without it, frozen parameters would look like
/// running statistics, as neither requires a gradient. Ids are never used again.
static FROZEN: LazyLock<RwLock<HashSet<ParamId>>> = LazyLock::new(RwLock::default);

/// Whether a parameter is frozen, given its id and whether it requires a gradient; false for running statistics and
/// constants.
pub(crate) fn is_frozen(id: ParamId, trains: bool) -> bool {
    let frozen = || FROZEN.read().unwrap_or_else(PoisonError::into_inner);
    !trains && frozen().contains(&id)
}

fn note(ids: impl IntoIterator<Item = ParamId>) {
    let mut frozen = FROZEN.write().unwrap_or_else(PoisonError::into_inner);
    frozen.extend(ids);
}

/// Freezes the parameters `ids` of `model`, whose parameters are initialised.
///
/// # Errors
/// No parameter would be left to train.
pub(crate) fn freeze<M: Module>(model: M, ids: &HashSet<ParamId>) -> Result<M> {
    struct Freeze<'a>(&'a HashSet<ParamId>);

    impl ModuleMapper for Freeze<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            match self.0.contains(&param.id) && param.is_require_grad() {
                true => param.set_require_grad(false),
                false => param,
            }
        }
    }

    if ids.is_empty() {
        return Ok(model);
    }
    let mut training = all_float(&model).into_iter();
    ensure!(
        training.any(|(_, id, trains)| trains && !ids.contains(&id)),
        "all {} parameters of the model are frozen, and none is left to train",
        named_ids(&model).len()
    );
    note(ids.iter().copied());
    Ok(model.map(&mut Freeze(ids)))
}

/// Name and id of each frozen parameter of `model`, a model with autodiff.
pub(crate) fn frozen<M: Module>(model: &M) -> HashMap<String, ParamId> {
    let all = all_float(model).into_iter();
    all.filter_map(|(name, id, trains)| is_frozen(id, trains).then_some((name, id)))
        .collect()
}

/// Notes that parameters of `loaded`, which has the ids of a file, are frozen if they have the names of `frozen`.
pub(crate) fn keep_frozen<M: Module>(frozen: &HashMap<String, ParamId>, loaded: &M) {
    if !frozen.is_empty() {
        let loaded = all_float(loaded).into_iter();
        note(loaded.filter_map(|(name, id, _)| frozen.contains_key(&name).then_some(id)));
    }
}

/// Name and id of each parameter that trains or is frozen, in the order of the model's fields. Names are those of
/// `export`.
pub(crate) fn named_ids<M: Module>(model: &M) -> Vec<(String, ParamId)> {
    let all = all_float(model).into_iter();
    all.filter_map(|(name, id, trains)| (trains || is_frozen(id, trains)).then_some((name, id)))
        .collect()
}

/// Name and id of each float tensor, and whether it requires a gradient.
pub(crate) fn all_float<M: Module>(model: &M) -> Vec<(String, ParamId, bool)> {
    #[derive(Default)]
    struct Find {
        /// Names of the fields down to the visited one.
        path: Vec<String>,
        found: Vec<(String, ParamId, bool)>,
    }

    impl ModuleVisitor for Find {
        fn enter_module(&mut self, name: &str, _container_type: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container_type: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let name = self.path.join(".");
            self.found.push((name, param.id, param.is_require_grad()));
        }
    }

    let mut find = Find::default();
    model.visit(&mut find);
    find.found
}

#[cfg(test)]
mod tests {
    use burn::{
        nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig},
        tensor::Device,
    };

    use super::*;
    use crate::{
        model::{named_parameters, running_statistics},
        optim::{FlatGradients, Gradients},
    };

    #[derive(Module, Debug)]
    struct Normalised {
        linear: Linear,
        norm: BatchNorm,
    }

    fn normalised() -> Normalised {
        let device = Device::flex().autodiff();
        Normalised {
            linear: LinearConfig::new(1, 1).init(&device),
            norm: BatchNormConfig::new(1).init(&device),
        }
    }

    fn freezing(model: Normalised, wanted: &str) -> Result<Normalised> {
        let ids = named_ids(&model).into_iter();
        let ids = ids.filter_map(|(name, id)| name.starts_with(wanted).then_some(id));
        freeze(model, &ids.collect())
    }

    #[test]
    fn frozen_parameters_neither_train_nor_count_as_running_statistics() {
        let model = freezing(normalised(), "linear").unwrap();
        let training = named_parameters(&model).into_iter().map(|(name, _)| name);
        assert_eq!(training.collect::<Vec<_>>(), ["norm.gamma", "norm.beta"]);
        assert_eq!(named_ids(&model).len(), 4);
        assert_eq!(running_statistics(&model), [0.0, 1.0]);
        let exchanged = FlatGradients::new(&model, Gradients::new()).unwrap();
        assert_eq!(exchanged.to_values().unwrap().len(), 2);
        let again = model.valid().train();
        assert!(!again.linear.weight.is_require_grad());
        assert!(again.norm.gamma.is_require_grad());
    }

    #[test]
    fn a_model_without_a_parameter_to_train_is_refused() {
        let error = freezing(normalised(), "").unwrap_err().to_string();
        assert!(error.starts_with("all 4 parameters"), "{error}");
        let model = freezing(normalised(), "linear").unwrap();
        assert!(freezing(model, "norm").is_err(), "one after the other");
    }
}
