use anyhow::{Context, ensure};
use training::{globals, loss::per_example_losses, train::distributed_train_step};

use crate::support::{amounts, contract, difference, on_own_thread, set_up_replicas, values};

#[test]
fn there_is_one_finite_loss_an_example() {
    contract("loss.objects", || {
        let job = set_up_replicas(1)?;
        let losses_of = |examples| {
            job.with_batch(examples, |batch| {
                let predictions = globals::model()?.forward(&batch);
                Ok(values(&per_example_losses(&predictions, &batch)?))
            })
        };
        let examples = amounts().few;
        let (few, many) = (losses_of(2)?, losses_of(examples)?);
        ensure!(
            few.len() == 2 && many.len() == examples,
            "2 examples have {} losses and {examples} examples {}: leave the sum to `compute_loss`",
            few.len(),
            many.len()
        );
        ensure!(
            many.iter().all(|loss| loss.is_finite()),
            "losses are not finite: {many:?}"
        );
        ensure!(
            difference(&few, &many[..2]) < 3e-5,
            "the loss of an example depends on the others in its batch: {few:?} and {many:?}"
        );
        Ok(())
    });
}

#[test]
fn parts_of_replicas_sum_to_the_loss_of_the_global_batch() {
    contract("loss.compute", || {
        // The last batch is short, and uneven for three replicas.
        let losses = |replicas| {
            on_own_thread(move || {
                let job = set_up_replicas(replicas)?;
                let last = job
                    .batches(amounts().examples, 12)?
                    .pop()
                    .context("no batch")?;
                let losses = distributed_train_step(last)?;
                Ok(losses
                    .iter()
                    .map(|(_, loss)| loss as f32)
                    .collect::<Vec<_>>())
            })
        };
        let one = losses(1)?;
        ensure!(
            one.iter().any(|loss| *loss != 0.0),
            "the loss of a batch is zero"
        );
        for replicas in [2, 3] {
            let several = losses(replicas)?;
            ensure!(
                difference(&one, &several) < 3e-5,
                "the losses of a batch are {one:?} on one replica and {several:?} on {replicas}: \
                 divide by the examples of the global batch, not of the replica, and scale what \
                 does not depend on examples with `scale_regularization_loss`"
            );
        }
        Ok(())
    });
}
