//! Labels and predictions as values that are read together.

use burn::tensor::{FloatDType, Int, Tensor};

/// All values of a tensor, `[values]`.
pub fn flat<const D: usize>(tensor: Tensor<D, Int>) -> Tensor<1> {
    tensor.cast(FloatDType::F32).reshape([-1])
}

/// All labels, `[observations]`, with NaN in place of `ignored` ones.
pub fn flat_labels<const D: usize>(labels: &Tensor<D, Int>, ignored: Option<i64>) -> Tensor<1> {
    let flat = flat(labels.clone()); // [observations]
    match ignored {
        None => flat,
        Some(ignored) => {
            let is_ignored = labels.clone().equal_elem(ignored); // [batch, ..]
            flat.mask_fill(is_ignored.reshape([-1]), f32::NAN)
        }
    }
}

/// The first of `labels`, from [`flat_labels`], that is neither that of a class nor ignored.
pub fn label_of_no_class(labels: &[f32], classes: usize) -> Option<f64> {
    let is_invalid = |label: &&f32| **label < 0.0 || **label >= classes as f32;
    labels
        .iter()
        .find(is_invalid)
        .map(|label| f64::from(*label))
}
