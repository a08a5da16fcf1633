//! Saving: training hands its state over, and a thread copies it in memory and writes its files, beside the
//! training. Only from a GPU is it copied at once, while training waits.
//!
//! After a validation, model and optimizers are mostly those that were saved before it. The checkpoint then
//! takes over their files, and only its manifest is written.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use burn::module::Module;
use indexmap::IndexMap;

use super::{
    Checkpoint, Checkpoints, Files, Manifest, Progress, StoppingState,
    folder::{self, Share, Unusable},
    interrupt, name, name_within_epoch, set_apart,
    trainable::{self, EMA, MODEL, ModelSnapshot, Snapshot},
    writer::{ReplicaStatistics, Saved, Writer},
};
use crate::{
    console::terminal,
    ema::{self, Weights},
    globals::{self, Split},
    metric::{MetricStates, metric_states},
    model::running_statistics,
    options::Options,
    performance::profile::{Phase, span},
    precision,
    replica::PerReplica,
    task::{Metrics, Task},
};

/// The state of a training, of which there is one copy at a time.
struct State<M> {
    trainable: Snapshot<M>,
    /// The averaged weights.
    average: Option<ModelSnapshot<M>>,
    replicas: Vec<ReplicaStatistics>,
}

/// A checkpoint to be written.
struct Save {
    checkpoints: Checkpoints,
    path: PathBuf,
    /// Whether the one before the validation stays, by `--checkpoint-steps`.
    keeps_before: bool,
    /// Without the hashes of the parameters.
    manifest: Manifest,
}

impl Checkpoints {
    /// Saves the state of all replicas, and then removes checkpoints that need not be kept. All workers
    /// take part, and the chief writes with `writer`, beside the training: the checkpoint is there once
    /// [`finish`](Self::finish) returns. A signal does not interrupt the save.
    ///
    /// Training waits for the end of the previous write, and while its parameters are checked to be finite. The
    /// writer copies the state, unless it comes from a GPU.
    /// If the state is that of the last checkpoint, but for the progress and the metrics, it waits for
    /// neither: the new checkpoint gets the files of that one, unless somebody has deleted them since.
    ///
    /// # Errors
    /// A parameter is not finite, or the previous checkpoint could not be written; earlier ones are untouched.
    pub fn begin_save<T: Task>(
        &self,
        writer: &mut Writer,
        options: &Options,
        progress: Progress,
        train_examples: usize,
        validation: IndexMap<String, f64>,
        stopping: Option<StoppingState>,
    ) -> Result<()> {
        let _waiting = span(Phase::Checkpoint);
        let saving = interrupt::saving();
        let path = self.folder.join(name(progress));
        let cannot = format!("cannot save the checkpoint {}", path.display());
        let (metrics, replicas) = replica_states::<T>().with_context(|| cannot.clone())?;
        let strategy = globals::strategy()?;
        let loss_scale = strategy.run_on_first(|_| Ok(precision::loss_scale()))?;
        let mut manifest = Manifest::new(
            progress,
            options.seed,
            train_examples,
            // Hashed beside the training.
            String::new(),
            &metrics,
            validation,
            self.run.clone(),
        );
        manifest.stopping = stopping;
        manifest.loss_scale = loss_scale;
        let save = Save {
            checkpoints: self.clone(),
            path: path.clone(),
            keeps_before: options.saves_after(progress.step),
            manifest,
        };
        let is_chief = strategy.is_chief();
        let guards = (saving, is_chief.then(interrupt::writing));
        // All processes have the same statistics, and decide alike.
        if let Some(saved) = writer.take_saved(progress.step, &replicas)
            && strategy.read_by_chief("the files of a checkpoint", || {
                writer.still_has(&saved, &path)
            })?
        {
            if !is_chief {
                return Ok(());
            }
            return writer.follow(move || {
                let _guards = guards;
                save.follow(&saved.path).context(cannot)
            });
        }
        let averages = options.ema.is_some();
        let saved = Saved {
            path,
            step: progress.step,
            replicas: replicas.clone(),
        };
        let context = cannot.clone();
        let state = move || state_of::<T>(averages, replicas).context(context);
        if is_chief {
            writer.begin(state, move |state| {
                let _guards = guards;
                save.write(state).context(cannot)
            })?;
        } else {
            state()?;
        }
        writer.note_saved(saved);
        Ok(())
    }

    /// Waits until the checkpoint that [`begin_save`](Self::begin_save) began is on disk. All workers take part.
    ///
    /// # Errors
    /// It could not be written, or a worker is lost.
    pub fn finish(writer: &mut Writer) -> Result<()> {
        let _waiting = span(Phase::Checkpoint);
        writer.finish()?;
        // Until the chief has written, no process may leave.
        let strategy = globals::strategy()?;
        let ended = strategy
            .workers()
            .broadcast("the end of a save", Vec::new());
        ended.map(drop)
    }
}

impl<M: Module> State<M> {
    /// The files of a checkpoint, and in `manifest` the fingerprints of the parameters.
    ///
    /// # Errors
    /// A record cannot be serialized.
    fn into_files(self, manifest: &mut Manifest) -> Result<Files> {
        let State {
            trainable,
            average,
            replicas,
        } = self;
        // At once, of all: hashes and files take longer than a step.
        let trainable = trainable.separate();
        let average = average.map(ModelSnapshot::separate);
        let (mut files, parameters) = trainable.into_files()?;
        manifest.parameters = parameters;
        let statistics = |of: fn(ReplicaStatistics) -> Vec<f32>| {
            replicas.iter().cloned().map(of).collect::<Vec<_>>()
        };
        let of_model = statistics(|replica| replica.of_model);
        trainable::insert_statistics(&mut files, MODEL, &of_model);
        if let Some(average) = average {
            manifest.ema = Some(average.insert_into(&mut files, EMA)?);
            let of_average = statistics(|replica| replica.of_average);
            trainable::insert_statistics(&mut files, EMA, &of_average);
        }
        Ok(files)
    }
}

impl Save {
    fn write<M: Module>(mut self, state: State<M>) -> Result<()> {
        let mut files = state.into_files(&mut self.manifest)?;
        self.manifest.insert_into(&mut files)?;
        self.put(|path| folder::write(path, &files))
    }

    /// As [`write_with_files_of`](Self::write_with_files_of). If somebody deletes the other checkpoint meanwhile, its
    /// state is lost, as the training has gone on: a warning says so, and the training needs no end.
    fn follow(self, other: &Path) -> Result<()> {
        let path = self.path.clone();
        let Err(error) = self.write_with_files_of(other) else {
            return Ok(());
        };
        let gone = match folder::ensure_whole(other) {
            // Not once the new checkpoint is there, which replaces the other one.
            Err(gone) if !path.exists() => gone,
            _ => return Err(error),
        };
        terminal::warn(format_args!(
            "warning: {} is not saved: it would have had the files of {}, which was deleted or damaged ({:#}); \
             the training goes on, and writes the next checkpoint whole",
            path.display(),
            other.display(),
            gone.into_error()
        ));
        Ok(())
    }

    /// Writes the checkpoint with the files of another one, whose model and optimizers are the same.
    fn write_with_files_of(mut self, other: &Path) -> Result<()> {
        let of_other = Manifest::peek(other).map_err(Unusable::into_error)?;
        self.manifest.parameters = of_other.parameters;
        self.manifest.ema = of_other.ema;
        let mut manifest = Files::new();
        self.manifest.insert_into(&mut manifest)?;
        let share = match self.keeps_before {
            // Damage to a file must not be in both.
            true => Share::Copies,
            false => Share::Links,
        };
        self.put(|path| folder::write_with_files_of(other, share, path, &manifest))
    }

    /// Puts a checkpoint in its place. One after a validation replaces the one before it, unless
    /// `--checkpoint-steps` asked for that one.
    fn put(self, write: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let (path, checkpoints) = (&self.path, &self.checkpoints);
        match Checkpoint::open(path) {
            // From before a resume, at the same step.
            Ok(saved) if saved.manifest.is_same_state(&self.manifest) => return Ok(()),
            Ok(_) => set_apart(path, "replaced", "it holds another state")?,
            Err(Unusable::Unreadable(error)) => return Err(error),
            Err(Unusable::Damaged(error)) if path.exists() => {
                set_apart(path, "damaged", &format!("{error:#}"))?;
            }
            Err(Unusable::Damaged(_)) => {}
        }
        checkpoints.ensure_folder()?;
        write(path)?;
        let step = self.manifest.progress.step;
        let before_validation = checkpoints.folder.join(name_within_epoch(step));
        if &before_validation != path && !self.keeps_before && before_validation.exists() {
            folder::remove(&before_validation)?;
        }
        checkpoints.prune()
    }
}

/// The states of the training metrics of each replica, and its statistics.
fn replica_states<T: Task>() -> Result<(Vec<MetricStates>, Vec<ReplicaStatistics>)> {
    let strategy = globals::strategy()?;
    let states = strategy.run_on_all(|_| {
        globals::read_gradient_norms()?;
        let metrics =
            globals::with_metrics::<T, _>(Split::Train, |metrics| metric_states(&metrics.all()))??;
        let statistics = ReplicaStatistics {
            revision: globals::revision(),
            of_model: running_statistics(&globals::model::<T>()?),
            of_average: ema::statistics()?,
        };
        Ok((metrics, statistics))
    })?;
    gather(states)
}

/// Without the type of the task, so that its serialization is compiled with the engine.
fn gather(
    states: PerReplica<(MetricStates, ReplicaStatistics)>,
) -> Result<(Vec<MetricStates>, Vec<ReplicaStatistics>)> {
    let states = globals::strategy()?.gather("the states of replicas", states)?;
    Ok(states.into_iter().unzip())
}

/// The state of all replicas; all workers take part.
///
/// # Errors
/// A parameter is not finite, or a replica failed.
fn state_of<T: Task>(averages: bool, replicas: Vec<ReplicaStatistics>) -> Result<State<T::Model>> {
    Ok(State {
        trainable: snapshot::<T>()?,
        average: averages.then(ema_snapshot::<T>).transpose()?,
        replicas,
    })
}

/// The model, with averaged running statistics, and the optimizers, which are equal on all replicas.
fn snapshot<T: Task>() -> Result<Snapshot<T::Model>> {
    let strategy = globals::strategy()?;
    let models =
        strategy.run_on_all(|replica| globals::model_with::<T>(Weights::Model, replica))?;
    let model = models.into_iter().next().context("there is no replica")?;
    strategy.run_on_first(move |_| {
        globals::with_model::<T, _>(trainable::ensure_finite)??;
        globals::read_trainable::<T, _>(|trainable| Snapshot::new(model, trainable))?
    })
}

/// The averaged weights, which are equal on all replicas.
fn ema_snapshot<T: Task>() -> Result<ModelSnapshot<T::Model>> {
    let strategy = globals::strategy()?;
    let models = strategy.run_on_all(|replica| globals::model_with::<T>(Weights::Ema, replica))?;
    let model = models.into_iter().next().context("there is no replica")?;
    strategy.run_on_first(move |_| ModelSnapshot::new(model))
}

#[cfg(all(test, unix))]
mod tests;
