//! The event files of a run.

use anyhow::{Context, Result};

use super::{EventWriter, FOLDER, hparams};
use crate::{
    globals::Split,
    metric::MergedMetric,
    picture::Picture,
    tracking::{EndedRun, Outcome, StartedRun, Tracker},
};

/// The event files of a run: in one folder for training and one for validation, which share charts in
/// TensorBoard, and beside these folders the hyper-parameters of both.
#[derive(Default)]
pub struct Board(Option<Writers>);

struct Writers {
    hparams: EventWriter,
    train: EventWriter,
    validation: EventWriter,
}

impl Writers {
    fn open(run: &StartedRun<'_>) -> Result<Self> {
        let folder = run.folder.join(FOLDER);
        let open = |split: Split| EventWriter::resume(&folder.join(split.name()), run.first_step);
        Ok(Writers {
            hparams: hparams::start(&folder, &run.parameters)?,
            train: open(Split::Train)?,
            validation: open(Split::Validation)?,
        })
    }
}

impl Board {
    fn writers(&mut self) -> Result<&mut Writers> {
        self.0
            .as_mut()
            .context("TensorBoard's event files are not open")
    }
}

impl Tracker for Board {
    fn start(&mut self, run: &StartedRun<'_>) -> Result<()> {
        let writers = self.0.insert(Writers::open(run)?);
        writers
            .train
            .text(run.step, "run", &run.record.to_markdown())?;
        writers.train.flush()
    }

    /// Ignores the test split.
    fn metrics(&mut self, split: Split, step: usize, metrics: &[MergedMetric]) -> Result<()> {
        let writers = self.writers()?;
        let writer = match split {
            Split::Train => &mut writers.train,
            Split::Validation => &mut writers.validation,
            Split::Test => return Ok(()),
        };
        for metric in metrics {
            writer.scalar(step, &metric.name, metric.value)?;
        }
        writer.flush()
    }

    fn scalar(&mut self, step: usize, tag: &str, value: f64) -> Result<()> {
        let train = &mut self.writers()?.train;
        train.scalar(step, tag, value)?;
        train.flush()
    }

    fn picture(&mut self, step: usize, tag: &str, picture: &Picture) -> Result<()> {
        let train = &mut self.writers()?.train;
        train.image(step, tag, picture)?;
        train.flush()
    }

    fn takes_histograms(&self) -> bool {
        true
    }

    fn histogram(&mut self, step: usize, tag: &str, values: &[f32]) -> Result<()> {
        let train = &mut self.writers()?.train;
        train.histogram(step, tag, values)?;
        train.flush()
    }

    fn finish(&mut self, run: &EndedRun) -> Result<()> {
        let hparams = &mut self.writers()?.hparams;
        hparams::end(hparams, run.outcome == Outcome::Finished)
    }
}
