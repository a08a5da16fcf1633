use std::sync::Arc;

use anyhow::Result;
use burn::tensor::Device;

use super::{ReplicaThreads, SharedMemory, Strategy};

/// One replica on one device, with all the cores where that device is the CPU.
///
/// Source: `tf.distribute.OneDeviceStrategy`.
pub struct OneDeviceStrategy(ReplicaThreads);

impl OneDeviceStrategy {
    /// # Errors
    /// The thread of the replica cannot be started.
    pub fn new(device: Device) -> Result<Self> {
        ReplicaThreads::start(vec![device], Arc::new(SharedMemory::new(1))).map(Self)
    }
}

impl Strategy for OneDeviceStrategy {
    fn name(&self) -> &'static str {
        "one-device"
    }

    fn replicas(&self) -> &ReplicaThreads {
        &self.0
    }
}
