//! The report of all checks, as text and JSON.

use std::{collections::BTreeSet, path::PathBuf};

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use crate::{
    display::counted,
    error::{Error, Result},
    project::todo::Scan,
};

/// The outcome of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    Passed,
    Failed,
    Skipped,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Failed => "failed",
            Outcome::Skipped => "skipped",
        }
    }
}

/// A check that ran or was skipped.
#[derive(Debug, Serialize)]
pub(super) struct Check {
    pub(super) check: &'static str,
    pub(super) result: Outcome,
    pub(super) seconds: f64,
    /// The reason why the check did not pass.
    pub(super) problem: Option<String>,
    /// The output of the check's child processes.
    pub(super) log: Option<PathBuf>,
}

/// The report of all checks of a project.
pub(super) struct Report {
    project: String,
    pub(super) seconds: f64,
    pub(super) checks: Vec<Check>,
    sites: usize,
    sites_left: usize,
    logs: PathBuf,
}

impl Report {
    pub(super) fn new(project: String, scan: &Scan, logs: PathBuf) -> Self {
        let left = scan.todos.iter().filter(|todo| !todo.custom);
        let left: BTreeSet<_> = left.map(|todo| &todo.id).collect();
        Self {
            project,
            seconds: 0.0,
            checks: Vec::new(),
            sites: scan.sites,
            sites_left: left.len(),
            logs,
        }
    }

    pub(super) fn passed(&self) -> bool {
        self.count(Outcome::Failed) == 0
    }

    fn count(&self, outcome: Outcome) -> usize {
        let of_it = self.checks.iter().filter(|check| check.result == outcome);
        of_it.count()
    }

    /// # Errors
    /// None known, as JSON can represent all fields.
    pub(super) fn json(&self) -> Result<String> {
        let value = serde_json::json!({
            "project": self.project,
            "passed": self.passed(),
            "seconds": self.seconds,
            "sites": self.sites,
            "sites_left": self.sites_left,
            "checks": self.checks,
        });
        serde_json::to_string_pretty(&value)
            .map_err(|error| Error::system(format!("cannot write JSON: {error}")))
    }

    pub(super) fn text(&self) -> String {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(100)
            .set_header(["check", "result", "seconds", "log", "problem"]);
        for check in &self.checks {
            let log = check.log.as_deref().and_then(|path| path.file_name());
            let log = log.map(|name| name.to_string_lossy().into_owned());
            table.add_row([
                Cell::new(check.check),
                Cell::new(check.result.name()),
                Cell::new(format!("{:.1}", check.seconds)).set_alignment(CellAlignment::Right),
                Cell::new(log.unwrap_or_default()),
                Cell::new(check.problem.as_deref().unwrap_or_default()),
            ]);
        }
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        format!("{}\n\n{}", table.trim_fmt(), self.summary())
    }

    fn summary(&self) -> String {
        let all = counted(self.checks.len(), "check");
        let mut text = format!("{} of {all} passed", self.count(Outcome::Passed));
        for outcome in [Outcome::Failed, Outcome::Skipped] {
            if self.count(outcome) > 0 {
                text += &format!(", {} {}", self.count(outcome), outcome.name());
            }
        }
        format!(
            "{text}, in {:.1} seconds. The logs are in {}\n{} of {} open in {}.\n",
            self.seconds,
            self.logs.display(),
            self.sites_left,
            counted(self.sites, "TODO site"),
            self.project
        )
    }
}
