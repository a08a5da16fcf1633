use std::process::ExitCode;

use anyhow::Result;
use kiln_engine::{
    checkpoint::{Checkpoints, interrupt},
    comparison::compare,
    globals::fail,
    kernels::{self, Steps},
    launch::{launch, serve},
    package,
    rate_finder::find_learning_rate,
    report::{Report, terminal},
    run_record,
    sweep::sweep,
    weights::export,
};
use training::{
    cli::{Args, Command},
    dataset::create_datasets,
    globals::{self, Project},
    infer::infer,
    loss::create_loss_objects,
    metric::create_metrics,
    model::create_model_and_optimizer,
    strategy::create_strategy,
    test::{distributed_test_step, test},
    train::{distributed_train_step, train},
    validation::distributed_validation_step,
};

// Each step allocates large tensors: mimalloc reuses their memory, which the default allocator
// returns to the operating system.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let Err(error) = run(&run_record::parse::<Args>(package!())) else {
        // A stopped training is not a success: 128 + the signal.
        return interrupt::exit_status().map_or(ExitCode::SUCCESS, ExitCode::from);
    };
    if let Some(message) = fail(&error) {
        terminal::warn(format_args!("error: {message}"));
    }
    ExitCode::FAILURE
}

fn run(args: &Args) -> Result<()> {
    match &args.command {
        Some(Command::Infer(options)) => return infer(args, options),
        Some(Command::Export(options)) => {
            let create = |device: &_| create_model_and_optimizer(args, 1, device);
            return export::<Project>(&args.options, options, create);
        }
        Some(Command::Launch(options)) => return launch::<Args>(options, &args.options.hosts),
        Some(Command::Serve(options)) => return serve(options, args.options.devices.as_deref()),
        Some(Command::Compare(options)) => return compare::<Project>(options),
        Some(Command::Sweep(options)) => return sweep::<Project>(options),
        _ => {}
    }
    // 1. Strategy: the replicas and the global batch size.
    let strategy = create_strategy(args)?;
    globals::register_strategy(&strategy, args.options.batch_size)?;
    // 2. Loss objects, one set per replica.
    strategy.scope(|_| Ok(create_loss_objects()))?;
    // 3. Metrics, one set per replica, merged for reports.
    strategy.scope(|_| Ok(create_metrics()))?;
    // 4. Datasets, batched by the global batch size and sharded over the replicas.
    let datasets = create_datasets(args)?;
    // 5. Model and optimizer: created once, then mirrored, so all replicas start from equal weights.
    let (settings, updates) = (args.clone(), datasets.updates(&args.options));
    strategy.scope(move |device| create_model_and_optimizer(&settings, updates, device))?;
    if let Some(Command::Compile(options)) = &args.command {
        let steps = Steps {
            train: distributed_train_step,
            validation: distributed_validation_step,
            test: distributed_test_step,
        };
        return kernels::compile::<Project>(options, &datasets, &steps);
    }
    if let Some(Command::FindLr(find)) = &args.command {
        let (options, step) = (&args.options, distributed_train_step);
        return find_learning_rate::<Project>(find, options, &datasets, step);
    }
    let mut report = match &args.command {
        Some(Command::Test(_)) => Report::of_test(&args.options)?,
        _ => Report::new(&args.options)?,
    };
    interrupt::listen();
    // 6. Train, with a validation and a checkpoint after each epoch; or load a checkpoint.
    let trained = match &args.command {
        Some(Command::Test(test)) => {
            let checkpoints = Checkpoints::new::<Project>(&args.options);
            let checkpoint = checkpoints.find_for_all(&test.checkpoint)?;
            checkpoint.restore_model::<Project>()?;
            Some(checkpoint.manifest.progress)
        }
        _ => train(args, &datasets, &mut report)?,
    };
    // 7. Test, except after `train`, or if a signal stopped training.
    match (trained, &args.command) {
        (None, _) | (_, Some(Command::Train)) => {}
        (Some(trained), _) => test(trained, &datasets, &mut report)?,
    }
    strategy.workers().leave()
}
