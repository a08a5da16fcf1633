use std::cell::{Ref, RefCell};

use anyhow::{Result, bail, ensure};
use burn::tensor::{FloatDType, Int, Tensor};

use super::{Metric, unread::Unread};

/// The area under the receiver operating characteristic of a binary classifier: the probability that an
/// example of class 1 scores higher than one of class 0, with ties counting half. Exact: stores all scores,
/// 16 bytes per example. A NaN or infinite score ranks wrong: below all others for class 1, and above all
/// others for class 0.
///
/// Source: `sklearn.metrics.roc_auc_score`. Undefined, and without result, for examples of one class only.
#[derive(Clone, Debug)]
pub struct AreaUnderRoc {
    name: &'static str,
    counted: RefCell<Counted>,
}

#[derive(Clone, Debug, Default)]
struct Counted {
    /// Score and label of each example, interleaved.
    pairs: Vec<f64>,
    /// Scores and labels.
    unread: Unread,
    /// A label other than 0 and 1 that a read met.
    invalid: Option<f64>,
}

impl Counted {
    /// Adds what is still to be read. A batch with an invalid label is left out.
    fn read(&mut self) -> Result<()> {
        for [scores, labels] in self.unread.read()? {
            if let Some(label) = labels.iter().find(|label| ![0.0, 1.0].contains(*label)) {
                self.invalid = Some(f64::from(*label));
                continue;
            }
            for (score, label) in scores.into_iter().zip(labels) {
                self.pairs
                    .extend([ranked(score.into(), label), label.into()]);
            }
        }
        Ok(())
    }
}

impl AreaUnderRoc {
    /// Creates an empty metric, called `name` in reports.
    pub fn new(name: &'static str) -> Self {
        AreaUnderRoc {
            name,
            counted: RefCell::default(),
        }
    }

    /// Adds the examples of a replica's batch. Those of a GPU are read some batches later.
    ///
    /// Shapes: scores `[batch]`, higher for class 1; labels `[batch]`, 0 or 1.
    ///
    /// # Errors
    /// A label is neither 0 nor 1, the numbers of scores and labels differ, or a device failed; nothing is
    /// added then. On a GPU, such a label is an error of a later call, at the latest of that which merges the
    /// states of replicas.
    pub fn update(&mut self, scores: &Tensor<1>, labels: &Tensor<1, Int>) -> Result<()> {
        let ([scores_len], [labels_len]) = (scores.dims(), labels.dims());
        ensure!(
            scores_len == labels_len,
            "`{}` got {scores_len} scores for {labels_len} labels",
            self.name
        );
        let scores = scores.clone().detach().cast(FloatDType::F32); // [batch]
        let labels = labels.clone().cast(FloatDType::F32); // [batch]
        let counted = self.counted.get_mut();
        if counted.unread.push([scores, labels]) {
            counted.read()?;
        }
        match counted.invalid.take() {
            Some(label) => bail!(no_class(self.name, label)),
            None => Ok(()),
        }
    }

    /// Score and label of each example, interleaved.
    ///
    /// # Panics
    /// A device failed.
    fn pairs(&self) -> Ref<'_, Vec<f64>> {
        let read = self.counted.borrow_mut().read();
        read.expect("a device that gives scores and labels");
        Ref::map(self.counted.borrow(), |counted| &counted.pairs)
    }

    /// The area; `None` for examples of one class only.
    pub fn result(&self) -> Option<f64> {
        let mut pairs: Vec<(f64, bool)> = self
            .pairs()
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
fn ranked(score: f64, label: f32) -> f64 {
    match score.is_finite() {
        true => score,
        false if label == 1.0 => f64::NEG_INFINITY,
        false => f64::INFINITY,
    }
}

fn no_class(name: &str, label: f64) -> String {
    format!("`{name}` got the label {label}, and labels are 0 or 1")
}

impl Metric for AreaUnderRoc {
    fn name(&self) -> &'static str {
        self.name
    }

    fn examples(&self) -> usize {
        self.pairs().len() / 2
    }

    fn state(&self) -> Vec<f64> {
        let mut state = self.pairs().clone();
        // One number too many, which `add_state` refuses: only it returns errors.
        state.extend(self.counted.borrow().invalid);
        state
    }

    fn add_state(&mut self, state: &[f64]) -> Result<()> {
        let (pairs, rest) = state.as_chunks::<2>();
        match rest {
            [label, ..] => bail!(no_class(self.name, *label)),
            [] => self.counted.get_mut().pairs.extend(pairs.iter().flatten()),
        }
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
        *self.counted.get_mut() = Counted::default();
    }
}

impl PartialEq for AreaUnderRoc {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && self.state() == other.state()
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

    /// As on a GPU, whose labels are read late.
    #[test]
    fn another_label_is_refused_by_the_merge_at_the_latest() {
        let mut area = AreaUnderRoc::new("auc");
        let pair = [[0.1, 0.2], [0.0, 2.0]];
        let pair = pair.map(|values| Tensor::from_floats(values, &Device::flex()));
        area.counted.get_mut().unread.push(pair);
        let error = AreaUnderRoc::new("auc").add_state(&area.state());
        let error = error.unwrap_err().to_string();
        assert_eq!(error, "`auc` got the label 2, and labels are 0 or 1");
    }
}
