//! The record of a run that resumes from a checkpoint.

use anyhow::{Context, Result};

use super::Checkpoint;
use crate::run_record::{ResumedFrom, RunRecord};

impl RunRecord {
    /// Records the checkpoint that this run resumes from, and returns one line per value that differs from
    /// the run that saved it.
    ///
    /// # Errors
    /// The data differ from those of that run.
    pub fn resume(&mut self, checkpoint: &Checkpoint) -> Result<Vec<String>> {
        self.resumed_from = Some(ResumedFrom {
            checkpoint: checkpoint.path.display().to_string(),
            step: checkpoint.manifest.progress.step,
        });
        let Some(earlier) = &checkpoint.manifest.run else {
            return Ok(Vec::new());
        };
        self.initial_weights.clone_from(&earlier.initial_weights);
        self.ensure_same_data(earlier)
            .with_context(|| format!("cannot use the checkpoint {}", checkpoint.path.display()))?;
        Ok(self.differences(earlier))
    }
}
