//! Devices: whether one is the CPU, and reads of values from them.

mod read;

use burn::tensor::Device;

pub use read::{read_all, read_data, reads};
pub(crate) use read::{set_updates_between_reads, updates_between_reads};

/// True for the CPU, which any number of replicas can share.
pub fn is_cpu(devices: &[Device]) -> bool {
    devices.len() == 1 && devices[0] == Device::flex()
}
