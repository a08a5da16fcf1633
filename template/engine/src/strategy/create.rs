//! Creation of the strategy from the options.

use std::{cell::Cell, sync::Arc};

use anyhow::{Result, ensure};
use burn::tensor::Device;

use super::{
    MirroredStrategy, ModelParallelStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy,
    ParameterServerOptions, ParameterServerStrategy, Strategy,
};
use crate::{
    anomalies::detect_anomalies,
    comm::{ExchangePrecision, check_replicas},
    kernel_cache,
    options::{Options, StrategyKind},
    precision::{self, Half},
    replica::open_devices,
    run_record::settings_of_job,
    task::Task,
    training::update::update_parameters,
    workers::{Alone, Workers, ensure_started_alone, join_workers, join_workers_if_started},
};

/// Creates the strategy of `--strategy` and starts its replicas, on the devices that `create_devices`
/// returns for this process.
///
/// # Errors
/// Those of `create_devices`; options do not fit together or belong to another strategy, processes do not match, several were
/// started for a single-process strategy, or a server is unreachable.
pub fn create_strategy<T: Task>(
    options: &Options,
    create_devices: impl FnOnce(&Options, &dyn Workers) -> Result<Vec<Device>>,
) -> Result<Arc<dyn Strategy>> {
    options.ensure_fit_together()?;
    ensure_options_fit(options)?;
    kernel_cache::keep(options)?;
    let half = Cell::new(None);
    let create_devices = |options: &Options, workers: &dyn Workers| {
        let devices = create_devices(options, workers)?;
        open_devices(&devices)?;
        half.set(precision::of_job(options.precision, &devices, workers)?);
        kernel_cache::await_first_step(&devices, workers.is_chief())?;
        anyhow::Ok(devices)
    };
    if options.check_replicas {
        check_replicas();
    }
    if options.detect_anomalies {
        detect_anomalies();
    }
    let settings = settings_of_job();
    let settings = settings
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()));
    let settings: Vec<_> = settings.collect();
    let strategy: Arc<dyn Strategy> = match options.strategy {
        StrategyKind::MultiWorkerMirrored => {
            let workers = join_workers(options.timeout)?;
            let devices = create_devices(options, &*workers)?;
            let ops = options.cross_device_ops;
            let strategy = MultiWorkerMirroredStrategy::new(devices, workers, &settings, ops)?;
            Arc::new(strategy)
        }
        StrategyKind::ParameterServer => {
            let workers = join_workers_if_started(options.timeout)?;
            let devices = create_devices(options, &*workers)?;
            let server = ParameterServerOptions {
                max_staleness: options.max_staleness,
                update: update_parameters::<T>,
                timeout: options.timeout,
            };
            let strategy = ParameterServerStrategy::new(devices, workers, &settings, server)?;
            Arc::new(strategy)
        }
        kind => {
            ensure_started_alone(kind)?;
            let mut devices = create_devices(options, &Alone::default())?;
            match kind {
                StrategyKind::OneDevice => Arc::new(OneDeviceStrategy::new(devices.remove(0))?),
                StrategyKind::ModelParallel => {
                    let (stages, parts) = (T::STAGES.len(), options.micro_batches);
                    Arc::new(ModelParallelStrategy::new(&devices, stages, parts)?)
                }
                _ => Arc::new(MirroredStrategy::new(devices, options.cross_device_ops)?),
            }
        }
    };
    begin(&strategy, options, half.get())?;
    Ok(strategy)
}

/// Begins on all replicas: gradients are exchanged in `--exchange-precision`, and products are in `half`.
///
/// # Errors
/// A thread is gone.
pub(super) fn begin(
    strategy: &Arc<dyn Strategy>,
    options: &Options,
    half: Option<Half>,
) -> Result<()> {
    let exchange = options.exchange_precision;
    strategy.run_on_all(move |replica| {
        replica.set_exchange(exchange);
        precision::begin_training(half);
        Ok(())
    })?;
    Ok(())
}

/// Refuses options that the chosen strategy would ignore.
fn ensure_options_fit(options: &Options) -> Result<()> {
    let strategy = options.strategy;
    ensure!(
        options.max_staleness.is_none() || strategy == StrategyKind::ParameterServer,
        "--max-staleness is for --strategy parameter-server: other strategies have no staleness"
    );
    let sums = [
        StrategyKind::Mirrored,
        StrategyKind::MultiWorkerMirrored,
        StrategyKind::Remote,
    ];
    ensure!(
        options.cross_device_ops.is_none() || sums.contains(&strategy),
        "--cross-device-ops is for --strategy mirrored and multi-worker-mirrored, which sum gradients \
         over GPUs: leave it out"
    );
    ensure_exchanges(options)
}

/// Refuses `--exchange-precision bfloat16` for strategies whose replicas do not send gradients to each other.
fn ensure_exchanges(options: &Options) -> Result<()> {
    let (strategy, reason) = match options.strategy {
        StrategyKind::OneDevice => ("one-device", "its only replica exchanges no gradients"),
        StrategyKind::Remote => (
            "remote",
            "the servers send gradients to this program as tensors of Burn in float32",
        ),
        _ => return Ok(()),
    };
    ensure!(
        options.exchange_precision == ExchangePrecision::Float32,
        "--exchange-precision bfloat16 is not for --strategy {strategy}: {reason}; leave it out, or choose another \
         strategy"
    );
    Ok(())
}
