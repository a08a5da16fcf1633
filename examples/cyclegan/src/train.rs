//! Step 6: the step of training, on one replica and on all; `epochs.rs` repeats it.

use anyhow::Result;
use burn::optim::GradientsParams;

use crate::{
    callbacks::{is_trainable, prepare_inputs, prepare_loss_inputs},
    data::Shard,
    dataset::{Batch, Example},
    distribute::{
        FlatGradients, Gradients, Losses, NonFinite, PerReplica, ReduceOp, replica_context,
    },
    globals::{self, Split},
    loss::{CycleLosses, cycle_losses},
    model::Model,
    report::profile::{Phase, span},
};

/// One replica's losses and gradients for its share of a batch.
pub fn train_step(batch: Batch) -> Result<(Losses, Gradients)> {
    let forward = span(Phase::Forward);
    let batch = prepare_inputs(batch)?;
    let model = globals::model()?;
    let fake_y = model.forward(batch.features.clone()); // [batch, 3, height, width]
    let (fake_y, batch) = prepare_loss_inputs(fake_y, batch)?;
    let (losses, errors) = cycle_losses(&model, fake_y, &batch)?; // [batch] each
    globals::with_metrics(Split::Train, |metrics| metrics.update(&losses, &errors))?;
    let losses = losses.reduce()?; // [1] each
    drop(forward);
    let _backward = span(Phase::Backward);
    Ok((losses.named(), gradients(&model, &losses)))
}

/// The gradients of each network from its own loss. A generator's loss has gradients of its judge,
/// too, and a step down those would make the discriminator believe it: they are left out.
fn gradients(model: &Model, losses: &CycleLosses) -> Gradients {
    let (g, f) = (&losses.generator_g.total, &losses.generator_f.total);
    let (x, y) = (&losses.discriminator_x, &losses.discriminator_y);
    let g = GradientsParams::from_grads(g.backward(), &model.generator_g);
    let f = GradientsParams::from_grads(f.backward(), &model.generator_f);
    let x = GradientsParams::from_grads(x.backward(), &model.discriminator_x);
    let y = GradientsParams::from_grads(y.backward(), &model.discriminator_y);
    Gradients::new().with(g).with(f).with(x).with(y)
}

/// What happens where gradients, or the loss of a validation, are not finite.
pub const NON_FINITE: NonFinite = NonFinite::Error;

/// Decides what becomes of the gradients, summed over replicas; false skips the update.
pub fn update_gradients(gradients: &mut FlatGradients) -> Result<bool> {
    // After the sum, so that all replicas see the same gradients and decide alike.
    // They are not clipped: a norm over all four networks would let one slow down the others.
    gradients.handle_non_finite(NON_FINITE)
}

/// Sums the gradients over all replicas and updates the parameters. With `--accumulate` they are only
/// kept, until the last batch of an update.
///
/// # Errors
/// Another replica failed, or a gradient is not finite.
pub fn apply_gradients(gradients: Gradients) -> Result<()> {
    let replica = replica_context()?;
    let all_reduce = span(Phase::AllReduce);
    let mut gradients = FlatGradients::new(&globals::model()?, gradients)?;
    if let Some(earlier) = globals::take_gradients() {
        gradients.accumulate(&earlier)?;
    }
    if replica.batch().is_some_and(|batch| !batch.completes_update) {
        globals::keep_gradients(gradients);
        return Ok(());
    }
    if let Some(server) = replica.parameter_server() {
        // It updates its parameters, as below, for all replicas.
        return server.push(replica.rank(), &gradients);
    }
    let gradients = replica.reduce_gradients(gradients)?;
    drop(all_reduce);
    let _update = span(Phase::Update);
    replica.update(gradients, update_parameters)
}

/// Updates the parameters of this replica, or those of the parameter server on its thread. Of several
/// replicas on the CPU the first one does so for all: what updates remember belongs in `Trainable`.
///
/// # Errors
/// A gradient is not finite.
pub fn update_parameters(mut gradients: FlatGradients) -> Result<()> {
    let _update = span(Phase::Update);
    let step = globals::step() + 1;
    globals::set_step(step);
    if !update_gradients(&mut gradients)? {
        return Ok(());
    }
    gradients.retain(|parameter| is_trainable(parameter, step));
    globals::remember_gradients(&gradients)?;
    globals::update_trainable(|trainable| Ok(trainable.update(gradients)))
}

/// Trains one replica on its share of a batch.
fn replica_train_step(shard: Shard<Example>) -> Result<Losses> {
    let (losses, gradients) = match shard.load()? {
        Some(batch) => train_step(batch)?,
        // Without examples a replica still takes part in the sum, and gets the same update.
        None => (Losses::new(), Gradients::new()),
    };
    apply_gradients(gradients)?;
    Ok(losses)
}

/// Trains all replicas on one global batch, and returns the losses of that batch. With a parameter
/// server one replica trains on it, and the losses are those of a batch that was finished meanwhile.
pub fn distributed_train_step(inputs: PerReplica<Shard<Example>>) -> Result<Losses> {
    let strategy = globals::strategy()?;
    if strategy.is_asynchronous() {
        let mut finished = strategy.schedule(inputs, replica_train_step)?;
        return Ok(finished.pop().unwrap_or_default());
    }
    let losses = strategy.run(inputs, replica_train_step)?;
    strategy.reduce(ReduceOp::Sum, losses)
}
