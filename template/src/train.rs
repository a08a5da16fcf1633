//! Step 6: the training loop.

use anyhow::{Context, Result};
use burn::optim::GradientsParams;

use crate::{
    callbacks::{create_callbacks, is_trainable, prepare_inputs, prepare_loss_inputs},
    checkpoint::{Checkpoints, Progress, interrupt},
    cli::Args,
    data::Shard,
    dataset::{Batch, Datasets, Example},
    distribute::{
        FlatGradients, Gradients, Losses, NonFinite, PerReplica, ReduceOp, hash_parameters,
        replica_context,
    },
    globals::{self, Split},
    loss::{compute_loss, per_example_losses},
    metric::{merged_metrics, reset_metrics},
    report::{
        Report,
        profile::{Phase, span},
    },
    validation::validate,
};

/// One replica's losses and gradients for its share of a batch.
pub fn train_step(batch: Batch) -> Result<(Losses, Gradients)> {
    // TODO(train.step): Compute the losses and the gradients of a batch.
    //   Now: one loss of one model, and its gradients.
    //   Note: several networks, as of a GAN, are fields of the model; add the gradients of each
    //         from its own loss, and give each its optimizer in `Trainable::update`.
    //   Shapes: features [batch, 1, height, width] and labels [batch] in.
    let forward = span(Phase::Forward);
    let batch = prepare_inputs(batch)?;
    let model = globals::model()?;
    let predictions = model.forward(batch.features.clone()); // [batch, classes]
    let (predictions, batch) = prepare_loss_inputs(predictions, batch)?;
    let per_example = per_example_losses(&predictions, &batch)?; // [batch]
    let loss = compute_loss(per_example.clone())?; // [1]
    globals::with_metrics(Split::Train, |metrics| {
        metrics.update(&per_example, &predictions, &batch)
    })??;
    drop(forward);
    let _backward = span(Phase::Backward);
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    Ok((
        Losses::new().with("loss", &loss),
        Gradients::new().with(gradients),
    ))
}

/// Decides what becomes of the gradients, summed over replicas; false skips the update.
pub fn update_gradients(gradients: &mut FlatGradients) -> Result<bool> {
    // After the sum, so that all replicas see the same gradients and decide alike.
    // TODO(train.gradients): Choose what happens to gradients before the update.
    //   Now: an error where one is not finite, else their global norm is clipped to 10.
    //   Shapes: those of the parameters.
    if !gradients.handle_non_finite(NonFinite::Error)? {
        return Ok(false);
    }
    gradients.clip_by_global_norm(10.0);
    Ok(true)
}

/// Sums the gradients over all replicas and updates the parameters of this one. With
/// `--accumulate` they are only kept, until the last batch of an update.
///
/// # Errors
/// Another replica failed, or a gradient is not finite.
pub fn apply_gradients(gradients: Gradients) -> Result<()> {
    let replica = replica_context()?;
    let all_reduce = span(Phase::AllReduce);
    let mut gradients = FlatGradients::new(&globals::model()?, gradients);
    if let Some(earlier) = globals::take_gradients() {
        gradients.accumulate(&earlier);
    }
    if replica.batch().is_some_and(|batch| !batch.completes_update) {
        globals::keep_gradients(gradients);
        return Ok(());
    }
    for bucket in gradients.buckets_mut() {
        replica.all_reduce(ReduceOp::Sum, bucket)?;
    }
    drop(all_reduce);
    let _update = span(Phase::Update);
    let step = globals::step() + 1;
    globals::set_step(step);
    if !update_gradients(&mut gradients)? {
        return Ok(());
    }
    gradients.retain(|parameter| is_trainable(parameter, step));
    globals::update_trainable(|trainable| {
        let trainable = trainable.update(&gradients);
        if cfg!(debug_assertions) {
            replica.check_equal("the parameters", hash_parameters(&trainable.model))?;
        }
        Ok(trainable)
    })?;
    globals::remember_gradients(gradients);
    Ok(())
}

/// Trains all replicas on one global batch, and returns the losses of that batch.
pub fn distributed_train_step(inputs: PerReplica<Shard<Example>>) -> Result<Losses> {
    let strategy = globals::strategy()?;
    let losses = strategy.run(inputs, |shard| {
        let (losses, gradients) = match shard.load()? {
            Some(batch) => train_step(batch)?,
            // Without examples a replica still takes part in the sum, and gets the same update.
            None => (Losses::new(), Gradients::new()),
        };
        apply_gradients(gradients)?;
        Ok(losses)
    })?;
    strategy.reduce(ReduceOp::Sum, losses)
}

/// Trains until `--epochs`, with a validation and a checkpoint after each. `None` means that a
/// signal stopped it before.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn train(args: &Args, datasets: &Datasets, report: &mut Report) -> Result<Option<Progress>> {
    let checkpoints = Checkpoints::new(args);
    let examples = datasets.train.dataset().len();
    let mut progress = start(args, examples, &checkpoints, report)?;
    let mut callbacks = create_callbacks(args);
    interrupt::listen();
    report.introduce(datasets.train.dataset())?;
    while progress.epoch <= args.epochs {
        let epoch = progress.epoch;
        let left = datasets.train.batches_after(progress.examples);
        report.begin(Split::Train, epoch, left);
        let mut batches = datasets
            .train
            .epoch_from(epoch, progress.drawn, progress.examples);
        while let Some(inputs) = report.wait_for(|| batches.next()) {
            let batch = inputs.info();
            let place = || {
                format!(
                    "training stopped at epoch {epoch}, step {}",
                    progress.step + 1
                )
            };
            let losses = distributed_train_step(inputs).with_context(place)?;
            report.step(&losses);
            progress.examples += batch.examples;
            if !batch.completes_update {
                continue;
            }
            progress.step += 1;
            callbacks.after_step(progress, report)?;
            if args.saves_after(progress.step) || interrupt::requested() {
                checkpoints.save(args, progress, examples, Default::default())?;
            }
            if interrupt::requested() {
                return stopped(report, args, progress);
            }
        }
        report.end(progress.step, &merged_metrics(Split::Train)?)?;
        let validation = validate(epoch, progress.step, &datasets.validation, report)?;
        report.parameters(progress.step)?;
        callbacks.after_epoch(progress, report)?;
        reset_metrics(Split::Train)?;
        progress.end_epoch();
        checkpoints.save(args, progress, examples, validation)?;
        if interrupt::requested() && progress.epoch <= args.epochs {
            return stopped(report, args, progress);
        }
    }
    report.conclude(progress)?;
    Ok(Some(progress))
}

/// Starts anew, or with `--resume` where the latest checkpoint stopped, if there is one.
fn start(
    args: &Args,
    examples: usize,
    checkpoints: &Checkpoints,
    report: &mut Report,
) -> Result<Progress> {
    let latest = if args.resume {
        checkpoints.latest()?
    } else {
        None
    };
    reset_metrics(Split::Train)?;
    let Some(checkpoint) = latest else {
        report.start_training()?;
        checkpoints.start()?;
        return Ok(Progress::START);
    };
    checkpoints.prepare()?;
    let progress = checkpoint.restore(args, examples)?;
    report.resume_training(progress)?;
    report.say(&format!("resumed from {}", checkpoint.path.display()));
    Ok(progress)
}

fn stopped(report: &mut Report, args: &Args, progress: Progress) -> Result<Option<Progress>> {
    report.say(&format!(
        "stopped after step {}; go on with the same options and --resume (the checkpoints are in {})",
        progress.step,
        args.output_dir.display()
    ));
    report.conclude(progress)?;
    Ok(None)
}
