//! Metrics of the ranking of observations by their scores.

use std::marker::PhantomData;

use anyhow::Result;
use burn::tensor::{Int, Tensor};

use super::{accuracy::HasLabels, scores::Scores};
use crate::metric::{Metric, metric_by, value_by_name};

/// The area under the receiver operating characteristic of a binary classifier: the probability that an
/// observation (an example, or a pixel or token of one) of class 1 scores higher than one of class 0, with ties
/// counting half.
///
/// Source: `sklearn.metrics.roc_auc_score` and `torchmetrics.AUROC(task="binary", ignore_index)`. Undefined, and
/// without result, for observations of one class only.
pub type AreaUnderRoc = BinaryRanking<RocArea>;

/// The average precision of a binary classifier, an area under the curve of precision over recall: the sum
/// over the distinct scores, from the highest, of the precision at that threshold times the gain in recall
/// since the last; from 0 to 1.
///
/// Source: `sklearn.metrics.average_precision_score`, which warns and gives 0 without examples of class 1;
/// here that is undefined, and without result.
pub type AveragePrecision = BinaryRanking<PrecisionArea>;

/// A metric of how the scores of a binary classifier rank observations. Exact: stores all scores, 16 bytes per
/// observation, also in checkpoints. A NaN or infinite score ranks wrong: below all others for class 1, and above
/// all others for class 0.
#[derive(Clone, Debug, PartialEq)]
pub struct BinaryRanking<A> {
    scores: Scores,
    area: PhantomData<A>,
}

/// An area under a curve over the thresholds of a ranking, for [`BinaryRanking`].
pub trait Area: Send + 'static {
    /// The area for scores, from the lowest to the highest, each with whether its observation is of class 1; `None` if
    /// undefined.
    fn under(ranking: &[(f64, bool)]) -> Option<f64>;
}

/// The area of [`AreaUnderRoc`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RocArea;

/// The area of [`AveragePrecision`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrecisionArea;

impl Area for RocArea {
    fn under(ranking: &[(f64, bool)]) -> Option<f64> {
        let (mut negatives, mut positives, mut ordered) = (0.0, 0.0, 0.0);
        for ties in ranking.chunk_by(|left, right| left.0 == right.0) {
            let of_ones = ties.iter().filter(|(_, is_one)| *is_one).count() as f64;
            let of_zeros = ties.len() as f64 - of_ones;
            ordered += of_ones * (negatives + of_zeros / 2.0);
            negatives += of_zeros;
            positives += of_ones;
        }
        (negatives > 0.0 && positives > 0.0).then(|| ordered / (negatives * positives))
    }
}

impl Area for PrecisionArea {
    fn under(ranking: &[(f64, bool)]) -> Option<f64> {
        let (mut taken, mut found, mut sum) = (0.0, 0.0, 0.0);
        for ties in ranking.chunk_by(|left, right| left.0 == right.0).rev() {
            let ones = ties.iter().filter(|(_, is_one)| *is_one).count() as f64;
            taken += ties.len() as f64;
            found += ones;
            sum += ones * found / taken;
        }
        (found > 0.0).then(|| sum / found)
    }
}

impl<A: Area> BinaryRanking<A> {
    /// Creates an empty metric, called `name` in reports.
    pub fn new(name: &'static str) -> Self {
        BinaryRanking {
            scores: Scores::new(name, 1),
            area: PhantomData,
        }
    }

    /// Ignores observations with this label, such as padding.
    #[must_use]
    pub fn ignoring(mut self, label: i64) -> Self {
        self.scores.ignored = Some(label);
        self
    }

    /// Adds the observations of a replica's batch. Those of a GPU are read some batches later.
    ///
    /// Shapes: scores `[batch, ..]`, higher for class 1; labels `[batch, ..]`, 0 or 1.
    ///
    /// # Errors
    /// A label is neither 0 nor 1 nor ignored, the shapes of scores and labels differ, or a device failed; nothing is
    /// added then. On a GPU, such a label is an error of a later call, at the latest of that which merges the
    /// states of replicas.
    pub fn update<const D: usize>(
        &mut self,
        scores: &Tensor<D>,
        labels: &Tensor<D, Int>,
    ) -> Result<()> {
        self.scores.update(scores, labels)
    }

    /// The area; `None` if undefined.
    pub fn result(&self) -> Option<f64> {
        A::under(&self.scores.ranking(0))
    }

    fn named(&self) -> Vec<(String, f64)> {
        value_by_name(self.name(), self.result())
    }
}

metric_by!(BinaryRanking<A>, scores, A: Area);

/// The area under the receiver operating characteristic of a classifier of several classes: the mean over the
/// classes of [`AreaUnderRoc`] of the class against all others, by the scores of the class. Classes without
/// observations are left out. Exact: stores all scores, 8 bytes per class and 8 per observation. A NaN or infinite
/// score ranks as for [`AreaUnderRoc`].
///
/// Source: `sklearn.metrics.roc_auc_score(multi_class="ovr", average="macro")`, which needs examples of each
/// class; `torchmetrics.AUROC(task="multiclass")`, which leaves out classes without examples. Undefined, and
/// without result, for observations of one class only.
#[derive(Clone, Debug, PartialEq)]
pub struct MulticlassAreaUnderRoc {
    scores: Scores,
}

impl MulticlassAreaUnderRoc {
    /// Creates an empty metric of `classes` classes, at least 2, called `name` in reports.
    pub fn new(name: &'static str, classes: usize) -> Self {
        MulticlassAreaUnderRoc {
            scores: Scores::new(name, classes.max(2)),
        }
    }

    /// Ignores observations with this label, such as padding.
    #[must_use]
    pub fn ignoring(mut self, label: i64) -> Self {
        self.scores.ignored = Some(label);
        self
    }

    /// Adds the observations of a replica's batch. Those of a GPU are read some batches later.
    ///
    /// Shapes: scores `[batch, classes, ..]`, such as probabilities: they are compared between observations, so
    /// logits give other results. Labels `[batch, ..]`.
    ///
    /// # Errors
    /// As for [`BinaryRanking::update`]; the number of classes differs from that of the metric.
    pub fn update<const D: usize, const E: usize>(
        &mut self,
        scores: &Tensor<D>,
        labels: &Tensor<E, Int>,
    ) -> Result<()>
    where
        Tensor<D>: HasLabels<E>,
    {
        self.scores.update_classes(scores, labels)
    }

    /// The mean area over the classes with observations; `None` for observations of one class only.
    pub fn result(&self) -> Option<f64> {
        let columns = 0..self.scores.columns();
        let areas: Vec<f64> = columns
            .filter_map(|class| RocArea::under(&self.scores.ranking(class)))
            .collect();
        (!areas.is_empty()).then(|| areas.iter().sum::<f64>() / areas.len() as f64)
    }

    fn named(&self) -> Vec<(String, f64)> {
        value_by_name(self.name(), self.result())
    }
}

metric_by!(MulticlassAreaUnderRoc, scores);

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn counted(examples: &[(f32, i32)]) -> AreaUnderRoc {
        let (scores, labels): (Vec<_>, Vec<_>) = examples.iter().copied().unzip();
        let device = Device::flex();
        let scores = Tensor::<1>::from_floats(&scores[..], &device);
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

    #[test]
    fn an_average_precision_ranks_a_score_that_is_not_finite_last_or_first() {
        for broken in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let of = |labels: [i32; 3]| {
                let mut average = AveragePrecision::new("average_precision");
                let scores = Tensor::<1>::from_floats([0.9, 0.1, broken], &Device::flex());
                let labels = Tensor::from_ints(labels, &Device::flex());
                average.update(&scores, &labels).unwrap();
                average.result()
            };
            // Precision 1 at the first, 2/3 at the last; or 1/2 at the second.
            assert_eq!(of([1, 0, 1]), Some((1.0 + 2.0 / 3.0) / 2.0), "{broken}");
            assert_eq!(of([1, 0, 0]), Some(0.5), "{broken}");
            assert_eq!(of([0, 0, 0]), None);
            assert_eq!(of([1, 1, 1]), Some(1.0));
        }
    }

    #[test]
    fn several_classes_are_each_ranked_against_the_others() {
        let device = Device::flex();
        let mut area = MulticlassAreaUnderRoc::new("auc", 3);
        assert_eq!((area.result(), area.results()), (None, vec![]));
        let scores = [[0.7, 0.3, 0.0], [0.2, 0.6, 0.2], [0.4, 0.5, 0.1]];
        let scores = Tensor::<2>::from_floats(scores, &device);
        let labels = |labels: [i32; 3]| Tensor::<1, Int>::from_ints(labels, &device);
        area.update(&scores, &labels([0, 1, 0])).unwrap();
        // Class 2 has no example: both of the others are ranked right.
        assert_eq!(area.results(), [("auc".to_owned(), 1.0)]);
        let error = area.update(&scores, &labels([0, 3, 0])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`auc` got the label 3, and labels are from 0 to 2"
        );
        let error = area.update(&scores.clone().narrow(1, 0, 2), &labels([0; 3]));
        let error = error.unwrap_err().to_string();
        assert_eq!(error, "`auc` has 3 classes, and the scores have 2");
        let error = area.update(&scores, &labels([0; 3]).narrow(0, 0, 2));
        let error = error.unwrap_err().to_string();
        assert_eq!(
            error,
            "`auc` got scores of shape [3, 3], which need labels of shape [3], and they have [2]"
        );
        assert_eq!(area.examples(), 3, "nothing of what was refused is counted");
        let error = area.add_state(&[0.0; 6]).unwrap_err().to_string();
        assert!(
            error.contains("the state of `auc` has 6 numbers"),
            "{error}"
        );
    }

    /// Scores and labels `[2, 3]` of three pixels of two images; 255 is ignored.
    const PIXELS: [[f32; 3]; 2] = [[0.9, 0.2, 0.6], [0.5, 0.7, 0.1]];
    const LABELS: [[i32; 3]; 2] = [[1, 0, 255], [0, 1, 1]];

    #[test]
    fn pixels_are_ranked_over_all_images_but_for_those_that_are_ignored() {
        let device = Device::flex();
        let part = |start| {
            let scores = Tensor::<2>::from_floats(PIXELS, &device);
            let labels = Tensor::<2, Int>::from_ints(LABELS, &device);
            (scores.narrow(0, start, 1), labels.narrow(0, start, 1))
        };
        let mut areas = [(); 2].map(|()| AreaUnderRoc::new("auc").ignoring(255));
        let mut averages = [(); 2].map(|()| AveragePrecision::new("precision").ignoring(255));
        for replica in 0..2 {
            let (scores, labels) = part(replica);
            areas[replica].update(&scores, &labels).unwrap();
            averages[replica].update(&scores, &labels).unwrap();
        }
        let [mut area, other] = areas;
        assert_eq!((area.examples(), area.observations()), (1, 2));
        area.add_state(&other.state()).unwrap();
        assert_eq!((area.examples(), area.observations()), (2, 5));
        // Of six pairs of a 1 and a 0, 0.1 is below 0.2 and 0.5.
        assert_eq!(area.result(), Some(4.0 / 6.0));
        let [mut average, other] = averages;
        average.add_state(&other.state()).unwrap();
        // In the order of scores: 1, 1, 0, 0, 1.
        assert_eq!(average.result(), Some((1.0 + 1.0 + 3.0 / 5.0) / 3.0));
        area.reset();
        assert_eq!((area.examples(), area.observations()), (0, 0));
    }

    #[test]
    fn pixels_of_several_classes_are_ranked_by_the_scores_of_each() {
        let device = Device::flex();
        // By pixel: classes 0, 1, and 0 with a low score.
        let scores = [[[0.7, 0.3], [0.2, 0.8], [0.1, 0.9]]];
        let scores = Tensor::<3>::from_floats(scores, &device).swap_dims(1, 2); // [1, 2, 3]
        let labels = Tensor::<2, Int>::from_ints([[0, 1, 0]], &device);
        let mut area = MulticlassAreaUnderRoc::new("auc", 2);
        area.update(&scores, &labels).unwrap();
        assert_eq!((area.examples(), area.observations()), (1, 3));
        assert_eq!(area.result(), Some(0.5));
        let error = area.update(&scores, &labels.narrow(1, 0, 2)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`auc` got scores of shape [1, 2, 3], which need labels of shape [1, 3], and they have [1, 2]"
        );
    }

    #[test]
    fn a_state_of_one_observation_per_example_is_read() {
        let whole = counted(&[(0.1, 0), (0.9, 1)]);
        let mut state = whole.state();
        assert_eq!(state.pop(), Some(2.0));
        let mut area = AreaUnderRoc::new("auc");
        area.add_state(&state).unwrap();
        area.add_state(&[]).unwrap();
        assert_eq!(area, whole);
    }

    /// As on a GPU, whose labels are read late.
    #[test]
    fn another_label_is_refused_by_the_merge_at_the_latest() {
        let mut area = AreaUnderRoc::new("auc");
        let pair = [[0.1, 0.2], [0.0, 2.0]];
        let pair = pair.map(|values| Tensor::from_floats(values, &Device::flex()));
        area.scores.push_unread(pair);
        let error = area.read().unwrap_err().to_string();
        assert_eq!(error, "`auc` got the label 2, and labels are 0 or 1");
    }
}
