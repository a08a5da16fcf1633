//! The table of a sweep: `sweep.csv`, and the ranking on the terminal.

use std::{cmp::Ordering, path::Path};

use anyhow::Result;

use super::{
    children::{Outcome, folder_of},
    metric::{Metric, Reached},
    plan::Plan,
};
use crate::comparison::aligned;

/// Maximum number of runs in the table on the terminal.
const MOST_SHOWN: usize = 40;

/// Cell of a value that a run does not have.
const NONE: &str = "-";

/// A run in the table.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub number: usize,
    /// The value of each option that varies.
    pub values: Vec<String>,
    pub reached: Option<Reached>,
    pub status: Status,
}

/// Status of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Finished,
    /// With the reason.
    Failed(String),
    /// Begun or not, and not ended.
    Waiting,
}

impl Status {
    fn name(&self) -> &'static str {
        match self {
            Status::Finished => "finished",
            Status::Failed(_) => "failed",
            Status::Waiting => "waiting",
        }
    }
}

impl Row {
    /// The best value, if the run is finished and has one.
    pub fn best(&self) -> Option<f64> {
        let (_, best) = self.reached?.best?;
        (self.status == Status::Finished).then_some(best)
    }
}

/// The rows of a sweep in `folder`, by number. A run whose files are damaged has failed.
pub(super) fn rows(plan: &Plan, metric: &Metric, folder: &Path) -> Vec<Row> {
    let row = |run: &super::plan::Planned| {
        let folder = folder_of(folder, run.number);
        let (reached, status) = match read(metric, &folder) {
            Ok((reached, Some(Outcome::Finished))) => (reached, Status::Finished),
            Ok((reached, Some(Outcome::Failed(reason)))) => (reached, Status::Failed(reason)),
            // Partial results are left out: they differ from start to start.
            Ok((_, None)) => (None, Status::Waiting),
            Err(error) => (None, Status::Failed(format!("{error:#}"))),
        };
        Row {
            number: run.number,
            values: run.values.clone(),
            reached,
            status,
        }
    };
    plan.runs.iter().map(row).collect()
}

fn read(metric: &Metric, folder: &Path) -> Result<(Option<Reached>, Option<Outcome>)> {
    Ok((metric.reached(folder)?, Outcome::of(folder)?))
}

/// The text of `sweep.csv`: a row per run, by number. It has no times, so that equal sweeps have equal tables.
///
/// # Errors
/// A value cannot be written.
pub(super) fn csv(keys: &[String], metric: &Metric, rows: &[Row]) -> Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let name = metric.full_name();
    let ends = [name.as_str(), "best_epoch", "trained_epochs", "status"];
    let keys = keys.iter().map(String::as_str);
    writer.write_record(["run"].into_iter().chain(keys).chain(ends))?;
    for row in rows {
        let best = row.reached.and_then(|reached| reached.best);
        let of = |cell: Option<String>| cell.unwrap_or_default();
        let ends = [
            of(best.map(|(_, value)| rounded(value))),
            of(best.map(|(epoch, _)| epoch.to_string())),
            of(row.reached.map(|reached| reached.epochs.to_string())),
            row.status.name().to_owned(),
        ];
        let values = row.values.iter().cloned();
        writer.write_record(
            [row.number.to_string()]
                .into_iter()
                .chain(values)
                .chain(ends),
        )?;
    }
    Ok(writer.into_inner().map_err(|error| error.into_error())?)
}

/// The rows by rank: finished ones from the best, those without a value, failed and waiting ones.
pub(super) fn ranked<'a>(metric: &Metric, rows: &'a [Row]) -> Vec<&'a Row> {
    let mut ranked: Vec<&Row> = rows.iter().collect();
    let group = |row: &Row| match (&row.status, row.best()) {
        (Status::Finished, Some(_)) => 0,
        (Status::Finished, None) => 1,
        (Status::Failed(_), _) => 2,
        (Status::Waiting, _) => 3,
    };
    // Stable: of equal runs the first.
    ranked.sort_by(|left, right| match (left.best(), right.best()) {
        (Some(one), Some(other)) if metric.is_better(one, other) => Ordering::Less,
        (Some(one), Some(other)) if metric.is_better(other, one) => Ordering::Greater,
        _ => group(left).cmp(&group(right)),
    });
    ranked
}

/// The ranking as a table for the terminal.
pub(super) fn ranking(keys: &[String], metric: &Metric, rows: &[Row]) -> String {
    let ranked = ranked(metric, rows);
    let ends = [metric.full_name(), "epoch".to_owned(), "status".to_owned()];
    let mut cells = vec![
        ["run".to_owned()]
            .into_iter()
            .chain(keys.iter().cloned())
            .chain(ends)
            .collect(),
    ];
    for row in ranked.iter().take(MOST_SHOWN) {
        let best = row.reached.and_then(|reached| reached.best);
        let of = |cell: Option<String>| cell.unwrap_or_else(|| NONE.to_owned());
        let epoch = row
            .reached
            .zip(best)
            .map(|(reached, (epoch, _))| format!("{epoch} of {}", reached.epochs));
        let ends = [
            of(best.map(|(_, value)| number(value))),
            of(epoch),
            row.status.name().to_owned(),
        ];
        let values = row.values.iter().cloned();
        cells.push(
            [row.number.to_string()]
                .into_iter()
                .chain(values)
                .chain(ends)
                .collect(),
        );
    }
    let more = ranked.len().saturating_sub(MOST_SHOWN);
    let more = match more {
        0 => String::new(),
        more => format!("\nand {more} more in sweep.csv"),
    };
    aligned(&cells) + &more
}

/// A value with twelve digits: reading the log as JSON may change the last of them all.
fn rounded(value: f64) -> String {
    let rounded = format!("{value:.11e}").parse().unwrap_or(value);
    format!("{rounded:?}")
}

/// A value with four decimals, or four digits if it is small.
pub(super) fn number(value: f64) -> String {
    match value == 0.0 || value.abs() >= 0.01 {
        true => format!("{value:.4}"),
        false => format!("{value:.3e}"),
    }
}
