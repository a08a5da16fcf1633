//! Checkpoints: the complete state of a training, to resume it as if it had never stopped.
//!
//! A checkpoint is a folder `checkpoints/step-N`, or `step-N-epoch-M` after an epoch and its validation,
//! with burnpack files, a manifest and checksums. Writes are atomic: the folder gets its name once it is
//! complete, so that a kill at any moment leaves no partial checkpoint.

mod checksums;
mod folder;
pub mod interrupt;
mod manifest;
mod resume;
mod save;
mod stopping;
mod trainable;
mod writer;

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail, ensure};
use burn::module::Module;
use indexmap::IndexMap;

use folder::Unusable;
pub use manifest::{Manifest, Progress};
pub(crate) use stopping::EarlyStopping;
pub use stopping::StoppingState;
use trainable::{EMA, ModelFiles};
pub(crate) use trainable::{MODEL, load_model, model_files};
pub use writer::Writer;

pub use crate::{
    metric::{Best, Goal},
    options::Which,
};

use crate::{
    console::terminal,
    ema::{self, Average, EmaConfig, Weights},
    globals::{self, Split},
    metric::{MetricStates, merge_metric_states},
    options::Options,
    precision,
    run_record::RunRecord,
    task::{Metrics, Task, TrainState},
};

/// The contents of a checkpoint's files, by file name.
pub type Files = IndexMap<String, Vec<u8>>;

/// The checkpoints of an output folder.
#[derive(Clone)]
pub struct Checkpoints {
    folder: PathBuf,
    keep: usize,
    best: Best,
    /// The weights to load, as by `--weights`.
    weights: Option<Weights>,
    /// Run metadata for the manifests.
    run: Option<RunRecord>,
}

/// A checkpoint that was read and verified.
pub struct Checkpoint {
    /// The folder of the checkpoint.
    pub path: PathBuf,
    /// Its progress, metrics and run metadata.
    pub manifest: Manifest,
    files: Arc<Files>,
    weights: Option<Weights>,
}

impl Checkpoints {
    /// The checkpoints of a run, of which the last `--keep` and the best are kept.
    pub fn new<T: Task>(options: &Options) -> Self {
        Checkpoints {
            folder: options.output_dir.join("checkpoints"),
            keep: options.keep,
            best: T::BEST,
            weights: options.weights,
            run: None,
        }
    }

    /// Sets the run metadata for the manifests of later checkpoints.
    pub fn record(&mut self, run: RunRecord) {
        self.run = Some(run);
    }

    /// The run metadata, once recorded.
    pub(crate) fn run(&self) -> Option<&RunRecord> {
        self.run.as_ref()
    }

    /// The folder, if it has checkpoints, intact or not.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn folder_in_use(&self) -> Result<Option<PathBuf>> {
        Ok((!self.steps()?.is_empty()).then(|| self.folder.clone()))
    }

    /// Creates the folder. `alone`, with a lock on the output folder, also removes unfinished checkpoints
    /// of a killed run; without a lock, another run may be writing them.
    ///
    /// # Errors
    /// The folder cannot be created or written to.
    pub fn prepare(&self, alone: bool) -> Result<()> {
        if !globals::strategy()?.is_chief() {
            return Ok(());
        }
        let cannot = || format!("cannot keep checkpoints in {}", self.folder.display());
        fs::create_dir_all(&self.folder).with_context(cannot)?;
        if alone {
            folder::remove_unfinished(&self.folder).with_context(cannot)?;
        }
        // Better to fail now than after an epoch.
        folder::ensure_writable(&self.folder).with_context(cannot)
    }

    /// Creates the folder again, with a warning, if somebody has deleted it since [`prepare`](Self::prepare).
    ///
    /// # Errors
    /// It cannot be created, such as if the output folder is gone, too.
    fn ensure_folder(&self) -> Result<()> {
        if self.folder.is_dir() {
            return Ok(());
        }
        let cannot = || format!("cannot create {} again", self.folder.display());
        fs::create_dir(&self.folder).with_context(cannot)?;
        terminal::warn(format_args!(
            "warning: {} was deleted, with all checkpoints in it: it is created again for the next ones",
            self.folder.display()
        ));
        Ok(())
    }

    /// Renames the checkpoint saved before a validation whose loss is not finite, so that training resumes
    /// from an earlier one.
    ///
    /// # Errors
    /// It cannot be renamed.
    pub fn set_diverged_apart(&self, step: usize) -> Result<()> {
        let path = self.folder.join(name_within_epoch(step));
        match globals::strategy()?.is_chief() && path.exists() {
            true => set_apart(&path, "diverged", "its validation loss is not finite"),
            false => Ok(()),
        }
    }

    /// The latest intact checkpoint; damaged ones are reported and skipped.
    ///
    /// # Errors
    /// There are checkpoints but none is intact, or one cannot be read or has another version.
    pub fn latest(&self) -> Result<Option<Checkpoint>> {
        Ok(self.latest_and_damaged()?.0)
    }

    /// The latest intact checkpoint, and the damaged ones after it.
    fn latest_and_damaged(&self) -> Result<(Option<Checkpoint>, Vec<PathBuf>)> {
        let mut damaged = Vec::new();
        for path in self.steps()?.into_values().rev() {
            match Checkpoint::open(&path) {
                Ok(checkpoint) => return Ok((Some(checkpoint), damaged)),
                Err(Unusable::Damaged(error)) => {
                    terminal::warn(format_args!(
                        "warning: {}: {error:#}; trying the one before it",
                        cannot_use(&path)
                    ));
                    damaged.push(path);
                }
                Err(Unusable::Unreadable(error)) => {
                    return Err(error.context(cannot_use(&path)));
                }
            }
        }
        ensure!(
            damaged.is_empty(),
            "no checkpoint in {} is complete",
            self.folder.display()
        );
        Ok((None, damaged))
    }

    /// As [`latest`](Self::latest), to resume from it: read by the chief and broadcast to all workers, so
    /// that they need no shared file system. Damaged ones after it are renamed, as the training will write
    /// new ones in their place.
    ///
    /// # Errors
    /// As `latest`, a checkpoint cannot be renamed, or a worker is lost.
    pub fn latest_for_all(&self) -> Result<Option<Checkpoint>> {
        from_chief(|| {
            let (latest, damaged) = self.latest_and_damaged()?;
            for path in damaged {
                set_apart(&path, "damaged", "it is damaged")?;
            }
            Ok(latest)
        })
    }

    /// The best checkpoint by the metric [`Task::BEST`].
    ///
    /// # Errors
    /// No checkpoint was saved after a validation, or the best one is damaged.
    pub fn best(&self) -> Result<Checkpoint> {
        match best_of(self.best, &self.manifests()?) {
            Some((_, path)) => Checkpoint::read(path),
            None => bail!(
                "no checkpoint in {} was saved after a validation with {:?}",
                self.folder.display(),
                self.best.metric
            ),
        }
    }

    /// The path of the best checkpoint by the metric [`Task::BEST`], and its value; `None` if none was saved
    /// after a validation.
    ///
    /// # Errors
    /// A manifest cannot be read or has another version.
    pub(crate) fn best_place(&self) -> Result<Option<(PathBuf, f64)>> {
        let manifests = self.manifests()?;
        let best = best_of(self.best, &manifests);
        Ok(best.map(|(value, path)| (path.clone(), value)))
    }

    /// The checkpoints with their manifests, oldest first. Those with damaged manifests are skipped.
    ///
    /// # Errors
    /// A manifest cannot be read or has another version.
    fn manifests(&self) -> Result<Vec<(PathBuf, Manifest)>> {
        let mut manifests = Vec::new();
        for path in self.steps()?.into_values() {
            match Manifest::peek(&path) {
                Ok(manifest) => manifests.push((path, manifest)),
                Err(Unusable::Damaged(_)) => {}
                Err(Unusable::Unreadable(error)) => {
                    return Err(error.context(cannot_use(&path)));
                }
            }
        }
        Ok(manifests)
    }

    fn prune(&self) -> Result<()> {
        let manifests = self.manifests()?;
        let best = best_of(self.best, &manifests).map(|(_, path)| path);
        for (path, _) in manifests.iter().rev().skip(self.keep) {
            if best != Some(path) {
                folder::remove(path)?;
            }
        }
        Ok(())
    }

    /// The folders of checkpoints, intact or not, by step and finished epoch.
    fn steps(&self) -> Result<BTreeMap<(usize, usize), PathBuf>> {
        let mut steps = BTreeMap::new();
        let cannot = || format!("cannot read {}", self.folder.display());
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(steps),
            entries => entries.with_context(cannot)?,
        };
        for entry in entries {
            let path = entry.with_context(cannot)?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            if let Some(place) = name.and_then(place) {
                steps.insert(place, path);
            }
        }
        Ok(steps)
    }
}

/// The first checkpoint with the best value of a metric, and the value; `None` if none has one.
fn best_of(by: Best, manifests: &[(PathBuf, Manifest)]) -> Option<(f64, &PathBuf)> {
    let mut best: Option<(f64, &PathBuf)> = None;
    for (path, manifest) in manifests {
        let Some(value) = manifest.validation.get(by.metric).copied() else {
            continue;
        };
        if best.is_none_or(|(best, _)| by.is_better(value, best)) {
            best = Some((value, path));
        }
    }
    best
}

/// Folder name of a checkpoint.
fn name(progress: Progress) -> String {
    match progress.examples {
        0 if progress.step > 0 => {
            let within_epoch = name_within_epoch(progress.step);
            format!("{within_epoch}-epoch-{}", progress.epoch - 1)
        }
        _ => name_within_epoch(progress.step),
    }
}

/// Folder name of a checkpoint before the validation of its epoch.
fn name_within_epoch(step: usize) -> String {
    format!("step-{step:08}")
}

/// Renames a checkpoint, such as a damaged one, with a warning.
fn set_apart(path: &Path, mark: &str, why: &str) -> Result<()> {
    let kept = folder::mark(path, mark)?;
    terminal::warn(format_args!(
        "warning: {} is kept as {}: {why}",
        path.display(),
        kept.display()
    ));
    Ok(())
}

fn cannot_use(path: &Path) -> String {
    format!("cannot use the checkpoint {}", path.display())
}

/// Parses a folder name into step and finished epoch; the epoch is 0 within one.
fn place(name: &str) -> Option<(usize, usize)> {
    let place = name.strip_prefix("step-")?;
    match place.split_once("-epoch-") {
        Some((step, epoch)) => Some((step.parse().ok()?, epoch.parse().ok()?)),
        None => Some((place.parse().ok()?, 0)),
    }
}

impl Checkpoints {
    /// Reads the checkpoint specified by `which`.
    ///
    /// # Errors
    /// The checkpoint is missing or damaged.
    pub fn find(&self, which: &Which) -> Result<Checkpoint> {
        let found = match which {
            Which::Path(path) => Checkpoint::read(path),
            Which::Best => self.best(),
            Which::Latest => self.latest()?.with_context(|| {
                format!(
                    "there is no checkpoint in {}: train first, or name the folder of a training \
                     with --output-dir",
                    self.folder.display()
                )
            }),
        };
        Ok(found?.with_weights(self.weights))
    }
}

impl Checkpoints {
    /// As [`find`](Self::find), read by the chief and broadcast to all workers.
    ///
    /// # Errors
    /// As `find`, or a worker is lost.
    pub fn find_for_all(&self, which: &Which) -> Result<Checkpoint> {
        let found = from_chief(|| self.find(which).map(Some))?;
        let found = found.context("the chief has no checkpoint")?;
        Ok(found.with_weights(self.weights))
    }
}

/// The checkpoint that `read` finds on the chief, for all workers.
fn from_chief(read: impl FnOnce() -> Result<Option<Checkpoint>>) -> Result<Option<Checkpoint>> {
    let found = globals::strategy()?.read_by_chief("the checkpoint", || {
        let parts = |found: Checkpoint| (found.path, Arc::unwrap_or_clone(found.files));
        Ok(read()?.map(parts))
    })?;
    let checkpoint = |(path, files)| Checkpoint::new(path, files);
    found.map(checkpoint).transpose()
}

impl Checkpoint {
    /// Reads and verifies the checkpoint at `path`.
    ///
    /// # Errors
    /// There is no checkpoint at `path`, or it is damaged.
    pub fn read(path: &Path) -> Result<Self> {
        Self::open(path).map_err(|unusable| unusable.into_error().context(cannot_use(path)))
    }

    fn open(path: &Path) -> Result<Self, Unusable> {
        let files = folder::read(path)?;
        // With a valid checksum, an unreadable manifest is from another version of the program.
        Self::new(path.to_owned(), files).map_err(Unusable::Unreadable)
    }

    fn new(path: PathBuf, files: Files) -> Result<Self> {
        Ok(Checkpoint {
            path,
            manifest: Manifest::from_files(&files)?,
            files: Arc::new(files),
            weights: None,
        })
    }

    /// Chooses the weights to load [default: the averaged ones, if it has any].
    #[must_use]
    pub fn with_weights(self, weights: Option<Weights>) -> Self {
        Checkpoint { weights, ..self }
    }

    /// Whether the checkpoint has averaged weights beside those of the model.
    pub(crate) fn has_averages(&self) -> bool {
        self.files.contains_key(EMA.model)
    }

    /// The weights that are loaded.
    ///
    /// # Errors
    /// The checkpoint has no averaged weights, and they are asked for.
    pub(crate) fn weights(&self) -> Result<Weights> {
        Ok(match self.model_files()? == EMA {
            true => Weights::Ema,
            false => Weights::Model,
        })
    }

    /// The files of the chosen weights.
    fn model_files(&self) -> Result<ModelFiles> {
        match (self.weights, self.has_averages()) {
            (None | Some(Weights::Ema), true) => Ok(EMA),
            (None | Some(Weights::Model), _) => Ok(MODEL),
            (Some(Weights::Ema), false) => bail!(
                "{}: it has no averaged weights ({}), as it was trained without --ema: use --weights model",
                self.cannot(),
                EMA.model
            ),
        }
    }

    /// Loads the parameters of the checkpoint into `model`. Needs no strategy.
    ///
    /// # Errors
    /// The checkpoint does not match the model, or a parameter is not finite.
    pub fn load_model<M: Module>(&self, model: M) -> Result<M> {
        let model = trainable::load_model(model, &self.files, self.model_files()?);
        let model = model.with_context(|| self.cannot())?;
        trainable::ensure_finite(&model).with_context(|| self.cannot())?;
        Ok(model)
    }

    /// The burnpack of the model, with averaged weights if the checkpoint has any.
    ///
    /// # Errors
    /// The checkpoint has none.
    pub(crate) fn model_bytes(&self) -> Result<&[u8]> {
        let of = self.model_files()?;
        trainable::model_bytes(&self.files, of).with_context(|| self.cannot())
    }

    /// Says on the standard error that predictions are of averaged weights, if they are.
    ///
    /// # Errors
    /// The checkpoint has none, and they are asked for.
    pub(crate) fn note_averaged_predictions(&self) -> Result<()> {
        if self.weights()? == Weights::Ema {
            terminal::warn(self.averaged("predicting with"));
        }
        Ok(())
    }

    fn averaged(&self, doing: &str) -> String {
        format!("{doing} the averaged weights of {}", self.path.display())
    }

    /// Loads the model of the checkpoint on all replicas, for a test.
    ///
    /// # Errors
    /// The checkpoint does not match the model, or a parameter is not finite.
    pub fn restore_model<T: Task>(&self) -> Result<()> {
        let (files, of) = (Arc::clone(&self.files), self.model_files()?);
        let strategy = globals::strategy()?;
        if of == EMA && strategy.is_chief() {
            terminal::print(self.averaged("testing"));
        }
        let restored = strategy.run_on_all(move |_| {
            globals::update_model::<T>(|model| {
                let model = trainable::load_model(model, &files, of)?;
                trainable::ensure_finite(&model)?;
                Ok(model)
            })
        });
        restored.map(drop).with_context(|| self.cannot())
    }

    /// Continues the averages of the checkpoint on all replicas, after [`restore`](Self::restore). Returns
    /// false without any, and starts them with the weights of the model.
    ///
    /// # Errors
    /// The checkpoint does not match the model.
    pub fn restore_ema<T: Task>(&self, config: EmaConfig) -> Result<bool> {
        if !self.files.contains_key(EMA.model) {
            ema::start::<T>(config)?;
            return Ok(false);
        }
        let (files, saved) = (Arc::clone(&self.files), self.manifest.replicas);
        let restored = globals::strategy()?.run_on_all(move |replica| {
            let (rank, replicas) = (replica.rank(), replica.num_replicas());
            let model = globals::with_model::<T, _>(ema::separate)?;
            let mut model = trainable::load_model(model, &files, EMA)?;
            // Under another number of replicas each starts from the mean over the old ones.
            if replicas == saved {
                model = trainable::load_statistics(model, &files, EMA, rank, replicas)?;
            }
            ema::start_from(config, Average::of(&model));
            Ok(())
        });
        restored.with_context(|| self.cannot())?;
        Ok(true)
    }

    /// Restores the state of the checkpoint on all replicas, and returns the progress from which training
    /// resumes.
    ///
    /// # Errors
    /// The checkpoint does not match the model, optimizer, seed or dataset.
    pub fn restore<T: Task>(&self, options: &Options, train_examples: usize) -> Result<Progress> {
        self.ensure_same_run(options, train_examples)
            .with_context(|| self.cannot())?;
        let (files, manifest) = (Arc::clone(&self.files), self.manifest.clone());
        let restored = globals::strategy()?.run_on_all(move |replica| {
            let (rank, replicas) = (replica.rank(), replica.num_replicas());
            globals::update_trainable::<T>(|trainable| {
                let trainable = trainable::load(trainable, &files)?;
                trainable::ensure_finite(trainable.model())?;
                // Under another number of replicas each starts from the mean over the old ones.
                if replicas != manifest.replicas {
                    return Ok(trainable);
                }
                let model = trainable.model().clone();
                let model = trainable::load_statistics(model, &files, MODEL, rank, replicas)?;
                Ok(trainable.with_model(model))
            })?;
            globals::set_step(manifest.progress.step);
            precision::restore(manifest.loss_scale);
            let states = states_for(&manifest.metrics(), rank, replicas);
            globals::with_metrics::<T, _>(Split::Train, |metrics| {
                merge_metric_states(&mut metrics.all(), &states)
            })?
        });
        restored.with_context(|| self.cannot())?;
        Ok(self.manifest.progress)
    }

    fn ensure_same_run(&self, options: &Options, train_examples: usize) -> Result<()> {
        let manifest = &self.manifest;
        ensure!(
            manifest.seed == options.seed,
            "it was trained with --seed {}, and this run has --seed {}",
            manifest.seed,
            options.seed
        );
        ensure!(
            manifest.train_examples == train_examples,
            "it was trained on {} examples, and this run has {train_examples}",
            manifest.train_examples
        );
        Ok(())
    }

    fn cannot(&self) -> String {
        cannot_use(&self.path)
    }
}

/// The metric states with which replica `rank` resumes: its own if the number of replicas is the same, else
/// all of them on the first replica, as only their sum matters.
fn states_for(saved: &[MetricStates], rank: usize, replicas: usize) -> Vec<MetricStates> {
    if saved.len() == replicas {
        vec![saved[rank].clone()]
    } else if rank == 0 {
        saved.to_vec()
    } else {
        Vec::new()
    }
}
