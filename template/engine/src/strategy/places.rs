//! The devices of this process, and which of them each replica and stage gets.

use anyhow::{Result, ensure};
use burn::tensor::Device;

use crate::{
    console::terminal,
    launch::connect_servers,
    options::{Options, StrategyKind},
    replica::{chosen_devices, is_cpu, visible_devices},
    task::Task,
    workers::Workers,
};

/// The devices of this process: the available GPUs, restricted by `--devices`, or the devices of the
/// servers in `--hosts`; otherwise the CPU.
///
/// # Errors
/// A device does not exist, or a server is unreachable.
pub fn devices_of(options: &Options, workers: &dyn Workers) -> Result<Vec<Device>> {
    let visible = match options.hosts.is_empty() && options.strategy != StrategyKind::Remote {
        true => visible_devices(),
        false => connect_servers(&options.hosts, options.timeout)?,
    };
    chosen_devices(visible, options.devices.as_deref(), workers)
}

/// The device of each replica, or with `model-parallel` of each stage of each replica: `devices` in turn,
/// shared where there are fewer. There are `--replicas` replicas; without it `replicas`, with
/// `multi-worker-mirrored` and `remote` one per device, and with `one-device` and `model-parallel` one.
///
/// # Errors
/// There are no devices, or `--replicas` asks for several with `one-device`.
pub fn share_devices<T: Task>(
    devices: &[Device],
    replicas: usize,
    options: &Options,
) -> Result<Vec<Device>> {
    ensure!(!devices.is_empty(), "replicas have no device to run on");
    let (stages, default) = match options.strategy {
        StrategyKind::ModelParallel => (T::STAGES.len(), 1),
        StrategyKind::OneDevice => (1, 1),
        StrategyKind::MultiWorkerMirrored | StrategyKind::Remote => (1, devices.len()),
        StrategyKind::Mirrored | StrategyKind::ParameterServer => (1, replicas),
    };
    let replicas = options.replicas.unwrap_or(default);
    ensure!(
        replicas == 1 || options.strategy != StrategyKind::OneDevice,
        "--strategy one-device has one replica, but --replicas asks for {replicas}: \
         leave --replicas out or use --strategy mirrored"
    );
    let (parts, count) = (replicas * stages, devices.len());
    if parts > count && !is_cpu(devices) && options.hosts.is_empty() {
        let few = format!("{parts} replicas or stages share the available GPUs ({count})");
        terminal::warn(format_args!("warning: {few}"));
    }
    Ok((0..parts)
        .map(|place| devices[place % count].clone())
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_task::{Line, options};

    fn parts(words: &[&str]) -> Result<usize> {
        let devices = [Device::flex()];
        Ok(share_devices::<Line>(&devices, 2, &options(words))?.len())
    }

    #[test]
    fn a_strategy_has_the_replicas_that_it_can_have() {
        let stages = Line::STAGES.len();
        for (words, expected) in [
            (&["--strategy", "mirrored"][..], 2),
            (&["--strategy", "parameter-server", "--replicas", "5"], 5),
            (&["--strategy", "multi-worker-mirrored"], 1),
            (&["--strategy", "one-device"], 1),
            (&["--strategy", "model-parallel"], stages),
            (
                &["--strategy", "model-parallel", "--replicas", "3"],
                3 * stages,
            ),
        ] {
            assert_eq!(parts(words).unwrap(), expected, "{words:?}");
        }
        let two = parts(&["--strategy", "one-device", "--replicas", "2"]);
        let two = two.unwrap_err().to_string();
        assert!(
            two.starts_with("--strategy one-device has one replica"),
            "{two}"
        );
        assert!(share_devices::<Line>(&[], 2, &options(&[])).is_err());
    }
}
