use std::{
    panic,
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use anyhow::{Context, Result};
use burn::{
    module::{Module, ModuleVisitor, Param},
    tensor::{Tensor, kind::Basic},
};
use clap::Parser;
use kiln_engine::{
    data::{BatchOptions, Datasets, Remainder, Shard, Subset},
    distribute::{PerReplica, Strategy},
};
use training::{
    cli::Args,
    dataset::{Batch, Example, Examples, create_datasets},
    globals,
    loss::create_loss_objects,
    metric::create_metrics,
    model::create_model_and_optimizer,
    strategy::create_strategy,
};

/// Burn's CPU generator is one for the process: only one model may be drawn at a time.
static DRAWING: Mutex<()> = Mutex::new(());

/// Examples that the tests take from the start of the training split.
pub const EXAMPLES: usize = 50;

/// Checks what must hold at the site `id`, on a thread with globals of its own.
#[track_caller]
pub fn contract(id: &str, check: impl FnOnce() -> Result<()> + Send + 'static) {
    let sites = include_str!("../../todos.toml");
    assert!(
        sites.contains(&format!("id = \"{id}\"")),
        "todos.toml has no site {id}"
    );
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
    let datasets = create_datasets(&args)?;
    let _drawing = DRAWING.lock().unwrap_or_else(PoisonError::into_inner);
    strategy.scope(move |device| create_model_and_optimizer(&args, device))?;
    Ok(Job { strategy, datasets })
}

/// Sets up a job of `replicas` replicas with about 12 examples in a global batch. Nothing is dropped
/// at random, so that replicas can be compared.
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
    job.strategy.run_on_all(|replica| {
        replica.set_dropout(false);
        Ok(())
    })?;
    Ok(job)
}

impl Job {
    /// Global batches of `global_batch_size` of the first `examples` training examples, in order.
    pub fn batches(
        &self,
        examples: usize,
        global_batch_size: usize,
    ) -> Result<Vec<PerReplica<Shard<Example>>>> {
        let dataset = Arc::clone(self.datasets.train.dataset());
        let examples = examples.min(dataset.len());
        let first: Examples = Arc::new(Subset::new(dataset, (0..examples).collect())?);
        let options = BatchOptions {
            global_batch_size,
            seed: 42,
            shuffle: false,
            remainder: Remainder::Keep,
            accumulate: 1,
            prefetch: Some(0),
            training: true,
            augment: None,
        };
        Ok(self
            .strategy
            .distribute_dataset(first, options)?
            .epoch(1)
            .collect())
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

    /// The parameters of the first replica, one after the other.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        self.strategy
            .run_on_first(|_| Ok(flatten(&globals::model()?)))
    }
}

/// A job keeps its globals in the thread that sets it up.
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

/// The values of a tensor, one after the other.
pub fn values<const D: usize, K: Basic>(tensor: &Tensor<D, K>) -> Vec<f32> {
    tensor.clone().into_data().iter::<f32>().collect()
}

/// The largest difference between two lists of equal length.
pub fn difference(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len(), "lists of different lengths");
    let differences = left
        .iter()
        .zip(right)
        .map(|(left, right)| (left - right).abs());
    differences.fold(0.0, |largest, one| {
        if one > largest || one.is_nan() {
            one
        } else {
            largest
        }
    })
}
