//! Scores and labels of all examples, for metrics that rank them.

use std::cell::{Ref, RefCell};

use anyhow::{Result, bail, ensure};
use burn::tensor::{FloatDType, Int, Tensor};

use super::unread::Unread;

/// Scores `[columns]` and label of each example. One column holds the score for class 1 of the classes 0 and
/// 1; several hold a score for each class.
#[derive(Clone, Debug)]
pub(super) struct Scores {
    name: &'static str,
    columns: usize,
    counted: RefCell<Counted>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    /// `[examples, columns + 1]`: scores, the worst if not finite, then the label.
    rows: Vec<f64>,
    /// Scores `[batch * columns]` and labels `[batch]`.
    unread: Unread<2>,
    /// A label of no class that a read met.
    invalid: Option<f64>,
}

impl Counted {
    /// Adds what is still to be read. A batch with an invalid label is left out.
    fn read(&mut self, columns: usize) -> Result<()> {
        for [scores, labels] in self.unread.read()? {
            let classes = 0.0..columns.max(2) as f32;
            if let Some(label) = labels.iter().find(|label| !classes.contains(label)) {
                self.invalid = Some(f64::from(*label));
                continue;
            }
            for (scores, label) in scores.chunks_exact(columns).zip(labels) {
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
            counted: RefCell::default(),
        }
    }

    pub fn name(&self) -> &'static str {
        self.name
    }

    pub fn columns(&self) -> usize {
        self.columns
    }

    /// Adds the examples of a batch: scores `[batch * columns]`, labels `[batch]`.
    ///
    /// # Errors
    /// The shapes do not match, a label is that of no class, or a device failed; nothing is added then.
    pub fn update(&mut self, scores: Tensor<1>, labels: &Tensor<1, Int>) -> Result<()> {
        let ([scores_len], [labels_len]) = (scores.dims(), labels.dims());
        ensure!(
            scores_len == labels_len * self.columns,
            "`{}` got {} scores for {labels_len} labels",
            self.name,
            scores_len / self.columns
        );
        let scores = scores.detach().cast(FloatDType::F32); // [batch * columns]
        let labels = labels.clone().cast(FloatDType::F32); // [batch]
        let columns = self.columns;
        let counted = self.counted.get_mut();
        if counted.unread.push([scores, labels]) {
            counted.read(columns)?;
        }
        match counted.invalid.take() {
            Some(label) => bail!(self.no_class(label)),
            None => Ok(()),
        }
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

    /// The ranking of the examples by a column.
    ///
    /// # Panics
    /// A device failed.
    pub fn ranking(&self, column: usize) -> Ranking {
        let class = class_of(column, self.columns) as f64;
        let rows = self.rows();
        let examples = rows.chunks_exact(self.columns + 1);
        let mut ranking: Ranking = examples
            .map(|row| (row[column], row[self.columns] == class))
            .collect();
        ranking.sort_unstable_by(|left, right| left.0.total_cmp(&right.0));
        ranking
    }

    pub fn examples(&self) -> usize {
        self.rows().len() / (self.columns + 1)
    }

    pub fn observations(&self) -> usize {
        self.examples()
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

    pub fn state(&self) -> Vec<f64> {
        self.rows().clone()
    }

    pub fn add_state(&mut self, state: &[f64]) -> Result<()> {
        let rows = state.chunks_exact(self.columns + 1);
        ensure!(
            rows.remainder().is_empty(),
            "the state of `{}` has {} numbers, and {} of each example are needed: {} besides",
            self.name,
            state.len(),
            self.columns + 1,
            rows.remainder().len()
        );
        self.counted.get_mut().rows.extend(state);
        Ok(())
    }

    pub fn reset(&mut self) {
        *self.counted.get_mut() = Counted::default();
    }

    /// As on a GPU, whose values are read late.
    #[cfg(test)]
    pub fn push_unread(&mut self, batch: [Tensor<1>; 2]) {
        self.counted.get_mut().unread.push(batch);
    }
}

impl PartialEq for Scores {
    fn eq(&self, other: &Self) -> bool {
        (self.name, self.columns) == (other.name, other.columns) && self.state() == other.state()
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
