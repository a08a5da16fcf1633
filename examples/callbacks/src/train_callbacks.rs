//! The callbacks of a training, by the names of the framework that this follows.
//!
//! A callback with a body is a standard one. The three without must be defined, and a task that
//! leaves one out does not compile:
//!
//! ```compile_fail,E0046
//! struct Nothing;
//! impl training::train_callbacks::TrainCallbacks for Nothing {}
//! ```
//!
//! Source: bela127, `tf-custom-multi-gpu-training`, `train_callbacks.py` and `eval_callbacks.py`.

use anyhow::Result;
use burn::{
    optim::lr_scheduler::module_lr_scheduler::ModuleLrScheduler,
    tensor::{Device, Int, Tensor},
};
use kiln_engine::{
    Options,
    optim::{FlatGradients, NadamConfig, ScheduledOptimizer},
    report::Report,
    training::CallbackContext,
};

use crate::{
    cli::Args,
    dataset::{Batch, Examples},
    loss::LossObjects,
    model::{Model, Predictions},
    train::NON_FINITE,
};

/// Checkpoints that are kept, unless `--keep` says another number.
pub const MAX_TO_KEEP: &str = "50";

/// Callback after a step, on the thread of `main`.
pub type StepCallback = Box<dyn FnMut(&CallbackContext, &mut Report) -> Result<()>>;

/// The callbacks of a training. `src/digits.rs` has those of this project.
pub trait TrainCallbacks {
    /// Creates the examples for training and validation, and those for the test, not batched.
    ///
    /// # Errors
    /// They cannot be read.
    fn create_dataset(&self, args: &Args) -> Result<(Examples, Examples)>;

    /// Creates the model with initial weights.
    fn create_model(&self, device: &Device) -> Model;

    /// Creates the loss, which has one value per example.
    fn create_loss(&self) -> LossObjects;

    /// Callbacks after every so many updates. Several may share a number; they run in order.
    fn every_steps(&self) -> Vec<(usize, StepCallback)> {
        standard_every_steps()
    }

    /// Callbacks that run once, after the update of that number.
    fn at_step(&self) -> Vec<(usize, StepCallback)> {
        Vec::new()
    }

    /// Chooses which training examples make a batch: batches are cut from the dataset that this
    /// returns. It is shuffled before, unless it has an order of its own for each pass.
    ///
    /// # Errors
    /// The batches cannot be made of these examples.
    fn make_batches(&self, dataset: Examples, _seed: u64) -> Result<Examples> {
        Ok(dataset)
    }

    /// Creates the optimizer: Nadam as Keras 3 has it, with an epsilon of 1e-3. The learning rate is a
    /// constant, unless `--schedule` or `--warm-up` says otherwise.
    fn create_opt(&self, learning_rate: ModuleLrScheduler) -> ScheduledOptimizer {
        // The momentum warms up by 0.96^step. Before Keras 3 it was 0.96^(0.004 step).
        let nadam = NadamConfig::new()
            .with_epsilon(1e-3)
            .with_momentum_decay(1.0);
        ScheduledOptimizer::new(nadam.init(), learning_rate)
    }

    /// Says where training saves checkpoints, when, and how many are kept: the options about them, as they
    /// were given. One holds all that training needs to go on.
    fn create_ckpt(&self, options: &Options) -> Options {
        options.clone()
    }

    /// Takes the input of the model out of a batch: the features `[batch, 1, height, width]`.
    ///
    /// # Errors
    /// The batch has no such input.
    fn input_pre(&self, batch: &Batch) -> Result<Tensor<4>> {
        Ok(batch.features.clone())
    }

    /// Takes the input of the loss: the output `[batch, classes]` and the labels `[batch]`.
    ///
    /// # Errors
    /// Output and batch do not fit together.
    fn loss_pre(
        &self,
        output: Predictions,
        batch: &Batch,
    ) -> Result<(Predictions, Tensor<1, Int>)> {
        Ok((output, batch.labels.clone()))
    }

    /// Gives the terms of the loss: that of each example `[batch]`, and one `[1]` that does not
    /// depend on examples, such as the regularisation terms of the model.
    ///
    /// # Errors
    /// A term cannot be computed.
    fn grad_pre(&self, loss: Tensor<1>, model: &Model) -> Result<(Tensor<1>, Tensor<1>)> {
        let none = Tensor::zeros([1], &loss.device());
        let extra_loss = model
            .losses()
            .into_iter()
            .fold(none, |sum, term| sum.to_device(&term.device()) + term);
        Ok((loss, extra_loss))
    }

    /// Whether update number `step` changes a parameter, such as `conv1.weight`. It stands for the
    /// list of variables that `grad_pre` returns in the original.
    fn trainable_vars(&self, _parameter: &str, _step: usize) -> bool {
        true
    }

    /// Prepares gradients, summed over all replicas, for the update: what is not finite becomes 0,
    /// and the global norm is clipped to 10. Returns those for display, which are not clipped.
    ///
    /// # Errors
    /// The training must stop.
    fn update_pre(&self, gradients: &mut FlatGradients) -> Result<FlatGradients> {
        gradients.handle_non_finite(NON_FINITE)?;
        let display_gradients = gradients.clone();
        gradients.clip_by_global_norm(10.0);
        Ok(display_gradients)
    }

    /// As `grad_pre`, for validation and test.
    ///
    /// # Errors
    /// As `grad_pre`.
    fn eval_pre(&self, loss: Tensor<1>, model: &Model) -> Result<(Tensor<1>, Tensor<1>)> {
        self.grad_pre(loss, model)
    }
}

/// The step after every step, and the loss after every tenth.
pub fn standard_every_steps() -> Vec<(usize, StepCallback)> {
    vec![(1, Box::new(print_step)), (10, Box::new(print_loss))]
}

/// Prints the number of the step.
///
/// # Errors
/// None.
pub fn print_step(context: &CallbackContext, report: &mut Report) -> Result<()> {
    report.say(&format!("Step: {}", context.progress.step));
    Ok(())
}

/// Prints the loss of the step over all replicas, and draws it in TensorBoard.
///
/// # Errors
/// The event file cannot be written.
pub fn print_loss(context: &CallbackContext, report: &mut Report) -> Result<()> {
    for (name, loss) in context.losses.iter() {
        report.say(&format!("Loss: {loss}"));
        report.scalar(context.progress.step, &format!("callbacks/{name}"), loss)?;
    }
    Ok(())
}
