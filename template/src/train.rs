//! Step 6: the training loop.

use anyhow::{Context, Result};
use burn::{optim::GradientsParams, tensor::Tensor};
use indexmap::IndexMap;

use crate::{
    callbacks::{create_callbacks, is_trainable, prepare_inputs, prepare_loss_inputs},
    checkpoint::{Checkpoints, Progress, interrupt},
    cli::Args,
    data::Shard,
    dataset::{Batch, Datasets, Example},
    distribute::{
        Callbacks, FlatGradients, Gradients, Losses, NonFinite, PerReplica, Pipeline, ReduceOp,
        hash_parameters, replica_context,
    },
    globals::{self, Split},
    loss::{compute_loss, per_example_losses},
    metric::{merged_metrics, reset_metrics},
    model::STAGES,
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
    let loss = train_loss(predictions, batch)?; // [1]
    drop(forward);
    let _backward = span(Phase::Backward);
    let gradients = GradientsParams::from_grads(loss.backward(), &model);
    Ok((
        Losses::new().with("loss", &loss),
        Gradients::new().with(gradients),
    ))
}

/// The loss of predictions `[batch, classes]`, shape `[1]`; notes the metrics.
fn train_loss(predictions: Tensor<2>, batch: Batch) -> Result<Tensor<1>> {
    let (predictions, batch) = prepare_loss_inputs(predictions, batch)?;
    let per_example = per_example_losses(&predictions, &batch)?; // [batch]
    globals::with_metrics(Split::Train, |metrics| {
        metrics.update(&per_example, &predictions, &batch)
    })??;
    compute_loss(per_example)
}

/// As `train_step`, with a model in stages, through which parts of the batch follow each other.
fn pipelined_train_step(pipeline: &Pipeline, parts: Vec<Batch>) -> Result<(Losses, Gradients)> {
    let _forward_and_backward = span(Phase::Forward);
    let parts = parts.into_iter().map(prepare_inputs);
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let features = parts.iter().map(|part| part.features.clone().into());
    let mut step = pipeline.start(&globals::model()?, STAGES, features.collect())?;
    let mut losses = Vec::new();
    for part in parts {
        let predictions = step.predict()?.tensor(); // [part, classes]
        let loss = train_loss(predictions, part)?; // [1]
        step.backward(&loss)?;
        losses.push(Losses::new().with("loss", &loss));
    }
    Ok((Losses::sum(losses), step.gradients()?))
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
    let mut gradients = FlatGradients::new(&globals::model()?, gradients)?;
    if let Some(earlier) = globals::take_gradients() {
        gradients.accumulate(&earlier);
    }
    if replica.batch().is_some_and(|batch| !batch.completes_update) {
        globals::keep_gradients(gradients);
        return Ok(());
    }
    if let Some(server) = replica.parameter_server() {
        // It updates its parameters, as below, for all replicas.
        return server.push(replica.rank(), &gradients);
    }
    replica.all_reduce_buckets(ReduceOp::Sum, gradients.buckets_mut())?;
    drop(all_reduce);
    update_parameters(gradients)
}

/// Updates the parameters of this replica, or those of the parameter server on its thread.
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
    globals::update_trainable(|trainable| {
        let trainable = trainable.update(&gradients);
        if cfg!(debug_assertions) {
            replica_context()?.check_equal("the parameters", hash_parameters(&trainable.model))?;
        }
        Ok(trainable)
    })?;
    globals::remember_gradients(gradients);
    Ok(())
}

/// Trains one replica on its share of a batch.
fn replica_train_step(shard: Shard<Example>) -> Result<Losses> {
    let replica = replica_context()?;
    let (losses, gradients) = match replica.pipeline() {
        Some(pipeline) if !shard.is_empty() => {
            pipelined_train_step(pipeline, shard.load_parts(pipeline.micro_batches())?)?
        }
        _ => match shard.load()? {
            Some(batch) => train_step(batch)?,
            // Without examples a replica still takes part in the sum, and gets the same update.
            None => (Losses::new(), Gradients::new()),
        },
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

/// Trains until `--epochs`, with a validation and a checkpoint after each. `None` means that a
/// signal stopped it before.
///
/// # Errors
/// A replica failed, or a file cannot be written.
pub fn train(args: &Args, datasets: &Datasets, report: &mut Report) -> Result<Option<Progress>> {
    let mut training = Training::start(args, datasets, report)?;
    interrupt::listen();
    training.report.introduce(datasets.train.dataset())?;
    let mut goes_on = true;
    while goes_on && training.progress.epoch <= args.epochs {
        goes_on = training.epoch()?;
    }
    training.report.conclude(training.progress)?;
    Ok(goes_on.then_some(training.progress))
}

/// Makes sure that all replicas, those of other processes included, begin with the same parameters.
fn ensure_equal_parameters() -> Result<()> {
    let equal = globals::strategy()?.run_on_all(|replica| {
        let hash = globals::with_trainable(|trainable| hash_parameters(&trainable.model))?;
        replica.check_equal("the initial parameters", hash)
    });
    equal.map(drop)
}

/// A training on its way.
struct Training<'a> {
    args: &'a Args,
    datasets: &'a Datasets,
    report: &'a mut Report,
    checkpoints: Checkpoints,
    callbacks: Callbacks<Report>,
    progress: Progress,
}

impl<'a> Training<'a> {
    /// Starts anew, or with `--resume` where the latest checkpoint stopped, if there is one.
    fn start(args: &'a Args, datasets: &'a Datasets, report: &'a mut Report) -> Result<Self> {
        let checkpoints = Checkpoints::new(args);
        let latest = match args.resume {
            true => checkpoints.latest_for_all()?,
            false => None,
        };
        reset_metrics(Split::Train)?;
        let progress = match latest {
            None => {
                report.start_training()?;
                checkpoints.start()?;
                Progress::START
            }
            Some(checkpoint) => {
                checkpoints.prepare()?;
                let progress = checkpoint.restore(args, datasets.train.dataset().len())?;
                report.resume_training(progress)?;
                report.say(&format!("resumed from {}", checkpoint.path.display()));
                progress
            }
        };
        ensure_equal_parameters()?;
        Ok(Training {
            args,
            datasets,
            report,
            checkpoints,
            callbacks: create_callbacks(args),
            progress,
        })
    }

    /// Trains and validates an epoch, or what is left of it; false where a signal stopped it.
    fn epoch(&mut self) -> Result<bool> {
        let Progress {
            epoch,
            examples,
            drawn,
            ..
        } = self.progress;
        let data = &self.datasets.train;
        let left = data.batches_after(examples);
        self.report.begin(Split::Train, epoch, left);
        let mut batches = data.epoch_from(epoch, drawn, examples);
        while let Some(inputs) = self.report.wait_for(|| batches.next()) {
            if !self.step(inputs)? {
                return Ok(false);
            }
        }
        let step = self.progress.step;
        self.report.end(step, &merged_metrics(Split::Train)?)?;
        let validation = validate(epoch, step, &self.datasets.validation, self.report)?;
        self.report.parameters(step)?;
        self.callbacks.after_epoch(self.progress, self.report)?;
        reset_metrics(Split::Train)?;
        self.progress.end_epoch();
        self.save(validation)?;
        let stop = globals::strategy()?.any_stops(interrupt::requested())?;
        Ok(self.progress.epoch > self.args.epochs || !self.stops(stop))
    }

    /// Trains on a batch; false where a signal asked to stop after it.
    fn step(&mut self, inputs: PerReplica<Shard<Example>>) -> Result<bool> {
        let (batch, epoch, step) = (inputs.info(), self.progress.epoch, self.progress.step + 1);
        let strategy = globals::strategy()?;
        strategy.workers().note_step(step);
        let losses = distributed_train_step(inputs)
            .with_context(|| format!("training stopped at epoch {epoch}, step {step}"))?;
        self.report.step(&losses);
        self.progress.examples += batch.examples;
        if !batch.completes_update {
            return Ok(true);
        }
        self.progress.step = step;
        self.callbacks.after_step(self.progress, self.report)?;
        // Looked at once: a signal can come at any time, and must not stop what was not saved. It
        // may come to one worker only, and all stop after the same step.
        let stop = strategy.any_stops(interrupt::requested())?;
        if stop || self.args.saves_after(step) {
            self.save(IndexMap::new())?;
        }
        Ok(!self.stops(stop))
    }

    fn save(&self, validation: IndexMap<String, f64>) -> Result<()> {
        let examples = self.datasets.train.dataset().len();
        self.checkpoints
            .save(self.args, self.progress, examples, validation)?;
        Ok(())
    }

    /// Tells how to go on after a stop.
    fn stops(&self, stop: bool) -> bool {
        if stop {
            self.report.say(&format!(
                "stopped after step {}; go on with the same options and --resume (the checkpoints \
                 are in {})",
                self.progress.step,
                self.args.output_dir.display()
            ));
        }
        stop
    }
}
