use std::{env, ops::Range};

use anyhow::{Error, Result, anyhow, ensure};
#[cfg(any(feature = "vulkan", feature = "wgpu"))]
use burn::tensor::DeviceKind;
use burn::tensor::{Device, DeviceType};

use crate::{
    console::terminal,
    device::is_cpu,
    kernel_cache,
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
    kernel_cache::keep_by_default();
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
    let share = share_of(chosen.len(), workers.on_this_host())?;
    Ok(chosen[share].to_vec())
}

/// The range of `gpus` assigned to a process of its host.
///
/// # Errors
/// The host has more processes than GPUs.
fn share_of(gpus: usize, host: OnHost) -> Result<Range<usize>> {
    let each = gpus / host.count;
    let share = each * host.index..each * (host.index + 1);
    ensure!(
        !share.is_empty(),
        "{} processes on this host would share {}: start at most {gpus} here, and for more replicas give \
         --replicas N, which share a GPU in one process. Processes on one GPU take turns unless NVIDIA's MPS \
         runs, and each takes memory for itself",
        host.count,
        match gpus {
            1 => "a GPU".to_owned(),
            _ => format!("{gpus} GPUs"),
        }
    );
    Ok(share)
}

/// The error of a GPU without memory or with an old driver, with advice, else `error`.
pub fn with_advice(error: Error) -> Error {
    let advised = out_of_memory(&error).or_else(|| driver_too_old(&error));
    advised.unwrap_or(error)
}

/// The error of a GPU without memory for an allocation, with advice; `None` for other errors.
///
/// Source: the messages of `IoError::OutOfMemory` and `IoError::BufferTooBig` of CubeCL, whose types do not
/// reach the caller of an operation.
fn out_of_memory(error: &Error) -> Option<Error> {
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

/// The error of a driver that lacks a function which this program was built to call, with advice; `None` for
/// other errors.
///
/// Source: the panic of `load` in `driver/sys/mod.rs` of cudarc 0.19. Functions of the driver are called
/// `cuName`, those of other libraries `cudaName`, `cublasName` or `ncclName`.
fn driver_too_old(error: &Error) -> Option<Error> {
    let text = format!("{error:#}");
    let (_, rest) = text.split_once("Missing symbol ")?;
    let name = rest.split_once(':').map_or(rest, |(name, _)| name).trim();
    let is_of_driver = |rest: &str| rest.starts_with(|first: char| first.is_ascii_uppercase());
    name.strip_prefix("cu").filter(|rest| is_of_driver(rest))?;
    Some(anyhow!(
        "the NVIDIA driver is too old for this build, and lacks {name}: update it, or build with the variable \
         CUDARC_CUDA_VERSION, such as 12080 for drivers of CUDA 12; `kiln doctor` says which"
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
            "this program is built for {}, and no such GPU was found{}: `kiln doctor` says whether its \
             driver is installed and fits; see CUDA_VISIBLE_DEVICES, too. The CPU is device 0",
            built.join(", "),
            why_none()
        ),
        (false, _) => format!("devices are counted from 0 to {}", visible.len() - 1),
    }
}

/// The reason in parentheses, where the driver can be asked.
fn why_none() -> String {
    #[cfg(feature = "cuda")]
    return format!(" ({})", super::no_cuda::reason());
    #[cfg(not(feature = "cuda"))]
    String::new()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use burn::tensor::Tensor;

    use super::*;
    use crate::{
        replica::{read_data, without_panic},
        workers::Alone,
    };

    #[test]
    fn processes_of_a_host_share_its_devices() {
        let share = |index, count| share_of(8, OnHost { index, count }).unwrap();
        assert_eq!([share(0, 2), share(1, 2)], [0..4, 4..8]);
        assert_eq!(share(2, 3), 4..6);
    }

    #[test]
    fn processes_of_a_host_do_not_share_a_gpu() {
        let refused = |gpus, index, count| {
            let share = share_of(gpus, OnHost { index, count });
            share.unwrap_err().to_string()
        };
        let one = refused(1, 0, 2);
        assert!(
            one.starts_with(
                "2 processes on this host would share a GPU: start at most 1 here, and for more replicas give \
                 --replicas N"
            ),
            "{one}"
        );
        assert!(one.contains("NVIDIA's MPS"), "{one}");
        let several = refused(8, 8, 9);
        assert!(
            several
                .starts_with("9 processes on this host would share 8 GPUs: start at most 8 here"),
            "{several}"
        );
    }

    #[test]
    fn a_driver_that_is_too_old_is_told_from_other_failures() {
        let of = |text: &str| with_advice(anyhow!("it panicked: {text}")).to_string();
        let old = of(
            "Missing symbol cuEventElapsedTime_v2: /usr/lib/libcuda.so.1: undefined symbol: \
             cuEventElapsedTime_v2",
        );
        assert!(
            old.starts_with(
                "the NVIDIA driver is too old for this build, and lacks cuEventElapsedTime_v2: update it, or"
            ),
            "{old}"
        );
        assert!(
            old.contains("CUDARC_CUDA_VERSION") && old.contains("`kiln doctor`"),
            "{old}"
        );
        for other in [
            "Missing symbol ncclCommSplit: libnccl.so: undefined symbol: ncclCommSplit",
            "Missing symbol cudaGetDevice: libcudart.so",
            "index out of bounds",
        ] {
            assert_eq!(of(other), format!("it panicked: {other}"));
        }
        let full = of("out of device memory allocating 1 bytes");
        assert!(full.starts_with("the GPU is out of memory"), "{full}");
    }

    #[test]
    fn who_finds_no_gpu_is_sent_to_the_doctor() {
        let text = describe(&[Device::flex()]);
        assert_eq!(text.contains("`kiln doctor`"), !GPUS.is_empty(), "{text}");
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

    /// Set in the child process of the next test, as a device that failed is not for other tests.
    const IS_CHILD: &str = "KILN_TENSOR_TOO_LARGE";

    /// On a GPU, or one in software where it is asked for. The error is CubeCL's own.
    #[test]
    fn a_tensor_that_fits_no_gpu_is_told_with_its_size() {
        let devices = visible_devices();
        if is_cpu(&devices) {
            println!("skipped: no GPU");
        } else if env::var_os(IS_CHILD).is_none() {
            let name = "replica::devices::tests::a_tensor_that_fits_no_gpu_is_told_with_its_size";
            let mut child = Command::new(env::current_exe().unwrap());
            let output = child.args(["--exact", name]).env(IS_CHILD, "1").output();
            let output = output.unwrap();
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}");
        } else {
            // 256 GiB.
            #[expect(clippy::single_range_in_vec_init, reason = "one axis")]
            let first = || Tensor::<1>::zeros([1_usize << 36], &devices[0]).slice([0..1]);
            let error = without_panic("it", || read_data(first())).unwrap_err();
            let told = "262144 MiB were asked for; use a smaller --batch-size";
            assert!(error.to_string().contains(told), "{error:#}");
        }
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
