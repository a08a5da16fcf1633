//! A job after step 5 of `main`, for tests.

// Not every test uses all of it.
#![allow(dead_code)]

use std::{sync::Arc, thread};

use anyhow::Result;
use clap::Parser;
use kiln_engine::{
    data::{BatchOptions, Datasets, Remainder},
    strategy::Strategy,
};
use training::{
    cli::Args,
    dataset::{Example, Examples, create_datasets},
    globals,
    loss::create_loss_objects,
    metric::create_metrics,
    model::create_model_and_optimizer,
    strategy::create_strategy,
};

pub struct Job {
    pub args: Args,
    pub strategy: Arc<dyn Strategy>,
    pub datasets: Datasets<Example>,
}

/// Sets up a job with the command line `options`.
pub fn set_up(options: &[&str]) -> Result<Job> {
    let args = Args::try_parse_from(["test"].iter().chain(options))?;
    let strategy = create_strategy(&args)?;
    globals::register_strategy(&strategy, args.options.batch_size)?;
    strategy.scope(|_| Ok(create_loss_objects()))?;
    strategy.scope(|_| Ok(create_metrics()))?;
    let datasets = create_datasets(&args)?;
    let (settings, updates) = (args.clone(), datasets.updates(&args.options));
    strategy.scope(move |device| create_model_and_optimizer(&settings, updates, device))?;
    Ok(Job {
        args,
        strategy,
        datasets,
    })
}

/// A job keeps its globals in the thread that sets it up.
pub fn on_own_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> T {
    thread::spawn(work).join().unwrap().unwrap()
}

/// Batch options for all of `examples` at once, in their order.
pub fn in_one_batch(examples: &Examples) -> BatchOptions<Example> {
    BatchOptions {
        global_batch_size: examples.len(),
        seed: 42,
        shuffle: false,
        remainder: Remainder::Keep,
        accumulate: 1,
        prefetch: Some(0),
        training: true,
        augment: None,
    }
}
