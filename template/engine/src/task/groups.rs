//! The parameters of the groups of a task's optimizers.

use std::collections::HashSet;

use anyhow::Result;
use burn::module::{Module, ParamId};

use super::TrainState;
use crate::model::named_ids;

/// Gives the optimizers of `trainable` the parameters of their groups, unless they have them. Returns the parameters
/// to freeze.
///
/// # Errors
/// Groups do not match the model.
pub(crate) fn assign_groups(
    trainable: &mut impl TrainState<Model: Module>,
) -> Result<HashSet<ParamId>> {
    let mut optimizers = trainable.optimizers_mut().into_iter();
    if optimizers.all(|(_, optimizer)| optimizer.has_parameters_of_groups()) {
        return Ok(HashSet::new());
    }
    let parameters = named_ids(trainable.model());
    let mut frozen = HashSet::new();
    for (_, optimizer) in trainable.optimizers_mut() {
        frozen.extend(optimizer.assign_groups(&parameters)?);
    }
    Ok(frozen)
}
