//! The strategy that the options name.

use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::Device;

use super::{
    Alone, MirroredStrategy, ModelParallelStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy,
    ParameterServerOptions, ParameterServerStrategy, Strategy, Workers, check_replicas,
    chosen_devices, connect_servers, ensure_started_alone, join_workers, join_workers_if_started,
    update::update_parameters, visible_devices,
};
use crate::{
    options::{Options, StrategyKind},
    run_record::settings_of_job,
    task::Task,
};

/// Creates the strategy that the options name and starts its replicas, on the devices that
/// `create_devices` chooses for those of this process.
///
/// # Errors
/// Those of `create_devices`, an option of another strategy, processes that do not fit together or
/// several of a strategy for one, or a server that cannot be reached.
pub fn create_strategy<T: Task>(
    options: &Options,
    create_devices: impl FnOnce(&Options, &dyn Workers) -> Result<Vec<Device>>,
) -> Result<Arc<dyn Strategy>> {
    ensure_options_fit(options)?;
    if options.check_replicas {
        check_replicas();
    }
    let settings = settings_of_job();
    let settings = settings
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()));
    let settings: Vec<_> = settings.collect();
    match options.strategy {
        StrategyKind::MultiWorkerMirrored => {
            let workers = join_workers(options.timeout)?;
            let devices = create_devices(options, &*workers)?;
            let ops = options.cross_device_ops;
            let strategy = MultiWorkerMirroredStrategy::new(devices, workers, &settings, ops)?;
            Ok(Arc::new(strategy))
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
            Ok(Arc::new(strategy))
        }
        kind => {
            ensure_started_alone(kind)?;
            let mut devices = create_devices(options, &Alone::default())?;
            Ok(match kind {
                StrategyKind::OneDevice => Arc::new(OneDeviceStrategy::new(devices.remove(0))?),
                StrategyKind::ModelParallel => {
                    let (stages, parts) = (T::STAGES.len(), options.micro_batches);
                    Arc::new(ModelParallelStrategy::new(&devices, stages, parts)?)
                }
                _ => Arc::new(MirroredStrategy::new(devices, options.cross_device_ops)?),
            })
        }
    }
}

/// Refuses options that the chosen strategy would not look at.
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
    Ok(())
}

/// The devices that this process is to use: `--devices` of the GPUs that are built in and present, or
/// all, or the devices of the servers that `--hosts` names; else the CPU.
///
/// # Errors
/// There is no such device, or a server cannot be reached.
pub fn devices_of(options: &Options, workers: &dyn Workers) -> Result<Vec<Device>> {
    let visible = match options.hosts.is_empty() && options.strategy != StrategyKind::Remote {
        true => visible_devices(),
        false => connect_servers(&options.hosts, options.timeout)?,
    };
    chosen_devices(visible, options.devices.as_deref(), workers)
}
