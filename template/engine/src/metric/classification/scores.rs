//! Scores and labels of all observations, for metrics that rank them.

use std::cell::{Ref, RefCell};

use anyhow::{Result, bail, ensure};
use burn::tensor::{FloatDType, Int, Tensor};

use super::labels::{flat_labels, label_of_no_class};
use crate::metric::unread::Unread;

/// Scores `[columns]` and label of each observation. One column holds the score for class 1 of the classes 0 and
/// 1; several hold a score for each class.
#[derive(Clone, Debug)]
pub(super) struct Scores {
    name: &'static str,
    columns: usize,
    /// The label of observations to ignore.
    pub ignored: Option<i64>,
    /// Number of examples.
    examples: f64,
    counted: RefCell<Counted>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    /// `[observations, columns + 1]`: scores, the worst if not finite, then the label.
    rows: Vec<f64>,
    /// Scores `[observations * columns]` and labels `[observations]`, NaN if ignored.
    unread: Unread<2>,
    /// A label of no class that a read met.
    invalid: Option<f64>,
}

impl Counted {
    /// Adds what is still to be read. A batch with an invalid label is left out.
    fn read(&mut self, columns: usize) -> Result<()> {
        for [scores, labels] in self.unread.read()? {
            if let Some(label) = label_of_no_class(&labels, columns.max(2)) {
                self.invalid = Some(label);
                continue;
            }
            let rows = scores.chunks_exact(columns).zip(labels);
            for (scores, label) in rows.filter(|(_, label)| !label.is_nan()) {
                let scores = scores.iter().enumerate().map(|(column, score)| {
                    let is_class = label == class_of(column, columns) as f32;
                    ranked(f64::from(*score), is_class)
                });
                self.rows.extend(scores);
                self.rows.push(label.into());
            }
        }
        Ok(())
    }
}

/// The class that a column scores.
fn class_of(column: usize, columns: usize) -> usize {
    if columns == 1 { 1 } else { column }
}

/// The scores of a column and whether the label is its class, from the lowest score to the highest.
pub(super) type Ranking = Vec<(f64, bool)>;

impl Scores {
    pub fn new(name: &'static str, columns: usize) -> Self {
        Scores {
            name,
            columns: columns.max(1),
            ignored: None,
            examples: 0.0,
            counted: RefCell::default(),
        }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Adds the observations of a batch: scores `[batch, ..]` of one column, labels `[batch, ..]`.
    ///
    /// # Errors
    /// The shapes differ, a label is that of no class, or a device failed; nothing is added then.
    pub fn update<const D: usize>(
        &mut self,
        scores: &Tensor<D>,
        labels: &Tensor<D, Int>,
    ) -> Result<()> {
        self.ensure_shapes(&scores.dims(), &scores.dims(), &labels.dims())?;
        self.add(scores.clone().reshape([-1]), labels)
    }

    /// Adds the observations of a batch: scores `[batch, columns, ..]`, labels `[batch, ..]`.
    ///
    /// # Errors
    /// As [`update`](Self::update); the number of columns differs.
    pub fn update_classes<const D: usize, const E: usize>(
        &mut self,
        scores: &Tensor<D>,
        labels: &Tensor<E, Int>,
    ) -> Result<()> {
        let shape = scores.dims();
        let (batch, columns, rest) = (shape[0], shape[1], shape[2..].iter().product::<usize>());
        ensure!(
            columns == self.columns,
            "`{}` has {} classes, and the scores have {columns}",
            self.name,
            self.columns
        );
        let needed = [&shape[..1], &shape[2..]].concat();
        self.ensure_shapes(&shape, &needed, &labels.dims())?;
        let scores = scores.clone().reshape([batch, columns, rest]); // [batch, columns, ..]
        let scores = scores.swap_dims(1, 2).reshape([-1]); // [observations * columns]
        self.add(scores, labels)
    }

    fn ensure_shapes(&self, scores: &[usize], needed: &[usize], labels: &[usize]) -> Result<()> {
        ensure!(
            needed == labels,
            "`{}` got scores of shape {scores:?}, which need labels of shape {needed:?}, and they have {labels:?}",
            self.name
        );
        Ok(())
    }

    /// Adds a batch: scores `[observations * columns]`, labels `[batch, ..]`.
    fn add<const E: usize>(&mut self, scores: Tensor<1>, labels: &Tensor<E, Int>) -> Result<()> {
        let batch = labels.dims()[0];
        let scores = scores.detach().cast(FloatDType::F32); // [observations * columns]
        let labels = flat_labels(labels, self.ignored); // [observations]
        let columns = self.columns;
        let counted = self.counted.get_mut();
        if counted.unread.push([scores, labels]) {
            counted.read(columns)?;
        }
        if let Some(label) = counted.invalid.take() {
            bail!(self.no_class(label));
        }
        self.examples += batch as f64;
        Ok(())
    }

    fn no_class(&self, label: f64) -> String {
        let classes = match self.columns {
            1 => "0 or 1".to_owned(),
            columns => format!("from 0 to {}", columns - 1),
        };
        format!(
            "`{}` got the label {label}, and labels are {classes}",
            self.name
        )
    }

    /// # Panics
    /// A device failed.
    fn rows(&self) -> Ref<'_, Vec<f64>> {
        let read = self.counted.borrow_mut().read(self.columns);
        read.expect("a device that gives scores and labels");
        Ref::map(self.counted.borrow(), |counted| &counted.rows)
    }

    /// The ranking of the observations by a column.
    ///
    /// # Panics
    /// A device failed.
    pub fn ranking(&self, column: usize) -> Ranking {
        let class = class_of(column, self.columns) as f64;
        let rows = self.rows();
        let observations = rows.chunks_exact(self.columns + 1);
        let mut ranking: Ranking = observations
            .map(|row| (row[column], row[self.columns] == class))
            .collect();
        ranking.sort_unstable_by(|left, right| left.0.total_cmp(&right.0));
        ranking
    }

    pub fn examples(&self) -> usize {
        self.examples as usize
    }

    pub fn observations(&self) -> usize {
        self.rows().len() / (self.columns + 1)
    }

    /// # Errors
    /// A batch had a label of no class, or a device failed.
    pub fn read(&self) -> Result<()> {
        let counted = &mut *self.counted.borrow_mut();
        counted.read(self.columns)?;
        match counted.invalid {
            Some(label) => bail!(self.no_class(label)),
            None => Ok(()),
        }
    }

    /// The rows, then the number of examples.
    pub fn state(&self) -> Vec<f64> {
        let mut state = self.rows().clone();
        state.push(self.examples);
        state
    }

    pub fn add_state(&mut self, state: &[f64]) -> Result<()> {
        let width = self.columns + 1;
        let (rows, examples) = match state.split_last() {
            Some((examples, rows)) if rows.len().is_multiple_of(width) => (rows, *examples),
            // Of checkpoints from when each example was one observation.
            _ if state.len().is_multiple_of(width) => (state, (state.len() / width) as f64),
            _ => bail!(
                "the state of `{}` has {} numbers, and {width} of each observation and one more are needed",
                self.name,
                state.len(),
            ),
        };
        self.counted.get_mut().rows.extend(rows);
        self.examples += examples;
        Ok(())
    }

    pub fn reset(&mut self) {
        *self.counted.get_mut() = Counted::default();
        self.examples = 0.0;
    }

    /// As on a GPU, whose values are read late.
    #[cfg(test)]
    pub fn push_unread(&mut self, batch: [Tensor<1>; 2]) {
        self.counted.get_mut().unread.push(batch);
    }
}

impl PartialEq for Scores {
    fn eq(&self, other: &Self) -> bool {
        let settings = |scores: &Self| (scores.name, scores.columns, scores.ignored);
        settings(self) == settings(other) && self.state() == other.state()
    }
}

/// The score, or the worst one for the class if it is not finite.
fn ranked(score: f64, is_class: bool) -> f64 {
    match (score.is_finite(), is_class) {
        (true, _) => score,
        (false, true) => f64::NEG_INFINITY,
        (false, false) => f64::INFINITY,
    }
}
