//! Connectionist temporal classification, of sequences of labels.

use anyhow::{Context, Result, bail, ensure};
use burn::tensor::{Int, Tensor, TensorData, activation::log_softmax, module::ctc_loss};

use super::Reduction;
use crate::{
    anomalies::Watch,
    device::{is_cpu, read_data},
};

/// Connectionist temporal classification: the negative log-probability of a sequence of labels, over all its
/// alignments with the time steps of longer logits, in which a label may repeat and blanks may stand between.
///
/// An example is neither divided by the length of its sequence, as `reduction="mean"` of PyTorch does, nor
/// set to 0 if no alignment exists. Computed by Burn, in its kernel where the device has one.
///
/// Source: `torch.nn.CTCLoss(blank, reduction="none")`; `burn::nn::loss::CTCLoss`; Graves et al. (2006),
/// <https://www.cs.toronto.edu/~graves/icml_2006.pdf>.
#[derive(Clone, Debug, Default)]
pub struct Ctc {
    /// The reduction over the examples of a batch.
    pub reduction: Reduction,
    blank: usize,
}

impl Ctc {
    /// One loss per example, with class 0 as the blank.
    pub fn new() -> Self {
        Ctc::default()
    }

    /// Sets the reduction.
    #[must_use]
    pub fn with_reduction(mut self, reduction: Reduction) -> Self {
        self.reduction = reduction;
        self
    }

    /// Sets the class of the blank.
    #[must_use]
    pub fn with_blank(mut self, blank: usize) -> Self {
        self.blank = blank;
        self
    }

    /// The losses of a batch.
    ///
    /// Shapes: logits `[batch, time, classes]`, the blank among the classes; labels `[batch, longest]`,
    /// padded by any class; numbers of time steps and of labels of each example, `[batch]` each. `[batch]`
    /// out, or `[1]` with [`Reduction::Sum`].
    ///
    /// # Errors
    /// The shapes do not match, or the blank is no class. On the CPU only, a number is larger than its
    /// dimension, a label is that of no class or the blank, or there are too few time steps for the labels,
    /// with a blank between equal ones; on a GPU, where the checks would stall the queue, the last gives
    /// infinity, and the others are undefined.
    pub fn forward(
        &self,
        logits: Tensor<3>,
        labels: Tensor<2, Int>,
        time_steps: Tensor<1, Int>,
        label_counts: Tensor<1, Int>,
    ) -> Result<Tensor<1>> {
        self.ensure_fits(&logits, &labels, &time_steps, &label_counts)
            .context("a CTC loss cannot be computed")?;
        let watch = Watch::begin("Ctc", None);
        let logits = watch.input(logits);
        let log_probabilities = log_softmax(logits, 2).swap_dims(0, 1); // [time, batch, classes]
        let losses = ctc_loss(
            log_probabilities,
            labels,
            time_steps,
            label_counts,
            self.blank,
        );
        Ok(watch.output(self.reduction.apply(losses)))
    }

    fn ensure_fits(
        &self,
        logits: &Tensor<3>,
        labels: &Tensor<2, Int>,
        time_steps: &Tensor<1, Int>,
        label_counts: &Tensor<1, Int>,
    ) -> Result<()> {
        let ([batch, time, classes], [labelled, longest]) = (logits.dims(), labels.dims());
        let ([of_time], [of_labels]) = (time_steps.dims(), label_counts.dims());
        ensure!(
            [labelled, of_time, of_labels] == [batch; 3],
            "logits of {batch} examples have labels of {labelled}, time steps of {of_time} and label counts of \
             {of_labels}"
        );
        ensure!(
            self.blank < classes,
            "the blank is class {}, and there are {classes} classes",
            self.blank
        );
        if !is_cpu(&[labels.device()]) {
            return Ok(());
        }
        let [time_steps, label_counts] =
            [time_steps, label_counts].map(|counts| read_data(counts.clone()));
        let labels = numbers(&read_data(labels.clone())?);
        let examples = numbers(&time_steps?).into_iter();
        let examples = examples.zip(numbers(&label_counts?));
        for (example, (steps, count)) in examples.enumerate() {
            ensure!(
                (0..=time as i64).contains(&steps) && (0..=longest as i64).contains(&count),
                "example {example} has {steps} time steps and {count} labels, and the tensors hold {time} and \
                 {longest}"
            );
            let labels = labels[example * longest..]
                .iter()
                .copied()
                .take(count as usize);
            self.ensure_aligns(labels.collect(), steps, classes)
                .with_context(|| format!("example {example}"))?;
        }
        Ok(())
    }

    fn ensure_aligns(&self, labels: Vec<i64>, steps: i64, classes: usize) -> Result<()> {
        let is_label =
            |label: &i64| (0..classes as i64).contains(label) && *label != self.blank as i64;
        if let Some(label) = labels.iter().find(|label| !is_label(label)) {
            bail!(
                "it has the label {label}; labels are from 0 to {}, without the blank {}",
                classes - 1,
                self.blank
            );
        }
        let repeated = labels.windows(2).filter(|pair| pair[0] == pair[1]).count();
        let needed = labels.len() + repeated;
        ensure!(
            steps >= needed as i64,
            "it has {steps} time steps, and its {} labels need {needed}, with a blank between equal ones",
            labels.len()
        );
        Ok(())
    }
}

fn numbers(values: &TensorData) -> Vec<i64> {
    values.iter().collect()
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    /// The error of two examples with three time steps and four classes.
    fn refused(loss: &Ctc, labels: [[i32; 2]; 2], steps: &[i32], counts: [i32; 2]) -> String {
        let device = Device::flex();
        let result = loss.forward(
            Tensor::zeros([2, 3, 4], &device),
            Tensor::from_ints(labels, &device),
            Tensor::from_ints(steps, &device),
            Tensor::from_ints(counts, &device),
        );
        format!("{:#}", result.unwrap_err())
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let ctc = Ctc::new();
        let labels = [[1, 2], [3, 3]];
        assert_eq!(
            refused(&ctc, labels, &[3], [2, 2]),
            "a CTC loss cannot be computed: logits of 2 examples have labels of 2, time steps of 1 and label \
             counts of 2"
        );
        assert_eq!(
            refused(&ctc, labels, &[3, 2], [2, 2]),
            "a CTC loss cannot be computed: example 1: it has 2 time steps, and its 2 labels need 3, with a blank \
             between equal ones"
        );
        let error = refused(&ctc, labels, &[3, 4], [2, 2]);
        assert!(
            error.contains("example 1 has 4 time steps and 2 labels"),
            "{error}"
        );
        let error = refused(&ctc, [[1, 2], [0, 3]], &[3, 3], [2, 2]);
        assert!(
            error.contains("example 1: it has the label 0; labels are from 0 to 3"),
            "{error}"
        );
        let error = refused(&ctc.with_blank(4), labels, &[3, 3], [2, 2]);
        assert!(
            error.contains("the blank is class 4, and there are 4 classes"),
            "{error}"
        );
    }
}
