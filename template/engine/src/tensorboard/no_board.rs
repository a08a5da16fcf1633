//! Replacement of `board.rs` without the feature `tensorboard`; writes nothing.

use std::path::Path;

use anyhow::Result;

use crate::{globals::Split, metric::MergedMetric, picture::Picture};

pub struct Board;

impl Board {
    pub fn open(_folder: &Path, _first_step: usize) -> Result<Self> {
        Ok(Board)
    }

    pub fn metrics(&mut self, _: Split, _step: usize, _: &[MergedMetric]) -> Result<()> {
        Ok(())
    }

    pub fn scalar(&mut self, _step: usize, _tag: &str, _value: f64) -> Result<()> {
        Ok(())
    }

    pub fn picture(&mut self, _step: usize, _tag: &str, _: &Picture) -> Result<()> {
        Ok(())
    }

    pub fn text(&mut self, _step: usize, _tag: &str, _markdown: &str) -> Result<()> {
        Ok(())
    }

    pub fn histogram(&mut self, _step: usize, _tag: &str, _values: &[f32]) -> Result<()> {
        Ok(())
    }
}
