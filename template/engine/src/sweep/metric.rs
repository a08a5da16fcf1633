//! The metric that ranks the runs of a sweep.

use std::{fs, path::Path};

use anyhow::{Context, Result, bail};

use crate::{
    checkpoint::{Best, Goal},
    comparison::best_of,
    globals::Split,
    picture::curves,
    report::log,
    similar::nearest,
};

/// The metric that ranks runs.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Metric {
    pub split: Split,
    pub name: String,
    /// The direction; `None` if it is not known.
    pub goal: Option<Goal>,
}

/// The best value and the trained epochs of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Reached {
    /// The best value of the metric, and its epoch; `None` if none is finite.
    pub best: Option<(u32, f64)>,
    /// Trained epochs.
    pub epochs: u32,
}

impl Metric {
    /// The metric of the validation that selects the best checkpoint.
    pub fn of(best: Best) -> Self {
        Metric {
            split: Split::Validation,
            name: best.metric.to_owned(),
            goal: Some(best.goal),
        }
    }

    /// Parses `validation.NAME` or `train.NAME`. The direction is that of `best`, lowest for a loss, and otherwise
    /// not known.
    ///
    /// # Errors
    /// The text is no such metric.
    pub fn parse(text: &str, best: Best) -> Result<Self, String> {
        let (split, name) = match text.split_once('.') {
            Some(("validation", name)) => (Split::Validation, name),
            Some(("train", name)) => (Split::Train, name),
            Some(("test", name)) => {
                return Err(format!(
                    "a test that chooses the options is no test of them: give `validation.{name}`"
                ));
            }
            _ => {
                return Err(format!(
                    "`{text}` has no split: give `validation.{text}` or `train.{text}`"
                ));
            }
        };
        let goal = match name {
            name if name == best.metric => Some(best.goal),
            "loss" => Some(Goal::Lowest),
            _ => None,
        };
        Ok(Metric {
            split,
            name: name.to_owned(),
            goal,
        })
    }

    /// Whether `value` is better than another one.
    pub fn is_better(&self, value: f64, than: f64) -> bool {
        self.goal.unwrap_or(Goal::Highest).is_better(value, than)
    }

    /// The name with its split, as in the file.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.split.name(), self.name)
    }

    /// Best value and trained epochs so far of the run in `folder`; `None` before the end of the split's first epoch.
    ///
    /// # Errors
    /// The log is damaged or cannot be read, or the split has other metrics.
    pub fn reached(&self, folder: &Path) -> Result<Option<Reached>> {
        let path = folder.join(log::NAME);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path);
        let text = text.with_context(|| format!("cannot read {}", path.display()))?;
        if !text.contains('\n') {
            return Ok(None);
        }
        let damaged = || format!("{} is damaged", path.display());
        let metrics = curves::parse_all(&text).with_context(damaged)?;
        let of_split = metrics
            .iter()
            .filter(|(_, curves)| !curves.of(self.split).is_empty());
        let names: Vec<&str> = of_split.map(|(name, _)| name.as_str()).collect();
        if names.is_empty() {
            return Ok(None);
        }
        let trained = metrics
            .values()
            .flat_map(|curves| curves.of(Split::Train).keys());
        let epochs = trained.copied().max().unwrap_or(0);
        let Some(curves) = metrics
            .get(&self.name)
            .filter(|_| names.contains(&&*self.name))
        else {
            let split = self.split.name();
            let similar = nearest(&self.name, names.iter().map(ToString::to_string));
            let similar = similar.map_or(String::new(), |(_, name)| {
                format!("; the nearest one is `{split}.{name}`")
            });
            bail!(
                "there is no metric `{}`: the {split} has {}{similar}",
                self.full_name(),
                names.join(", ")
            );
        };
        let best = best_of(curves.of(self.split), self.goal.unwrap_or(Goal::Highest));
        Ok(Some(Reached { best, epochs }))
    }
}

/// Parses `direction`.
///
/// # Errors
/// The text is no direction.
pub(super) fn goal_of(text: &str) -> Result<Goal, String> {
    match text {
        "highest" => Ok(Goal::Highest),
        "lowest" => Ok(Goal::Lowest),
        _ => Err(format!(
            "`direction` is \"highest\" or \"lowest\", whichever is better, and not {text:?}"
        )),
    }
}
