use std::env;

use anyhow::{Result, ensure};
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
use burn::tensor::DeviceKind;
use burn::tensor::{Device, DeviceType};

use super::{OnHost, Workers};
use crate::report::terminal;

/// The kinds of GPU that are built in, the fastest first.
const GPUS: &[DeviceType] = &[
    #[cfg(feature = "cuda")]
    DeviceType::Cuda,
    #[cfg(feature = "rocm")]
    DeviceType::Rocm,
    #[cfg(feature = "metal")]
    DeviceType::Metal,
    #[cfg(feature = "vulkan")]
    DeviceType::Vulkan,
    #[cfg(feature = "wgpu")]
    DeviceType::Wgpu,
];

/// The devices that this process can use: all of the first kind of GPU that is built in and
/// present, or else the CPU, once. The CUDA driver respects `CUDA_VISIBLE_DEVICES`.
///
/// A GPU in software, as Mesa's llvmpipe is one, is slower than the CPU itself. It counts where
/// `CUBECL_WGPU_DEFAULT_DEVICE=Cpu` asks for it, as tests do.
pub fn visible_devices() -> Vec<Device> {
    let wants_software = env::var("CUBECL_WGPU_DEFAULT_DEVICE").is_ok_and(|kind| kind == "Cpu");
    let counts = |device: &Device| wants_software || !is_software(device);
    let of_a_kind = |kind: &DeviceType| {
        let devices = Device::enumerate(kind.clone()).into_iter();
        devices.filter(counts).collect()
    };
    let mut present = GPUS
        .iter()
        .map(of_a_kind)
        .filter(|devices: &Vec<Device>| !devices.is_empty());
    present.next().unwrap_or_else(|| vec![Device::flex()])
}

fn is_software(device: &Device) -> bool {
    let software: &[Device] = &[
        #[cfg(feature = "vulkan")]
        Device::vulkan(DeviceKind::Cpu),
        #[cfg(feature = "wgpu")]
        Device::wgpu(DeviceKind::Cpu),
    ];
    software.contains(device)
}

/// The devices that this process is to use: those of `visible` that `indices` name, divided among
/// the processes of this host.
///
/// # Errors
/// There is no such device, or the processes of this host are more than its devices.
pub fn chosen_devices(
    visible: Vec<Device>,
    indices: Option<&[usize]>,
    workers: &dyn Workers,
) -> Result<Vec<Device>> {
    let chosen: Vec<Device> = match indices {
        None => visible,
        Some(indices) => {
            for (place, index) in indices.iter().enumerate() {
                ensure!(
                    *index < visible.len(),
                    "--devices {index}: there is no such device; {}",
                    describe(&visible)
                );
                ensure!(
                    !indices[..place].contains(index),
                    "--devices names {index} twice: more replicas on one CPU are asked for with \
                     --replicas"
                );
            }
            indices
                .iter()
                .map(|index| visible[*index].clone())
                .collect()
        }
    };
    if is_cpu(&chosen) {
        if !GPUS.is_empty() && indices.is_none() {
            terminal::warn(format_args!("warning: {}", describe(&chosen)));
        }
        return Ok(chosen);
    }
    if env::var_os("SLURM_GPUS_PER_TASK").is_some() {
        return Ok(chosen);
    }
    let host = workers.on_this_host();
    let share = share_of(chosen.len(), host);
    ensure!(
        !share.is_empty(),
        "{} processes on this host share {} devices: start at most one a device",
        host.count,
        chosen.len()
    );
    Ok(chosen[share].to_vec())
}

/// Which of `devices` a process of its host gets.
fn share_of(devices: usize, host: OnHost) -> std::ops::Range<usize> {
    let each = devices / host.count;
    each * host.index..each * (host.index + 1)
}

/// Whether these are the CPU, which any number of replicas can share.
pub fn is_cpu(devices: &[Device]) -> bool {
    devices.len() == 1 && devices[0] == Device::flex()
}

fn describe(visible: &[Device]) -> String {
    let built: Vec<String> = GPUS
        .iter()
        .map(|kind| format!("{kind:?}").to_lowercase())
        .collect();
    match (is_cpu(visible), built.is_empty()) {
        (true, true) => "this program is built for the CPU, which is device 0; a feature such as \
                         `--features cuda` adds GPUs"
            .to_owned(),
        (true, false) => format!(
            "this program is built for {}, and no such GPU was found: see whether its driver is \
             installed, and that CUDA_VISIBLE_DEVICES hides none. The CPU is device 0",
            built.join(", ")
        ),
        (false, _) => format!("devices are counted from 0 to {}", visible.len() - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::distribute::Alone;

    #[test]
    fn processes_of_a_host_share_its_devices() {
        let share = |index, count| share_of(8, OnHost { index, count });
        assert_eq!([share(0, 2), share(1, 2)], [0..4, 4..8]);
        assert_eq!(share(2, 3), 4..6);
        assert!(share(8, 9).is_empty());
    }

    #[test]
    fn devices_that_are_not_there_are_refused() {
        let error = |indices: &[usize]| {
            let chosen = chosen_devices(visible_devices(), Some(indices), &Alone::default());
            chosen.unwrap_err().to_string()
        };
        assert!(chosen_devices(visible_devices(), Some(&[0]), &Alone::default()).is_ok());
        assert!(error(&[99]).contains("--devices 99: there is no such device"));
        assert!(error(&[0, 0]).contains("twice"));
    }
}
