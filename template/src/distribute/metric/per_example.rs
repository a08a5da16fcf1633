//! Values of each example, to be given to a [`Mean`](super::Mean).

use burn::tensor::{Int, Tensor};

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
/// in its favour, as Keras has it.
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
    let larger = logits.clone().greater(of_label).int().sum_dim(1); // [batch, 1]
    larger.lower_elem(k as i64).float().squeeze_dim(1)
}

/// The mean of the absolute differences, over all but the batch dimension.
///
/// Shapes: `[batch, ..]` twice in; `[batch]` out.
///
/// Source: `tf.keras.metrics.mean_absolute_error`.
pub fn mean_absolute_error<const D: usize>(
    predictions: &Tensor<D>,
    targets: &Tensor<D>,
) -> Tensor<1> {
    mean_of_example((predictions.clone() - targets.clone()).abs())
}

/// The mean of the squared differences, over all but the batch dimension.
///
/// Shapes: `[batch, ..]` twice in; `[batch]` out.
///
/// Source: `tf.keras.metrics.mean_squared_error`.
pub fn mean_squared_error<const D: usize>(
    predictions: &Tensor<D>,
    targets: &Tensor<D>,
) -> Tensor<1> {
    mean_of_example((predictions.clone() - targets.clone()).square())
}

fn mean_of_example<const D: usize>(values: Tensor<D>) -> Tensor<1> {
    let batch = values.dims()[0];
    match D {
        1 => values.reshape([batch]), // [batch]
        _ => values.flatten::<2>(1, D - 1).mean_dim(1).reshape([batch]), // [batch]
    }
}
