//! Accuracies per example or observation, for a [`Mean`](crate::metric::Mean).

use burn::tensor::{Bool, Int, Tensor};

use crate::observations::ensure_labels_fit;

/// Logits or scores `[batch, classes, ..]` of observations with labels `[batch, ..]`, a tensor of `E` dimensions: one
/// fewer.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not `[batch, classes, ..]` for labels `[batch, ..]` of {E} dimensions",
    label = "it needs one dimension more than the labels, that of classes"
)]
pub trait HasLabels<const E: usize> {}

impl HasLabels<1> for Tensor<2> {}
impl HasLabels<2> for Tensor<3> {}
impl HasLabels<3> for Tensor<4> {}
impl HasLabels<4> for Tensor<5> {}
impl HasLabels<5> for Tensor<6> {}

/// 1 if the largest logit is the label's, otherwise 0; the first of equal logits counts as the largest. An
/// observation is wrong if one of its logits is NaN or the largest is infinite, or if its label is that of no class;
/// classes may be masked with `-inf`.
///
/// Of one observation per example, [`Mean::update`](crate::metric::Mean::update) takes the values; of several, such as pixels
/// or tokens, [`Mean::update_observations`](crate::metric::Mean::update_observations), where a weight of 0 leaves out padding.
///
/// Shapes: logits `[batch, classes, ..]`, labels `[batch, ..]` in; `[batch, ..]` out.
///
/// # Panics
/// The shapes do not match.
///
/// Source: `tf.keras.metrics.sparse_categorical_accuracy`, with classes in the second dimension as in
/// `torchmetrics.Accuracy(task="multiclass")`.
pub fn sparse_categorical_accuracy<const D: usize, const E: usize>(
    logits: &Tensor<D>,
    labels: &Tensor<E, Int>,
) -> Tensor<E>
where
    Tensor<D>: HasLabels<E>,
{
    expect_labels_fit(logits, labels);
    let (predicted, is_invalid) = predicted_classes(logits); // [batch, 1, ..] each
    let correct = predicted.squeeze_dim(1).equal(labels.clone()).float(); // [batch, ..]
    correct.mask_fill(is_invalid.squeeze_dim(1), 0.0)
}

/// # Panics
/// The shapes do not match: Burn would silently broadcast `[batch, 1]` to `[batch, 3]`.
fn expect_labels_fit<const D: usize, const E: usize>(logits: &Tensor<D>, labels: &Tensor<E, Int>) {
    ensure_labels_fit(logits.dims(), labels.dims()).unwrap_or_else(|error| panic!("{error}"));
}

/// The class of the largest logit of each observation, and whether the prediction is invalid: one of the
/// logits is NaN, or the largest is infinite. Does not wait for the device.
///
/// Shapes: logits `[batch, classes, ..]` in; `[batch, 1, ..]` twice out.
pub(super) fn predicted_classes<const D: usize>(
    logits: &Tensor<D>,
) -> (Tensor<D, Int>, Tensor<D, Bool>) {
    let (largest, predicted) = nan_as_infinity(logits).max_dim_with_indices(1); // [batch, 1, ..] each
    (predicted, largest.is_inf())
}

/// The logits without autodiff graph, with NaN, which backends compare differently, as infinity.
fn nan_as_infinity<const D: usize>(logits: &Tensor<D>) -> Tensor<D> {
    let logits = logits.clone().detach(); // [batch, classes, ..]
    let is_nan = logits.clone().is_nan(); // [batch, classes, ..]
    logits.mask_fill(is_nan, f32::INFINITY)
}

/// 1 if the label's logit is among the `k` largest, otherwise 0. Ties count in favour of the label, as in
/// Keras. An observation whose label has a NaN or infinite logit, or is that of no class, is wrong for every `k`; NaN of
/// other classes counts as larger. A [`Mean`](crate::metric::Mean) takes the values as those of
/// [`sparse_categorical_accuracy`].
///
/// Shapes: logits `[batch, classes, ..]`, labels `[batch, ..]` in; `[batch, ..]` out.
///
/// # Panics
/// The shapes do not match.
///
/// Source: `tf.keras.metrics.sparse_top_k_categorical_accuracy`, with classes in the second dimension as in
/// `torchmetrics.Accuracy(task="multiclass", top_k=k)`.
pub fn sparse_top_k_categorical_accuracy<const D: usize, const E: usize>(
    logits: &Tensor<D>,
    labels: &Tensor<E, Int>,
    k: usize,
) -> Tensor<E>
where
    Tensor<D>: HasLabels<E>,
{
    expect_labels_fit(logits, labels);
    let classes = logits.dims()[1] as i64;
    let logits = nan_as_infinity(logits); // [batch, classes, ..]
    let labels = labels.clone().unsqueeze_dim::<D>(1); // [batch, 1, ..]
    let is_no_class = labels.clone().lower_elem(0); // [batch, 1, ..]
    let is_no_class = is_no_class.bool_or(labels.clone().greater_equal_elem(classes));
    let labels = labels.mask_fill(is_no_class.clone(), 0); // [batch, 1, ..]
    let of_label = logits.clone().gather(1, labels); // [batch, 1, ..]
    let is_invalid = of_label.clone().is_inf().bool_or(is_no_class); // [batch, 1, ..]
    let rank = logits.greater(of_label).int().sum_dim(1); // [batch, 1, ..]
    let correct = rank.lower_elem(k as i64).float(); // [batch, 1, ..]
    correct.mask_fill(is_invalid, 0.0).squeeze_dim(1)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::{
        metric::{Mean, Metric},
        replica::visible_devices,
    };

    const NAN: f32 = f32::NAN;
    const INFINITY: f32 = f32::INFINITY;

    fn values(tensor: Tensor<1>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    #[test]
    fn ties_count_for_the_label_in_the_top_and_what_is_not_finite_never_does() {
        let logits = [
            [1.0, 1.0, 0.0],
            [0.0, 2.0, 1.0],
            [NAN; 3],
            [NAN, 1.0, 0.0],
            [INFINITY, 1.0, 0.0],
            [-INFINITY, 1.0, 0.0],
            [-INFINITY, 1.0, 0.0],
        ];
        for device in visible_devices() {
            let logits = Tensor::<2>::from_floats(logits, &device);
            let labels = Tensor::<1, Int>::from_ints([1, 0, 0, 1, 0, 0, 1], &device);
            let top = |k| values(sparse_top_k_categorical_accuracy(&logits, &labels, k));
            assert_eq!(top(1), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0]);
            assert_eq!(top(2), [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
            assert_eq!(top(3), [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
            assert_eq!(top(4), [1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0]);
        }
    }

    #[test]
    fn an_accuracy_needs_a_largest_logit_that_is_finite_and_no_nan_beside_it() {
        let rows = [
            ([1.0, 1.0, 0.0], 0, 1.0),
            ([1.0, 1.0, 0.0], 1, 0.0),
            ([-INFINITY, 1.0, -INFINITY], 1, 1.0),
            ([NAN, 1.0, 0.0], 1, 0.0),
            ([2.0, 1.0, NAN], 0, 0.0),
            ([2.0, 1.0, -NAN], 0, 0.0),
            ([INFINITY, 1.0, 0.0], 0, 0.0),
            ([INFINITY, 1.0, 0.0], 1, 0.0),
            ([NAN; 3], 0, 0.0),
            ([INFINITY; 3], 0, 0.0),
            ([-INFINITY; 3], 0, 0.0),
        ];
        // Rows of 3 and of 35 classes: the CPU kernel differs for long rows.
        let devices = visible_devices();
        for (device, masked) in devices
            .iter()
            .flat_map(|device| [(device, 0), (device, 32)])
        {
            for (logits, label, expected) in rows {
                let row = [&logits[..], &vec![-INFINITY; masked]].concat();
                let logits = Tensor::<1>::from_floats(&row[..], device).unsqueeze_dim(0);
                let labels = Tensor::<1, Int>::from_ints([label], device);
                let correct = values(sparse_categorical_accuracy(&logits, &labels));
                assert_eq!(correct, [expected], "{row:?} with the label {label}");
            }
        }
    }

    /// Logits `[2, 3, 2]` of two tokens of two examples, and labels `[2, 2]`, of which 255 is padding.
    fn tokens(device: &Device) -> (Tensor<3>, Tensor<2, Int>) {
        let by_token = [
            [[3.0, 2.0, 1.0], [0.0, 1.0, 2.0]],
            [[1.0, 3.0, 2.0], [5.0, 4.0, 3.0]],
        ];
        let logits = Tensor::<3>::from_floats(by_token, device).swap_dims(1, 2); // [2, 3, 2]
        (logits, Tensor::from_ints([[0, 1], [0, 255]], device))
    }

    #[test]
    fn tokens_count_each_and_padding_does_not() {
        for device in visible_devices() {
            let (logits, labels) = tokens(&device);
            let is_token = labels.clone().not_equal_elem(255).float(); // [2, 2]
            let counted = |correct: Tensor<2>, weights: Option<&Tensor<2>>| {
                let mut mean = Mean::new("accuracy");
                mean.update_observations(&correct, weights).unwrap();
                (mean.result(), mean.examples(), mean.observations())
            };
            let top = |k| sparse_top_k_categorical_accuracy(&logits, &labels, k);
            let first = sparse_categorical_accuracy(&logits, &labels); // [2, 2]
            assert_eq!(first.dims(), [2, 2]);
            assert_eq!(values(first.clone().reshape([4])), [1.0, 0.0, 0.0, 0.0]);
            assert_eq!(values(top(1).reshape([4])), [1.0, 0.0, 0.0, 0.0]);
            assert_eq!(values(top(2).reshape([4])), [1.0, 1.0, 0.0, 0.0]);
            assert_eq!(values(top(3).reshape([4])), [1.0, 1.0, 1.0, 0.0]);
            assert_eq!(counted(first.clone(), None), (0.25, 2, 4));
            assert_eq!(counted(first, Some(&is_token)), (1.0 / 3.0, 2, 3));
            assert_eq!(counted(top(2), Some(&is_token)), (2.0 / 3.0, 2, 3));
        }
    }

    #[test]
    fn pixels_have_the_accuracy_of_as_many_examples() {
        for device in visible_devices() {
            let (logits, labels) = tokens(&device);
            let images = logits.clone().reshape([2, 3, 1, 2]);
            let correct = sparse_categorical_accuracy(&images, &labels.clone().reshape([2, 1, 2]));
            let flat = logits.swap_dims(1, 2).reshape([4, 3]);
            let each = sparse_categorical_accuracy(&flat, &labels.reshape([4]));
            assert_eq!(values(correct.reshape([4])), values(each));
            // The number of dimensions of labels follows from that of logits.
            let predicted = flat.clone().argmax(1).squeeze_dim(1); // [4]
            let correct = sparse_categorical_accuracy(&flat, &predicted); // [4]
            assert_eq!(values(correct), [1.0; 4]);
        }
    }

    #[test]
    #[should_panic(
        expected = "logits of shape [2, 3, 2] need labels of shape [2, 2], and they have [2, 1]"
    )]
    fn labels_are_not_broadcast() {
        let (logits, labels) = tokens(&Device::flex());
        sparse_categorical_accuracy(&logits, &labels.narrow(1, 0, 1));
    }
}
