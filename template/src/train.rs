//! Step 6: the training loop.

use anyhow::Result;
use burn::optim::GradientsParams;

use crate::{
    checkpoint,
    cli::Args,
    dataset::{Batch, Datasets, Example},
    distribute::{
        FlatGradients, Losses, NonFinite, PerReplica, ReduceOp, Shard, hash_parameters,
        replica_context,
    },
    globals::{self, Split},
    loss::{compute_loss, per_example_losses},
    metric::{merged_metrics, reset_metrics},
    report::Report,
    validation::validate,
};

/// One replica's losses and gradients for its share of a batch.
pub fn train_step(batch: Batch) -> Result<(Losses, GradientsParams)> {
    // TODO(train.step): Compute the losses and the gradients of a batch.
    //   Now: one loss of one model, and its gradients.
    //   Shapes: features [batch, 1, height, width] and labels [batch] in.
    let model = globals::model()?;
    let predictions = model.forward(batch.features.clone()); // [batch, classes]
    let per_example = per_example_losses(&predictions, &batch)?; // [batch]
    let loss = compute_loss(per_example.clone())?; // [1]
    globals::with_metrics(Split::Train, |metrics| {
        metrics.update(&per_example, &predictions, &batch);
    })?;
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    Ok((Losses::new().with("loss", &loss), gradients))
}

/// Sums the gradients over all replicas and updates the parameters of this one.
///
/// # Errors
/// Another replica failed, or a gradient is not finite.
pub fn apply_gradients(gradients: GradientsParams) -> Result<()> {
    let replica = replica_context()?;
    globals::update_trainable(|trainable| {
        let mut gradients = FlatGradients::new(&trainable.model, gradients);
        for bucket in gradients.buckets_mut() {
            replica.all_reduce(ReduceOp::Sum, bucket)?;
        }
        // After the sum, so that all replicas see the same gradients and decide alike.
        // TODO(train.gradients): Choose what happens to gradients before the update.
        //   Now: an error where one is not finite, else their global norm is clipped to 10.
        //   Shapes: those of the parameters.
        if !gradients.handle_non_finite(NonFinite::Error)? {
            return Ok(trainable);
        }
        gradients.clip_by_global_norm(10.0);
        let gradients = gradients.into_params(&trainable.model);
        let trainable = trainable.update(gradients);
        if cfg!(debug_assertions) {
            replica.check_equal("the parameters", hash_parameters(&trainable.model))?;
        }
        Ok(trainable)
    })
}

/// Trains all replicas on one global batch, and returns the losses of that batch.
pub fn distributed_train_step(inputs: PerReplica<Shard<Example>>) -> Result<Losses> {
    let strategy = globals::strategy()?;
    let losses = strategy.run(inputs, |shard| {
        let (losses, gradients) = match shard.load()? {
            Some(batch) => train_step(batch)?,
            // Without examples a replica still takes part in the sum, and gets the same update.
            None => (Losses::new(), GradientsParams::new()),
        };
        apply_gradients(gradients)?;
        Ok(losses)
    })?;
    strategy.reduce(ReduceOp::Sum, losses)
}

/// Trains for `--epochs`, validates after each, and saves the weights.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn train(args: &Args, datasets: &Datasets, report: &mut Report) -> Result<()> {
    report.start_training()?;
    let steps = datasets.train.steps_per_epoch();
    for epoch in 1..=args.epochs {
        reset_metrics(Split::Train)?;
        report.begin(Split::Train, epoch, steps);
        for inputs in datasets.train.epoch(epoch) {
            let losses = distributed_train_step(inputs)?;
            report.step(&losses);
        }
        report.end(epoch * steps, &merged_metrics(Split::Train)?)?;
        validate(epoch, epoch * steps, &datasets.validation, report)?;
    }
    let path = args.weights();
    globals::strategy()?.run_on_first(move |_| checkpoint::save(globals::model()?, &path))?;
    report.say(&format!("weights saved in {}", args.weights().display()));
    Ok(())
}
