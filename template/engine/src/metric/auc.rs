use anyhow::{Result, ensure};
use burn::tensor::{Int, Tensor};

use super::Metric;

/// The area under the receiver operating characteristic of a binary classifier: the probability that an
/// example of class 1 scores higher than one of class 0, with ties counting half. Exact: stores all scores,
/// 16 bytes per example. A NaN or infinite score ranks wrong: below all others for class 1, and above all
/// others for class 0.
///
/// Source: `sklearn.metrics.roc_auc_score`. Undefined, and without result, for examples of one class only.
#[derive(Clone, Debug, PartialEq)]
pub struct AreaUnderRoc {
    name: &'static str,
    /// Score and label of each example, interleaved.
    pairs: Vec<f64>,
}

impl AreaUnderRoc {
    /// Creates an empty metric, called `name` in reports.
    pub fn new(name: &'static str) -> Self {
        AreaUnderRoc {
            name,
            pairs: Vec::new(),
        }
    }

    /// Adds the examples of a replica's batch.
    ///
    /// Shapes: scores `[batch]`, higher for class 1; labels `[batch]`, 0 or 1.
    ///
    /// # Errors
    /// A label is neither 0 nor 1, or the numbers of scores and labels differ; nothing is added then.
    pub fn update(&mut self, scores: &Tensor<1>, labels: &Tensor<1, Int>) -> Result<()> {
        let ([scores_len], [labels_len]) = (scores.dims(), labels.dims());
        ensure!(
            scores_len == labels_len,
            "`{}` got {scores_len} scores for {labels_len} labels",
            self.name
        );
        let (scores, labels) = (scores.clone().into_data(), labels.clone().into_data());
        let pairs: Vec<_> = scores.iter::<f64>().zip(labels.iter::<i64>()).collect();
        // Check all labels before adding any.
        for (_, label) in &pairs {
            ensure!(
                (0..=1).contains(label),
                "`{}` got the label {label}, and labels are 0 or 1",
                self.name
            );
        }
        let flat = pairs
            .into_iter()
            .flat_map(|(score, label)| [ranked(score, label), label as f64]);
        self.pairs.extend(flat);
        Ok(())
    }

    /// The area; `None` for examples of one class only.
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

/// The score, or the worst one for the label if it is not finite.
fn ranked(score: f64, label: i64) -> f64 {
    match label {
        _ if score.is_finite() => score,
        1 => f64::NEG_INFINITY,
        _ => f64::INFINITY,
    }
}

impl Metric for AreaUnderRoc {
    fn name(&self) -> &'static str {
        self.name
    }

    fn examples(&self) -> usize {
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

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn counted(examples: &[(f32, i32)]) -> AreaUnderRoc {
        let (scores, labels): (Vec<_>, Vec<_>) = examples.iter().copied().unzip();
        let device = Device::flex();
        let scores = Tensor::from_floats(&scores[..], &device);
        let mut area = AreaUnderRoc::new("auc");
        let labels = Tensor::from_ints(&labels[..], &device);
        area.update(&scores, &labels).unwrap();
        area
    }

    #[test]
    fn a_score_that_is_not_finite_never_helps() {
        for broken in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let of_one = [(0.1, 0), (0.2, 0), (0.9, 1), (broken, 1)];
            assert_eq!(counted(&of_one).result(), Some(0.5), "{broken} of class 1");
            let of_zero = [(0.1, 0), (broken, 0), (0.8, 1), (0.9, 1)];
            assert_eq!(counted(&of_zero).result(), Some(0.5), "{broken} of class 0");
            let of_both = [(broken, 0), (0.1, 0), (0.9, 1), (broken, 1)];
            let whole = counted(&of_both);
            assert_eq!(whole.result(), Some(0.25), "{broken} of both");
            let mut merged = counted(&of_both[..1]);
            merged.add_state(&counted(&of_both[1..]).state()).unwrap();
            assert_eq!(merged, whole, "merged of two replicas");
            assert_eq!(whole.examples(), 4);
        }
    }
}
