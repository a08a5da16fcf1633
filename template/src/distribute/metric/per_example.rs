//! Values of each example, to be given to a [`Mean`](super::Mean).

use anyhow::{Result, ensure};
use burn::tensor::{Int, Tensor};

use crate::distribute::Reduction;

/// 1 where the largest logit is the label's, else 0.
///
/// Shapes: logits `[batch, classes]`, labels `[batch]` in; `[batch]` out.
///
/// Source: `tf.keras.metrics.sparse_categorical_accuracy`.
pub fn sparse_categorical_accuracy(logits: &Tensor<2>, labels: &Tensor<1, Int>) -> Tensor<1> {
    let predicted = logits.clone().argmax(1).squeeze_dim(1); // [batch]
    predicted.equal(labels.clone()).float()
}

/// 1 where the label's logit is among the `k` largest, else 0. Logits that are equal to it count
/// in its favour, as Keras has it; one that is not a number is never among them.
///
/// Shapes: logits `[batch, classes]`, labels `[batch]` in; `[batch]` out.
///
/// Source: `tf.keras.metrics.sparse_top_k_categorical_accuracy`.
pub fn sparse_top_k_categorical_accuracy(
    logits: &Tensor<2>,
    labels: &Tensor<1, Int>,
    k: usize,
) -> Tensor<1> {
    let of_label = logits.clone().gather(1, labels.clone().unsqueeze_dim(1)); // [batch, 1]
    // Not `greater`, which is false for what is not a number.
    let larger = logits.clone().lower_equal(of_label).bool_not(); // [batch, classes]
    let rank = larger.int().sum_dim(1); // [batch, 1]
    rank.lower_elem(k as i64).float().squeeze_dim(1)
}

/// The mean of the absolute differences, over all but the batch dimension.
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

/// The mean of the squared differences, over all but the batch dimension.
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

/// Burn would stretch `[batch, 1]` to `[batch, 3]`, and the result would look right.
fn ensure_equal_shapes<const D: usize>(predictions: &Tensor<D>, targets: &Tensor<D>) -> Result<()> {
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

    fn values(tensor: Tensor<1>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
    }

    #[test]
    fn ties_count_for_the_label_and_what_is_no_number_never_does() {
        let device = Device::flex();
        let logits = [
            [1.0, 1.0, 0.0],
            [0.0, 2.0, 1.0],
            [f32::NAN; 3],
            [f32::NAN, 1.0, 0.0],
        ];
        let logits = Tensor::<2>::from_floats(logits, &device);
        let labels = Tensor::<1, Int>::from_ints([1, 0, 0, 1], &device);
        let top = |k| values(sparse_top_k_categorical_accuracy(&logits, &labels, k));
        assert_eq!(top(1), [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(top(2), [1.0, 0.0, 0.0, 1.0]);
        assert_eq!(top(3), [1.0, 1.0, 0.0, 1.0]);
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
