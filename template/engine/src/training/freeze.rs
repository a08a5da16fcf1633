//! The option `--freeze`.

use std::{collections::HashSet, sync::Arc};

use anyhow::{Result, anyhow, bail};

use crate::{
    globals,
    model::{freeze, named_ids},
    optim::matching,
    task::Task,
};

/// Freezes the parameters that `--freeze` names, on all replicas.
///
/// # Errors
/// A pattern is no regular expression or matches no parameter, or no parameter is left to train.
pub(crate) fn freeze_named<T: Task>(patterns: &[String]) -> Result<()> {
    if patterns.is_empty() {
        return Ok(());
    }
    let strategy = globals::strategy()?;
    let model = strategy.run_on_first(|_| globals::model::<T>())?;
    let parameters = named_ids(&model);
    let mut named = HashSet::new();
    for pattern in patterns {
        match matching(pattern, &parameters) {
            Ok(ids) => named.extend(ids),
            Err(problem) => bail!("--freeze {problem}"),
        }
    }
    freeze(model, &named).map_err(|error| anyhow!("--freeze: {error}"))?;
    let ids = Arc::new(named);
    strategy.run_on_all(move |_| globals::update_model::<T>(|model| freeze(model, &ids)))?;
    Ok(())
}
