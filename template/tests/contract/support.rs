use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    panic,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
};

use anyhow::{Context, Result, ensure};
use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Tensor, kind::Basic},
};
use clap::Parser;
use kiln_engine::{
    data::{BatchOptions, Collate, Datasets, DistributedDataset, Remainder, Shard, Subset, stream},
    globals::{self as engine, enable_training_layers},
    model::lock_generator,
    replica::{PerReplica, visible_devices},
    strategy::Strategy,
};
use training::{
    cli::Args,
    dataset::{Batch, Example, Examples, augment, create_datasets, read_examples},
    globals::{self, Project},
    loss::{create_loss_objects, per_example_losses},
    metric::create_metrics,
    model::create_model_and_optimizer,
    strategy::create_strategy,
};

/// The amounts of data in tests.
pub struct Amounts {
    /// Examples from the start of the training split.
    pub examples: usize,
    /// Examples in a global batch whose replicas are compared.
    pub batch: usize,
    /// Examples in a batch that one replica computes.
    pub few: usize,
    /// Examples per replica and step in whole trainings.
    pub per_replica: usize,
    /// Examples of the training, the validation and the test split in jobs.
    sample: [usize; 3],
    /// Examples of each split that are compared with those of others.
    pub compared: usize,
}

const OF_SMALL: Amounts = Amounts {
    examples: 50,
    batch: 11,
    few: 8,
    per_replica: 11,
    sample: [270, 30, 100],
    compared: 2_000,
};

/// An image of 256 x 256 pixels takes about a thousand times as long as a digit.
const OF_LARGE: Amounts = Amounts {
    examples: 3,
    batch: 3,
    few: 3,
    per_replica: 1,
    sample: [18, 2, 4],
    compared: 20,
};

/// Number of values above which an example is large.
const LARGE: usize = 10_000;

/// The amounts for this task: fewer examples if they are large, so that the tests take about as long.
pub fn amounts() -> &'static Amounts {
    match has_large_examples() {
        true => &OF_LARGE,
        false => &OF_SMALL,
    }
}

/// False if an example cannot be read, which the tests of its site report.
pub fn has_large_examples() -> bool {
    static IS_LARGE: OnceLock<bool> = OnceLock::new();
    *IS_LARGE.get_or_init(|| matches!(thread::spawn(reads_large_example).join(), Ok(Ok(true))))
}

fn reads_large_example() -> Result<bool> {
    let examples = read_examples(&Args::try_parse_from(["contract"])?)?.0;
    let example = examples.get(0)?;
    // A number takes up to 5 letters, with its comma.
    let is_long = format!("{example:?}").len() > 5 * LARGE;
    let example = augment(example, &mut stream("test", &[0]))?;
    let device = visible_devices().remove(0).without_autodiff();
    let batch = Batch::collate(vec![example], &device)?;
    let images = batch.images().map(|images| images.shape().num_elements());
    Ok(is_long || images.is_some_and(|values| values > LARGE))
}

/// A hash of all fields of an example.
pub fn key(example: &Example) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{example:?}").hash(&mut hasher);
    hasher.finish()
}

/// Whether two examples are the same; NaN, as of a missing value, is the same as NaN here.
pub fn same(left: &Example, right: &Example) -> bool {
    left == right || key(left) == key(right)
}

pub fn all_same(left: &[Example], right: &[Example]) -> bool {
    left.len() == right.len()
        && left
            .iter()
            .zip(right)
            .all(|(left, right)| same(left, right))
}

/// A turn of a test with large examples: one test at a time keeps their memory small on any number of cores.
fn turn() -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    has_large_examples().then(|| TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Up to `most` examples, at equal intervals.
pub fn sample(examples: Examples, most: usize) -> Result<Examples> {
    let (len, count) = (examples.len(), examples.len().min(most));
    let indices = (0..count).map(|number| number * len / count).collect();
    Ok(Arc::new(Subset::new(examples, indices)?))
}

/// The training, the validation and the test split, where a strategy is registered.
pub fn splits(args: &Args) -> Result<[Examples; 3]> {
    let datasets = create_datasets(args)?;
    let splits = [&datasets.train, &datasets.validation, &datasets.test];
    Ok(splits.map(|split| Arc::clone(split.dataset())))
}

/// A sample of each of the [`splits`] for all jobs with the same [`data_options`], read once: a large gzipped file
/// takes long to decompress.
fn sample_of_jobs(args: &Args) -> Result<[Examples; 3]> {
    static SAMPLES: Mutex<BTreeMap<String, [Examples; 3]>> = Mutex::new(BTreeMap::new());
    let mut shared = SAMPLES.lock().unwrap_or_else(PoisonError::into_inner);
    let options = data_options(args)?;
    if let Some(sample) = shared.get(&options) {
        return Ok(sample.clone());
    }
    // After the split, which may set a fixed number of examples aside.
    let [most_training, most_validation, most_test] = amounts().sample;
    let [training, validation, test] = splits(args)?;
    let training = sample(training, most_training)?;
    let validation = sample(validation, most_validation)?;
    let sample = [training, validation, sample(test, most_test)?];
    Ok(shared.entry(options).or_insert(sample).clone())
}

/// The options that may change the data: those of the task, the data folder and the seed.
fn data_options(args: &Args) -> Result<String> {
    let mut options = Args::try_parse_from(["contract"])?.options;
    options.data_dir.clone_from(&args.options.data_dir);
    options.seed = args.options.seed;
    let own = Args {
        options,
        ..args.clone()
    };
    Ok(format!("{own:?}"))
}

/// Checks the contract of the site `id` on a new thread, as globals are per thread.
#[track_caller]
pub fn contract(id: &str, check: impl FnOnce() -> Result<()> + Send + 'static) {
    let sites = include_str!("../../todos.toml");
    assert!(
        sites.contains(&format!("id = \"{id}\"")),
        "todos.toml has no site {id}"
    );
    let _turn = turn();
    let problem = match thread::spawn(check).join() {
        Ok(Ok(())) => return,
        Ok(Err(error)) => format!("{error:#}"),
        Err(panic) => match panic.downcast_ref::<String>() {
            Some(message) => message.clone(),
            None => panic
                .downcast_ref::<&str>()
                .copied()
                .unwrap_or("it panicked")
                .to_owned(),
        },
    };
    panic!("TODO({id}): {problem}");
}

/// A job after step 5 of `main`.
pub struct Job {
    pub strategy: Arc<dyn Strategy>,
    pub datasets: Datasets<Example>,
}

/// Sets up a job with the command line `options`.
pub fn set_up(options: &[&str]) -> Result<Job> {
    let args = Args::try_parse_from(["contract", "--check-replicas"].iter().chain(options))?;
    let strategy = create_strategy(&args)?;
    globals::register_strategy(&strategy, args.options.batch_size)?;
    strategy.scope(|_| Ok(create_loss_objects()))?;
    strategy.scope(|_| Ok(create_metrics()))?;
    let splits = sample_of_jobs(&args)?;
    let example = splits[0].get(0)?;
    let augmented = || augment(example.clone(), &mut stream("test", &[0]));
    ensure!(
        same(&augmented()?, &augmented()?),
        "the same random numbers give another example: see TODO(dataset.augment)"
    );
    let datasets = Datasets::distribute(&args.options, splits, augment)?;
    let updates = datasets.updates(&args.options);
    // Burn's CPU generator is global, and tests run in parallel.
    let _generator = lock_generator();
    strategy.scope(move |device| create_model_and_optimizer(&args, updates, device))?;
    Ok(Job { strategy, datasets })
}

/// Sets up a job of `replicas` replicas with about 12 examples in a global batch. Random layers and batch
/// normalisation act as in validation, so that replicas can be compared.
pub fn set_up_replicas(replicas: usize) -> Result<Job> {
    let (replicas, batch_size) = (replicas.to_string(), (12 / replicas).max(1).to_string());
    let job = set_up(&[
        "--strategy",
        "mirrored",
        "--replicas",
        &replicas,
        "--batch-size",
        &batch_size,
    ])?;
    let layers = job
        .strategy
        .run_on_all(|_| enable_training_layers::<Project>(false))?;
    let layers = layers.into_iter().next().context("no replica")?;
    if !layers.is_empty() {
        eprintln!(
            "these layers act as in validation, so that replicas can be compared: {}",
            [layers.random, layers.normalising].concat().join(", ")
        );
    }
    Ok(job)
}

impl Job {
    /// Global batches of `global_batch_size` of the first `examples` training examples, in order and augmented:
    /// the model may need what the augmentation makes of them, as in training.
    pub fn batches(
        &self,
        examples: usize,
        global_batch_size: usize,
    ) -> Result<Vec<PerReplica<Shard<Example>>>> {
        let data = self.accumulated_batches(examples, global_batch_size, 1)?;
        Ok(data.epoch(1).collect())
    }

    /// As [`batches`](Self::batches), of which `accumulate` make an update.
    pub fn accumulated_batches(
        &self,
        examples: usize,
        global_batch_size: usize,
        accumulate: usize,
    ) -> Result<DistributedDataset<Example>> {
        let dataset = Arc::clone(self.datasets.train.dataset());
        let examples = examples.min(dataset.len());
        let first: Examples = Arc::new(Subset::new(dataset, (0..examples).collect())?);
        let options = BatchOptions {
            global_batch_size,
            seed: 42,
            shuffle: false,
            remainder: Remainder::Keep,
            accumulate,
            prefetch: Some(0),
            training: true,
            augment: Some(Arc::new(augment)),
        };
        self.strategy.distribute_dataset(first, options)
    }

    /// Runs `step` on the first replica with a batch of the first `examples` training examples.
    pub fn with_batch<T: Send + 'static>(
        &self,
        examples: usize,
        step: impl Fn(Batch) -> Result<T> + Clone + Send + 'static,
    ) -> Result<T> {
        let shards = self.batches(examples, examples)?.remove(0);
        let outputs = self
            .strategy
            .run(shards, move |shard| match shard.load()? {
                Some(batch) => step(batch).map(Some),
                None => Ok(None),
            })?;
        outputs
            .into_iter()
            .flatten()
            .next()
            .context("no replica has examples")
    }

    /// Prepares the model of all replicas for validation and test.
    pub fn prepare_inference(&self) -> Result<()> {
        self.strategy
            .run_on_all(engine::prepare_inference::<Project>)
            .map(drop)
    }

    /// The losses of the first `examples` training examples, in batches of one, and all in one batch.
    pub fn losses_alone_and_together(&self, examples: usize) -> Result<(Vec<f32>, Vec<f32>)> {
        self.prepare_inference()?;
        let losses = |batch: Batch| losses(&batch.valid());
        let mut alone = Vec::new();
        for shards in self.batches(examples, 1)? {
            let outputs = self.strategy.run(shards, move |shard| {
                shard.load()?.map_or(Ok(Vec::new()), losses)
            })?;
            alone.extend(outputs.into_iter().flatten());
        }
        Ok((alone, self.with_batch(examples, losses)?))
    }

    /// The parameters of the first replica, concatenated.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        self.strategy
            .run_on_first(|_| Ok(flatten(&globals::model()?)))
    }
}

/// The losses of the examples of a batch, with the inference model of this replica.
pub fn losses(batch: &Batch) -> Result<Vec<f32>> {
    Ok(values(&per_example_losses(
        &globals::predict(batch)?,
        batch,
    )?))
}

/// Runs `work` on a new thread, as a job keeps its globals in the thread that sets it up.
pub fn on_own_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let result = thread::spawn(work).join();
    result.unwrap_or_else(|panic| panic::resume_unwind(panic))
}

fn flatten(model: &impl Module) -> Vec<f32> {
    struct Values(Vec<f32>);

    impl ModuleVisitor for Values {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            self.0.extend(param.val().into_data().iter::<f32>());
        }
    }

    let mut values = Values(Vec::new());
    model.visit(&mut values);
    values.0
}

/// The values of a tensor, flattened.
pub fn values<const D: usize, K: Basic>(tensor: &Tensor<D, K>) -> Vec<f32> {
    tensor.clone().into_data().iter::<f32>().collect()
}

/// The largest difference between two lists of equal length, as a share of the largest value, or of 0.1 if
/// that is larger: values near 0, as where terms cancel, may be nothing but rounding errors.
pub fn difference(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len(), "lists of different lengths");
    let pairs = left.iter().zip(right);
    largest(pairs.map(|(left, right)| left - right)) / largest(left.iter().copied()).max(0.1)
}

/// The largest absolute value; NaN if there is one.
fn largest(values: impl IntoIterator<Item = f32>) -> f32 {
    let values = values.into_iter().map(f32::abs);
    values.fold(0.0, |largest, one| {
        if one > largest || one.is_nan() {
            one
        } else {
            largest
        }
    })
}
