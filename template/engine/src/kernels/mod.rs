//! The command `compile`: the kernels of a training, compiled and tuned ahead of it.

use anyhow::{Result, ensure};

use crate::{
    console::terminal,
    data::{Datasets, DistributedDataset},
    globals::{self, Split},
    kernel_cache::{ensure_kept, ensure_replaceable, export, note_first_step},
    loss::Losses,
    options::Compile,
    replica::is_cpu,
    task::Task,
    training::Inputs,
};

/// The steps of a task, each on one global batch.
pub struct Steps<E> {
    /// Trains.
    pub train: fn(Inputs<E>) -> Result<Losses>,
    /// Validates.
    pub validation: fn(Inputs<E>) -> Result<Losses>,
    /// Tests.
    pub test: fn(Inputs<E>) -> Result<Losses>,
}

/// Compiles and tunes the kernels of a training and its validation and test, and writes them to the bundle of
/// `options`: runs the steps on the first and the last update of an epoch, which between them have all shapes,
/// except where a dataset has batches of several shapes. Nothing else is written.
///
/// # Errors
/// There is no GPU, none of its kernels is kept, a step failed, or the bundle cannot be written.
pub fn compile<T: Task>(
    options: &Compile,
    datasets: &Datasets<T::Example>,
    steps: &Steps<T::Example>,
) -> Result<()> {
    let strategy = globals::strategy()?;
    let devices = strategy.run_on_all(|replica| Ok(replica.device().clone().inner()))?;
    let devices: Vec<_> = devices.into_iter().collect();
    ensure!(
        !is_cpu(&devices[..1]),
        "`compile` is for GPUs, and this training is on the CPU, which compiles no kernels"
    );
    ensure_kept(&devices[0])?;
    strategy.read_by_chief("the bundle", || ensure_replaceable(&options.bundle))?;
    globals::reset_metrics::<T>(Split::Train)?;
    run(&datasets.train, steps.train)?;
    globals::merged_metrics::<T>(Split::Train)?;
    let evaluations = [
        (Split::Validation, &datasets.validation, steps.validation),
        (Split::Test, &datasets.test, steps.test),
    ];
    for (split, data, step) in evaluations {
        globals::reset_metrics::<T>(split)?;
        strategy.run_on_all(globals::prepare_inference::<T>)?;
        run(data, step)?;
        globals::merged_metrics::<T>(split)?;
    }
    note_first_step();
    if strategy.is_chief() {
        let kept = export(&options.bundle, &devices)?;
        terminal::print(format_args!(
            "{}: {kept}; use it with --kernels and this build of the program on machines with the same GPU",
            options.bundle.display()
        ));
    }
    strategy.workers().leave()
}

fn run<E: Send + 'static>(
    data: &DistributedDataset<E>,
    step: fn(Inputs<E>) -> Result<Losses>,
) -> Result<()> {
    data.first_and_last_update()
        .try_for_each(|inputs| step(inputs).map(drop))
}
