use std::env;

use anyhow::{Error, Result, anyhow, ensure};
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
use burn::tensor::DeviceKind;
use burn::tensor::{Device, DeviceType};

use crate::{
    kernels,
    report::terminal,
    workers::{OnHost, Workers},
};

/// The enabled GPU backends, fastest first.
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

/// The devices available to this process: all GPUs of the first enabled backend that finds any, or else
/// the CPU, once. The CUDA driver respects `CUDA_VISIBLE_DEVICES`.
///
/// Software GPUs, such as Mesa's llvmpipe, are slower than the CPU backend and are ignored, unless
/// `CUBECL_WGPU_DEFAULT_DEVICE=Cpu` is set, as in tests.
pub fn visible_devices() -> Vec<Device> {
    kernels::keep_by_default();
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

/// The devices of this process: those of `visible` at `indices`, divided among the processes of this
/// host.
///
/// # Errors
/// A device does not exist, or the host has more processes than devices.
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
                    "--devices names {index} twice: for several replicas on the CPU, use --replicas"
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
        "{} processes on this host share {} devices: start at most one per device",
        host.count,
        chosen.len()
    );
    Ok(chosen[share].to_vec())
}

/// The range of `devices` assigned to a process of its host.
fn share_of(devices: usize, host: OnHost) -> std::ops::Range<usize> {
    let each = devices / host.count;
    each * host.index..each * (host.index + 1)
}

/// True for the CPU, which any number of replicas can share.
pub fn is_cpu(devices: &[Device]) -> bool {
    devices.len() == 1 && devices[0] == Device::flex()
}

/// The error of a GPU without memory for an allocation, with advice; `None` for other errors.
///
/// Source: the messages of `IoError::OutOfMemory` and `IoError::BufferTooBig` of CubeCL, whose types do not
/// reach the caller of an operation.
pub fn out_of_memory(error: &Error) -> Option<Error> {
    let text = format!("{error:#}");
    let size_after = |message: &str| {
        let (_, rest) = text.split_once(message)?;
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().ok()
    };
    let (size, why) = match size_after("out of device memory allocating ") {
        Some(size) => (size, "the GPU is out of memory"),
        None => (
            size_after("can't allocate buffer of size: ")?,
            "a tensor is too large for the GPU",
        ),
    };
    Some(anyhow!(
        "{why}: {} MiB were asked for; use a smaller --batch-size (--accumulate keeps the size of an update), \
         or a smaller model, and see whether another program uses the GPU",
        size.div_ceil(1 << 20)
    ))
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
            "this program is built for {}, and no such GPU was found: check that its driver is \
             installed, and CUDA_VISIBLE_DEVICES. The CPU is device 0",
            built.join(", ")
        ),
        (false, _) => format!("devices are counted from 0 to {}", visible.len() - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::Alone;

    #[test]
    fn processes_of_a_host_share_its_devices() {
        let share = |index, count| share_of(8, OnHost { index, count });
        assert_eq!([share(0, 2), share(1, 2)], [0..4, 4..8]);
        assert_eq!(share(2, 3), 4..6);
        assert!(share(8, 9).is_empty());
    }

    #[test]
    fn a_gpu_without_memory_is_told_from_other_failures() {
        let of = |text: &str| out_of_memory(&anyhow!("it panicked: {text}\nbacktrace"));
        let full = of("out of device memory allocating 3145729 bytes")
            .unwrap()
            .to_string();
        assert!(
            full.starts_with("the GPU is out of memory: 4 MiB were asked for"),
            "{full}"
        );
        let large = of("can't allocate buffer of size: 1").unwrap().to_string();
        assert!(large.contains("too large for the GPU: 1 MiB"), "{large}");
        assert!(of("index out of bounds").is_none());
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
