//! Memory of this process and of its GPUs.

use std::fs;

use burn::tensor::Device;

/// Memory in bytes; `None` where it is not known.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Resident set size of the process, on Linux only; GPU memory is not included.
    pub process: Option<u64>,
    /// Memory of the GPU of this process that uses most; `None` on the CPU, and for devices of other machines.
    pub device: Option<DeviceMemory>,
}

/// Memory of a GPU in bytes.
#[derive(Clone, Copy, Debug)]
pub struct DeviceMemory {
    /// Taken from the driver, and kept for reuse; it grows to what the training needs.
    pub reserved: u64,
    /// Of tensors at this moment.
    pub in_use: u64,
}

impl Memory {
    /// The memory of this process and `devices`. Does not wait for their queued work.
    pub fn now(devices: &[Device]) -> Self {
        let usage = devices.iter().filter_map(Device::memory_pool_usage);
        let device = usage.max_by_key(|usage| usage.bytes_reserved);
        Memory {
            process: resident_memory(),
            device: device.map(|usage| DeviceMemory {
                reserved: usage.bytes_reserved,
                in_use: usage.bytes_in_use,
            }),
        }
    }

    /// The values that are known, by name.
    pub fn named(self) -> impl Iterator<Item = (&'static str, u64)> {
        let all = [
            ("memory", self.process),
            ("device_memory", self.device.map(|device| device.reserved)),
            (
                "device_memory_in_use",
                self.device.map(|device| device.in_use),
            ),
        ];
        let all = all.into_iter();
        all.filter_map(|(name, bytes)| Some((name, bytes?)))
    }

    /// For a line on the terminal.
    pub fn text(self) -> impl Iterator<Item = String> {
        let process = self.process.map(|bytes| format!("{} MiB", bytes >> 20));
        let device = self.device;
        let device = device.map(|device| format!("{} MiB on the GPU", device.reserved >> 20));
        process.into_iter().chain(device)
    }
}

/// Source: `VmRSS` in proc_pid_status(5).
fn resident_memory() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes: u64 = line?.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use burn::tensor::Tensor;

    use super::*;
    use crate::replica::visible_devices;

    #[cfg(target_os = "linux")]
    #[test]
    fn the_memory_of_this_process_is_known() {
        let memory = resident_memory().unwrap();
        assert!((1 << 20..1 << 40).contains(&memory), "{memory}");
    }

    #[test]
    fn the_memory_of_gpus_has_room_for_their_tensors() {
        let devices = visible_devices();
        let tensor = Tensor::<1>::ones([1 << 20], &devices[0]) * 2.0; // 4 MiB
        let memory = Memory::now(&devices);
        drop(tensor);
        match memory.device {
            None => assert_eq!(devices, [Device::flex()]),
            Some(device) => {
                assert!(device.in_use >= 4 << 20, "{device:?}");
                assert!(device.reserved >= device.in_use, "{device:?}");
            }
        }
    }
}
