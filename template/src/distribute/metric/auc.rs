use anyhow::{Result, ensure};
use burn::tensor::{Int, Tensor};

use super::Metric;

/// The area under the receiver operating characteristic of a binary classifier: how often an
/// example of class 1 scores higher than one of class 0, ties counting half. Exact, as all scores
/// are kept; 16 bytes an example.
///
/// Source: `sklearn.metrics.roc_auc_score`. With examples of one class only it is not defined, and
/// there is no result.
#[derive(Clone, Debug, PartialEq)]
pub struct AreaUnderRoc {
    name: &'static str,
    /// Score and label of each example, one after the other.
    pairs: Vec<f64>,
}

impl AreaUnderRoc {
    pub fn new(name: &'static str) -> Self {
        AreaUnderRoc {
            name,
            pairs: Vec::new(),
        }
    }

    /// Counts the examples of a replica's batch.
    ///
    /// Shapes: scores `[batch]`, higher for class 1; labels `[batch]`, 0 or 1.
    ///
    /// # Errors
    /// A label is neither, a score is not a number, or there are more of one than of the other;
    /// nothing is counted then.
    pub fn update(&mut self, scores: &Tensor<1>, labels: &Tensor<1, Int>) -> Result<()> {
        let ([scores_len], [labels_len]) = (scores.dims(), labels.dims());
        ensure!(
            scores_len == labels_len,
            "`{}` got {scores_len} scores for {labels_len} labels",
            self.name
        );
        let (scores, labels) = (scores.clone().into_data(), labels.clone().into_data());
        let pairs: Vec<_> = scores.iter::<f64>().zip(labels.iter::<i64>()).collect();
        // All are checked before any is counted.
        for (score, label) in &pairs {
            ensure!(
                (0..=1).contains(label) && !score.is_nan(),
                "`{}` got the score {score} for the label {label}: labels are 0 or 1, and scores \
                 numbers",
                self.name
            );
        }
        let flat = pairs
            .into_iter()
            .flat_map(|(score, label)| [score, label as f64]);
        self.pairs.extend(flat);
        Ok(())
    }

    /// The area; `None` while only one class was seen.
    pub fn result(&self) -> Option<f64> {
        let mut pairs: Vec<(f64, bool)> = self
            .pairs
            .chunks_exact(2)
            .map(|pair| (pair[0], pair[1] == 1.0))
            .collect();
        pairs.sort_unstable_by(|left, right| left.0.total_cmp(&right.0));
        let (mut negatives, mut positives, mut ordered) = (0.0, 0.0, 0.0);
        for ties in pairs.chunk_by(|left, right| left.0 == right.0) {
            let of_ones = ties.iter().filter(|(_, is_one)| *is_one).count() as f64;
            let of_zeros = ties.len() as f64 - of_ones;
            ordered += of_ones * (negatives + of_zeros / 2.0);
            negatives += of_zeros;
            positives += of_ones;
        }
        (negatives > 0.0 && positives > 0.0).then(|| ordered / (negatives * positives))
    }
}

impl Metric for AreaUnderRoc {
    fn name(&self) -> &'static str {
        self.name
    }

    fn count(&self) -> usize {
        self.pairs.len() / 2
    }

    fn state(&self) -> Vec<f64> {
        self.pairs.clone()
    }

    fn add_state(&mut self, state: &[f64]) -> Result<()> {
        ensure!(
            state.len().is_multiple_of(2),
            "the state of `{}` has {} numbers, and pairs are needed",
            self.name,
            state.len()
        );
        self.pairs.extend_from_slice(state);
        Ok(())
    }

    fn results(&self) -> Vec<(String, f64)> {
        let result = self.result();
        result
            .map(|area| (self.name.to_owned(), area))
            .into_iter()
            .collect()
    }

    fn reset(&mut self) {
        self.pairs.clear();
    }
}
