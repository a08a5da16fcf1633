use anyhow::{Result, ensure};
use burn::{
    module::{ModuleVisitor, Param},
    optim::GradientsParams,
    tensor::Tensor,
};
use training::{
    globals,
    train::{apply_gradients, distributed_train_step},
};

use crate::support::{EXAMPLES, contract, difference, on_own_thread, set_up_replicas};

/// The losses of each step and the weights after two passes over the examples.
fn trained(
    replicas: usize,
    examples: usize,
    global_batch_size: usize,
) -> Result<(Vec<f32>, Vec<f32>)> {
    on_own_thread(move || {
        let job = set_up_replicas(replicas)?;
        let mut losses = Vec::new();
        for _ in 0..2 {
            for batch in job.batches(examples, global_batch_size)? {
                let step = distributed_train_step(batch)?;
                losses.push(step.iter().map(|(_, loss)| loss as f32).sum());
            }
        }
        Ok((losses, job.parameters()?))
    })
}

fn ensure_same_training(replicas: usize, examples: usize, global_batch_size: usize) -> Result<()> {
    let (losses, weights) = trained(1, examples, global_batch_size)?;
    let (several_losses, several_weights) = trained(replicas, examples, global_batch_size)?;
    let (losses, weights) = (
        difference(&losses, &several_losses),
        difference(&weights, &several_weights),
    );
    ensure!(
        losses < 1e-4 && weights < 1e-4,
        "{replicas} replicas train to other losses (by {losses}) and weights (by {weights}) than \
         one, with {examples} examples in global batches of {global_batch_size}"
    );
    Ok(())
}

#[test]
fn replicas_train_to_the_weights_of_one() {
    // Batches that do not divide by the replicas, and a short last one.
    contract("train.step", || {
        ensure_same_training(2, EXAMPLES, 11)?;
        ensure_same_training(3, EXAMPLES, 16)
    });
}

#[test]
fn more_replicas_than_examples_train_to_the_weights_of_one() {
    contract("train.step", || ensure_same_training(4, 3, 8));
}

#[test]
fn a_gradient_that_is_not_finite_never_reaches_the_parameters() {
    contract("train.gradients", || {
        let job = set_up_replicas(2)?;
        let applied = job.strategy.run_on_all(|replica| {
            let mut filled = Filled {
                value: f32::NAN,
                gradients: GradientsParams::new(),
            };
            // Only one replica has it; all must see it in the sum.
            if replica.rank() == 1 {
                burn::module::Module::visit(&globals::model()?, &mut filled);
            }
            apply_gradients(filled.gradients)
        });
        // An error is one right answer, and going on with finite parameters the other.
        if applied.is_ok() {
            let finite = job.parameters()?.iter().all(|value| value.is_finite());
            ensure!(
                finite,
                "a gradient of NaN went into the parameters without an error"
            );
        }
        Ok(())
    });
}

/// Gradients that hold `value` everywhere.
struct Filled {
    value: f32,
    gradients: GradientsParams,
}

impl ModuleVisitor for Filled {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let gradient = param.val().inner().zeros_like().add_scalar(self.value);
        self.gradients.register(param.id, gradient);
    }
}
