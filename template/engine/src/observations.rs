//! Shapes and labels of observations: the checks of losses and of metrics.

use std::fmt::Display;

use anyhow::{Result, ensure};
use burn::tensor::{Int, Tensor, TensorData};

use crate::device::{is_cpu, read_data};

/// Checks shapes, as Burn would silently broadcast `[batch, 1]` to `[batch, 3]`.
pub fn ensure_equal_shapes<const D: usize>(
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

/// Checks that labels have shape `[batch, ..]` for logits of shape `[batch, classes, ..]`.
pub fn ensure_labels_fit<const D: usize, const E: usize>(
    logits: [usize; D],
    labels: [usize; E],
) -> Result<()> {
    ensure_labels_fit_classes(logits, labels, 1)
}

/// As [`ensure_labels_fit`], with the classes of logits in `dimension`.
pub fn ensure_labels_fit_classes<const D: usize, const E: usize>(
    logits: [usize; D],
    labels: [usize; E],
    dimension: usize,
) -> Result<()> {
    let shape = match dimension {
        1 => "[batch, classes, ..]",
        _ => "[batch, .., classes]",
    };
    ensure!(
        D >= 2,
        "logits of shape {logits:?} have no classes; their shape is {shape}"
    );
    let mut expected = logits.to_vec();
    expected.remove(dimension);
    ensure!(
        expected == labels,
        "logits of shape {logits:?} need labels of shape {expected:?}, and they have {labels:?}"
    );
    Ok(())
}

/// Checks on the CPU, where nothing waits, that labels are those of classes or ignored.
pub fn ensure_labels_of_classes<const E: usize>(
    labels: &Tensor<E, Int>,
    classes: usize,
    ignored: Option<i64>,
) -> Result<()> {
    if !is_cpu(&[labels.device().without_autodiff()]) {
        return Ok(());
    }
    ensure_classes(&read_data(labels.clone())?, classes, ignored)
}

fn ensure_classes(labels: &TensorData, classes: usize, ignored: Option<i64>) -> Result<()> {
    for label in labels.iter::<i64>() {
        ensure!(
            (0..classes as i64).contains(&label) || ignored == Some(label),
            no_class(label, classes)
        );
    }
    Ok(())
}

/// The error of a label that is neither that of a class nor ignored.
pub fn no_class(label: impl Display, classes: usize) -> String {
    format!(
        "it met the label {label}, and there are {classes} classes; `ignoring({label})` would leave it out"
    )
}
