use std::path::Path;

use anyhow::Result;

use super::EventWriter;
use crate::{globals::Split, metric::MergedMetric, picture::Picture};

/// The event files of a run, in one folder for training and one for validation, which share charts in
/// TensorBoard.
pub struct Board {
    train: EventWriter,
    validation: EventWriter,
}

impl Board {
    /// Starts a run in `folder`, or continues a resumed one from `first_step`.
    ///
    /// # Errors
    /// An event file cannot be created.
    pub fn open(folder: &Path, first_step: usize) -> Result<Self> {
        let open = |split: Split| EventWriter::resume(&folder.join(split.name()), first_step);
        Ok(Board {
            train: open(Split::Train)?,
            validation: open(Split::Validation)?,
        })
    }

    /// Writes the metrics of an epoch that ended at `step`; ignores the test split.
    ///
    /// # Errors
    /// The event file cannot be written.
    pub fn metrics(&mut self, split: Split, step: usize, metrics: &[MergedMetric]) -> Result<()> {
        let writer = match split {
            Split::Train => &mut self.train,
            Split::Validation => &mut self.validation,
            Split::Test => return Ok(()),
        };
        for metric in metrics {
            writer.scalar(step, &metric.name, metric.value)?;
        }
        writer.flush()
    }

    /// # Errors
    /// The event file cannot be written.
    pub fn scalar(&mut self, step: usize, tag: &str, value: f64) -> Result<()> {
        self.train.scalar(step, tag, value)?;
        self.train.flush()
    }

    /// # Errors
    /// The event file cannot be written.
    pub fn picture(&mut self, step: usize, tag: &str, picture: &Picture) -> Result<()> {
        self.train.image(step, tag, picture)?;
        self.train.flush()
    }

    /// # Errors
    /// The event file cannot be written.
    pub fn text(&mut self, step: usize, tag: &str, markdown: &str) -> Result<()> {
        self.train.text(step, tag, markdown)?;
        self.train.flush()
    }

    /// # Errors
    /// The event file cannot be written.
    pub fn histogram(&mut self, step: usize, tag: &str, values: &[f32]) -> Result<()> {
        self.train.histogram(step, tag, values)?;
        self.train.flush()
    }
}
