//! Errors per example, for a [`Mean`](crate::metric::Mean).

use anyhow::Result;
use burn::tensor::Tensor;

use crate::{loss::Reduction, observations::ensure_equal_shapes};

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

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn values(tensor: Tensor<1>) -> Vec<f32> {
        tensor.into_data().iter::<f32>().collect()
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
