//! Per-example metric values, for a [`Mean`](super::Mean).

use anyhow::{Result, ensure};
use burn::tensor::{Bool, Int, Tensor};

use crate::loss::Reduction;

/// 1 if the largest logit is the label's, otherwise 0; the first of equal logits counts as the largest. An
/// example is wrong if one of its logits is NaN or the largest is infinite; classes may be masked with
/// `-inf`.
///
/// Shapes: logits `[batch, classes]`, labels `[batch]` in; `[batch]` out.
///
/// Source: `tf.keras.metrics.sparse_categorical_accuracy`.
pub fn sparse_categorical_accuracy(logits: &Tensor<2>, labels: &Tensor<1, Int>) -> Tensor<1> {
    let (predicted, is_invalid) = predicted_classes(logits); // [batch, 1] each
    let correct = predicted.squeeze_dim(1).equal(labels.clone()).float(); // [batch]
    correct.mask_fill(is_invalid.squeeze_dim(1), 0.0)
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
/// Keras. An example whose label has a NaN or infinite logit is wrong for every `k`; NaN of other classes
/// counts as larger.
///
/// Shapes: logits `[batch, classes]`, labels `[batch]` in; `[batch]` out.
///
/// Source: `tf.keras.metrics.sparse_top_k_categorical_accuracy`.
pub fn sparse_top_k_categorical_accuracy(
    logits: &Tensor<2>,
    labels: &Tensor<1, Int>,
    k: usize,
) -> Tensor<1> {
    let logits = nan_as_infinity(logits); // [batch, classes]
    let of_label = logits.clone().gather(1, labels.clone().unsqueeze_dim(1)); // [batch, 1]
    let is_invalid = of_label.clone().is_inf(); // [batch, 1]
    let rank = logits.greater(of_label).int().sum_dim(1); // [batch, 1]
    let correct = rank.lower_elem(k as i64).float(); // [batch, 1]
    correct.mask_fill(is_invalid, 0.0).squeeze_dim(1)
}

/// Mean absolute error over all but the batch dimension; not finite if a prediction of the example is not.
///
/// Shapes: `[batch, ..]` twice in; `[batch]` out.
///
/// # Errors
/// The shapes differ.
///
/// Source: `tf.keras.metrics.mean_absolute_error`.
pub fn mean_absolute_error<const D: usize>(
    predictions: &Tensor<D>,
    targets: &Tensor<D>,
) -> Result<Tensor<1>> {
    ensure_equal_shapes(predictions, targets)?;
    Ok(Reduction::None.apply((predictions.clone() - targets.clone()).abs()))
}

/// Mean squared error over all but the batch dimension; not finite if a prediction of the example is not.
///
/// Shapes: `[batch, ..]` twice in; `[batch]` out.
///
/// # Errors
/// The shapes differ.
///
/// Source: `tf.keras.metrics.mean_squared_error`.
pub fn mean_squared_error<const D: usize>(
    predictions: &Tensor<D>,
    targets: &Tensor<D>,
) -> Result<Tensor<1>> {
    ensure_equal_shapes(predictions, targets)?;
    Ok(Reduction::None.apply((predictions.clone() - targets.clone()).square()))
}

/// Checks shapes, as Burn would silently broadcast `[batch, 1]` to `[batch, 3]`.
pub(crate) fn ensure_equal_shapes<const D: usize>(
    predictions: &Tensor<D>,
    targets: &Tensor<D>,
) -> Result<()> {
    let (predictions, targets) = (predictions.dims(), targets.dims());
    ensure!(
        predictions == targets,
        "predictions of shape {predictions:?} have targets of shape {targets:?}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;
    use crate::replica::visible_devices;

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

    #[test]
    fn errors_of_any_rank_are_means_of_an_example() {
        let device = Device::flex();
        let one = Tensor::<1>::from_floats([1.0, -3.0], &device);
        let zero = one.zeros_like();
        assert_eq!(
            values(mean_absolute_error(&one, &zero).unwrap()),
            [1.0, 3.0]
        );
        let three = Tensor::<3>::from_floats([[[1.0], [-3.0]], [[0.0], [4.0]]], &device);
        let zeros = three.zeros_like();
        assert_eq!(
            values(mean_squared_error(&three, &zeros).unwrap()),
            [5.0, 8.0]
        );
        let narrow = zeros.narrow(1, 0, 1);
        assert!(mean_squared_error(&three, &narrow).is_err());
        assert!(mean_absolute_error(&three, &narrow).is_err());
    }
}
