use burn::tensor::{Device, DeviceType};

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

/// The devices that replicas can use: all of the first kind of GPU that is built in and present,
/// or else the CPU, once. The CUDA driver respects `CUDA_VISIBLE_DEVICES`.
pub fn visible_devices() -> Vec<Device> {
    let of_a_kind = |kind: &DeviceType| Device::enumerate(kind.clone()).into_iter().collect();
    let mut present = GPUS
        .iter()
        .map(of_a_kind)
        .filter(|devices: &Vec<Device>| !devices.is_empty());
    present.next().unwrap_or_else(|| vec![Device::flex()])
}
