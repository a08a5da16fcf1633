//! Checkpoints: all that training needs to go on as if it had never stopped.
//!
//! A checkpoint is a folder `checkpoints/step-N`, or `step-N-epoch-M` after an epoch and its
//! validation, with burnpack files, a manifest and their hashes. It gets its name when it is whole,
//! so the latest one is found by looking, and a kill at any moment does no harm.

mod folder;
pub mod interrupt;
pub mod lock;
mod manifest;
mod trainable;

use std::{
    collections::BTreeMap,
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, bail, ensure};
use indexmap::IndexMap;

use folder::Unusable;
pub use folder::{Files, set_aside};
pub use manifest::{Manifest, Progress};

use crate::{
    cli::Args,
    distribute::{MetricStates, merge_metric_states, metric_states, running_statistics},
    globals::{self, Split},
    metric::BEST,
    model::Model,
    report::terminal,
    run_record::RunRecord,
};

/// By which metric of the validation a checkpoint is the best.
#[derive(Clone, Copy, Debug)]
pub struct Best {
    pub metric: &'static str,
    pub goal: Goal,
}

/// Which of two values is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    Highest,
    Lowest,
}

impl Best {
    fn is_better(self, value: f64, than: f64) -> bool {
        match self.goal {
            Goal::Highest => value > than,
            Goal::Lowest => value < than,
        }
    }
}

/// The checkpoints of an output folder.
pub struct Checkpoints {
    folder: PathBuf,
    keep: usize,
    /// What the training is run with, for manifests.
    run: Option<RunRecord>,
}

/// A checkpoint that was read and found whole.
pub struct Checkpoint {
    pub path: PathBuf,
    pub manifest: Manifest,
    files: Arc<Files>,
}

impl Checkpoints {
    /// The checkpoints of a run, of which the last `--keep` and the best stay.
    pub fn new(args: &Args) -> Self {
        Checkpoints {
            folder: args.output_dir.join("checkpoints"),
            keep: args.keep,
            run: None,
        }
    }

    /// Has all checkpoints say what the training is run with.
    pub fn record(&mut self, run: RunRecord) {
        self.run = Some(run);
    }

    /// The folder, if it has checkpoints, whole or not.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn folder_in_use(&self) -> Result<Option<PathBuf>> {
        Ok((!self.steps()?.is_empty()).then(|| self.folder.clone()))
    }

    /// Makes the folder. `alone`, with a lock on the output folder, also removes what a kill left
    /// unfinished in it; otherwise it may be what another run is writing.
    ///
    /// # Errors
    /// The folder cannot be made or written in.
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

    /// Saves the state of all replicas, and then removes checkpoints that need not be kept. All
    /// workers bring theirs, and the chief writes. A signal waits until the save has ended.
    ///
    /// # Errors
    /// A parameter is not finite, or the checkpoint cannot be written; those before it are untouched.
    pub fn save(
        &self,
        args: &Args,
        progress: Progress,
        train_examples: usize,
        validation: IndexMap<String, f64>,
    ) -> Result<PathBuf> {
        let _saving = interrupt::saving();
        let path = self.folder.join(name(progress));
        let cannot = || format!("cannot save the checkpoint {}", path.display());
        let (metrics, statistics) = replica_states().with_context(cannot)?;
        let (mut files, parameters) = trainable_files().with_context(cannot)?;
        let strategy = globals::strategy()?;
        if strategy.is_chief() {
            trainable::insert_statistics(&mut files, &statistics);
            let seed = args.seed;
            let manifest = Manifest::new(
                progress,
                seed,
                train_examples,
                parameters,
                &metrics,
                validation,
                self.run.clone(),
            );
            self.write(args, &path, files, &manifest)
                .with_context(cannot)?;
        }
        // Until the chief has written, no process may leave.
        strategy
            .workers()
            .broadcast("the end of a save", Vec::new())?;
        Ok(path)
    }

    /// Writes a checkpoint. One after a validation takes the place of the one before it, unless
    /// `--checkpoint-steps` asked for that.
    fn write(&self, args: &Args, path: &Path, mut files: Files, manifest: &Manifest) -> Result<()> {
        let step = manifest.progress.step;
        let _writing = interrupt::writing();
        match Checkpoint::open(path) {
            // From before a resume, at the same step.
            Ok(saved) if saved.manifest.is_same_state(manifest) => return Ok(()),
            Ok(_) => set_apart(path, "replaced", "it holds another state")?,
            Err(Unusable::Unreadable(error)) => return Err(error),
            Err(Unusable::Damaged(error)) if path.exists() => {
                set_apart(path, "damaged", &format!("{error:#}"))?;
            }
            Err(Unusable::Damaged(_)) => {}
        }
        manifest.insert_into(&mut files)?;
        folder::write(path, &files)?;
        let before_validation = self.folder.join(name_within_epoch(step));
        if before_validation != path && !args.saves_after(step) && before_validation.exists() {
            folder::remove(&before_validation)?;
        }
        self.prune()
    }

    /// Renames the checkpoint before a validation whose loss is not finite, so that a resumed training goes
    /// on from the one before it.
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

    /// The latest checkpoint that is whole; damaged ones are reported and skipped.
    ///
    /// # Errors
    /// There are checkpoints, and none is whole; or one cannot be read, or is of another version.
    pub fn latest(&self) -> Result<Option<Checkpoint>> {
        Ok(self.latest_and_damaged()?.0)
    }

    /// The latest checkpoint that is whole, and the damaged ones that are later.
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
            "no checkpoint in {} is whole",
            self.folder.display()
        );
        Ok((None, damaged))
    }

    /// As [`latest`](Self::latest), to go on from it: looked for and read by the chief only, and then
    /// sent to all workers, who have the same one and need no folder in common. Later ones that are
    /// damaged are renamed, as the training will write others in their place.
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

    /// The best checkpoint by the metric that `metric::BEST` names.
    ///
    /// # Errors
    /// None was saved after a validation, or it is damaged.
    pub fn best(&self) -> Result<Checkpoint> {
        match best_of(&self.manifests()?) {
            Some(path) => Checkpoint::read(path),
            None => bail!(
                "no checkpoint in {} was saved after a validation with {:?}",
                self.folder.display(),
                BEST.metric
            ),
        }
    }

    /// The checkpoints with their manifests, the oldest first. A damaged one is no candidate for anything.
    ///
    /// # Errors
    /// One cannot be read, or is of another version.
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
        let best = best_of(&manifests);
        for (path, _) in manifests.iter().rev().skip(self.keep) {
            if best != Some(path) {
                folder::remove(path)?;
            }
        }
        Ok(())
    }

    /// The folders of checkpoints, whole or not, by step and finished epoch.
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

/// The first of the checkpoints with the best value of `metric::BEST`, if one has any.
fn best_of(manifests: &[(PathBuf, Manifest)]) -> Option<&PathBuf> {
    let mut best: Option<(f64, &PathBuf)> = None;
    for (path, manifest) in manifests {
        let Some(value) = manifest.validation.get(BEST.metric).copied() else {
            continue;
        };
        if best.is_none_or(|(best, _)| BEST.is_better(value, best)) {
            best = Some((value, path));
        }
    }
    best.map(|(_, path)| path)
}

/// The name of the folder for a checkpoint.
fn name(progress: Progress) -> String {
    match progress.examples {
        0 if progress.step > 0 => {
            let within_epoch = name_within_epoch(progress.step);
            format!("{within_epoch}-epoch-{}", progress.epoch - 1)
        }
        _ => name_within_epoch(progress.step),
    }
}

/// The name of a checkpoint whose epoch has no validation yet.
fn name_within_epoch(step: usize) -> String {
    format!("step-{step:08}")
}

/// Renames a checkpoint that another one takes the place of, and says so.
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

/// Step and finished epoch, 0 within one, that the name of a folder says.
fn place(name: &str) -> Option<(usize, usize)> {
    let place = name.strip_prefix("step-")?;
    match place.split_once("-epoch-") {
        Some((step, epoch)) => Some((step.parse().ok()?, epoch.parse().ok()?)),
        None => Some((place.parse().ok()?, 0)),
    }
}

/// What `--checkpoint` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    Latest,
    Best,
    Path(PathBuf),
}

impl From<&str> for Which {
    fn from(text: &str) -> Self {
        match text {
            "latest" => Which::Latest,
            "best" => Which::Best,
            path => Which::Path(path.into()),
        }
    }
}

impl Checkpoints {
    /// Reads the checkpoint that `which` names.
    ///
    /// # Errors
    /// There is none, or it is damaged.
    pub fn find(&self, which: &Which) -> Result<Checkpoint> {
        match which {
            Which::Path(path) => Checkpoint::read(path),
            Which::Best => self.best(),
            Which::Latest => self.latest()?.with_context(|| {
                format!(
                    "there is no checkpoint in {}: train first, or name the folder of a training \
                     with --output-dir",
                    self.folder.display()
                )
            }),
        }
    }
}

impl Checkpoints {
    /// As [`find`](Self::find), read by the chief only, and then sent to all workers.
    ///
    /// # Errors
    /// As `find`, or a worker is lost.
    pub fn find_for_all(&self, which: &Which) -> Result<Checkpoint> {
        let found = from_chief(|| self.find(which).map(Some))?;
        found.context("the chief has no checkpoint")
    }
}

/// Gives all workers what `read` finds on the chief.
fn from_chief(read: impl FnOnce() -> Result<Option<Checkpoint>>) -> Result<Option<Checkpoint>> {
    let strategy = globals::strategy()?;
    if strategy.workers().count() == 1 {
        return read();
    }
    let mut bytes = Vec::new();
    if strategy.is_chief() {
        let found = read()?.map(|found| (found.path.clone(), Arc::clone(&found.files)));
        let found = found.as_ref().map(|(path, files)| (path, &**files));
        ciborium::into_writer(&found, &mut bytes)?;
    }
    let bytes = strategy.workers().broadcast("the checkpoint", bytes)?;
    let found: Option<(PathBuf, Files)> = ciborium::from_reader(&bytes[..])?;
    let checkpoint = |(path, files)| {
        let manifest = Manifest::from_files(&files)?;
        Ok(Checkpoint {
            path,
            manifest,
            files: Arc::new(files),
        })
    };
    found.map(checkpoint).transpose()
}

impl Checkpoint {
    /// Reads the checkpoint at `path` and makes sure that it is whole.
    ///
    /// # Errors
    /// It is no checkpoint, or damaged.
    pub fn read(path: &Path) -> Result<Self> {
        Self::open(path).map_err(|unusable| unusable.into_error().context(cannot_use(path)))
    }

    fn open(path: &Path) -> Result<Self, Unusable> {
        let files = folder::read(path)?;
        // With the right hash, what a program cannot read is of another version of it.
        let manifest = Manifest::from_files(&files).map_err(Unusable::Unreadable)?;
        Ok(Checkpoint {
            path: path.to_owned(),
            manifest,
            files: Arc::new(files),
        })
    }

    /// Replaces the parameters of `model` by those of the checkpoint. No strategy is needed.
    ///
    /// # Errors
    /// They are of another model.
    pub fn load_model(&self, model: Model) -> Result<Model> {
        let model = trainable::load_model(model, &self.files);
        let model = model.with_context(|| self.cannot())?;
        trainable::ensure_finite(&model).with_context(|| self.cannot())?;
        Ok(model)
    }

    /// Gives all replicas the model of the checkpoint, for a test.
    ///
    /// # Errors
    /// It is of another model.
    pub fn restore_model(&self) -> Result<()> {
        let files = Arc::clone(&self.files);
        let restored = globals::strategy()?.run_on_all(move |_| {
            globals::update_trainable(|mut trainable| {
                trainable.model = trainable::load_model(trainable.model, &files)?;
                trainable::ensure_finite(&trainable.model)?;
                Ok(trainable)
            })
        });
        restored.map(drop).with_context(|| self.cannot())
    }

    /// Gives all replicas the state of the checkpoint, and tells where training goes on.
    ///
    /// # Errors
    /// It is of another model, optimizer, seed or dataset.
    pub fn restore(&self, args: &Args, train_examples: usize) -> Result<Progress> {
        self.ensure_same_run(args, train_examples)
            .with_context(|| self.cannot())?;
        let (files, manifest) = (Arc::clone(&self.files), self.manifest.clone());
        let restored = globals::strategy()?.run_on_all(move |replica| {
            let (rank, replicas) = (replica.rank(), replica.num_replicas());
            globals::update_trainable(|trainable| {
                let mut trainable = trainable::load(trainable, &files)?;
                trainable::ensure_finite(&trainable.model)?;
                // Under another number of replicas each starts from the mean over the old ones.
                if replicas == manifest.replicas {
                    trainable.model =
                        trainable::load_statistics(trainable.model, &files, rank, replicas)?;
                }
                Ok(trainable)
            })?;
            globals::set_step(manifest.progress.step);
            let states = states_for(&manifest.metrics(), rank, replicas);
            globals::with_metrics(Split::Train, |metrics| {
                merge_metric_states(&mut metrics.all(), &states)
            })?
        });
        restored.with_context(|| self.cannot())?;
        Ok(self.manifest.progress)
    }

    fn ensure_same_run(&self, args: &Args, train_examples: usize) -> Result<()> {
        let manifest = &self.manifest;
        ensure!(
            manifest.seed == args.seed,
            "it was trained with --seed {}, and this run has --seed {}",
            manifest.seed,
            args.seed
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

/// The states that replica `rank` goes on with: its own under the same number of replicas, else all
/// of them on the first, as they only have to add up.
fn states_for(saved: &[MetricStates], rank: usize, replicas: usize) -> Vec<MetricStates> {
    if saved.len() == replicas {
        vec![saved[rank].clone()]
    } else if rank == 0 {
        saved.to_vec()
    } else {
        Vec::new()
    }
}

/// What differs between replicas: the states of the training metrics, and running statistics.
fn replica_states() -> Result<(Vec<MetricStates>, Vec<Vec<f32>>)> {
    let strategy = globals::strategy()?;
    let states = strategy.run_on_all(|_| {
        let metrics = globals::with_metrics(Split::Train, |metrics| metric_states(&metrics.all()))?;
        Ok((metrics, running_statistics(&globals::model()?)))
    })?;
    let states = strategy.gather("the states of replicas", states)?;
    Ok(states.into_iter().unzip())
}

/// The model with the mean of the running statistics, and the optimizers, which are equal on all
/// replicas, with the fingerprint of the model.
fn trainable_files() -> Result<(Files, String)> {
    let strategy = globals::strategy()?;
    strategy.run_on_all(globals::prepare_inference)?;
    strategy.run_on_first(|_| {
        globals::with_model(trainable::ensure_finite)??;
        let model = globals::inference_model()?;
        let fingerprint = trainable::fingerprint(&model);
        let mut files = trainable::model_files(model)?;
        globals::with_trainable(|trainable| trainable::insert_optimizers(&mut files, trainable))??;
        Ok((files, fingerprint))
    })
}
