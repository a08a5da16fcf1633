use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::Device;

use super::{ReplicaThreads, SharedMemory, Strategy};

/// Replicas in this process that hold equal weights and sum their gradients at every step.
///
/// Source: `tf.distribute.MirroredStrategy`.
pub struct MirroredStrategy(ReplicaThreads);

impl MirroredStrategy {
    /// One replica for each of `devices`; the CPU may be named several times.
    ///
    /// # Errors
    /// No device, or a thread cannot be started.
    pub fn new(devices: Vec<Device>) -> Result<Self> {
        ensure!(
            !devices.is_empty(),
            "the mirrored strategy needs at least one device"
        );
        let replicas = devices.len();
        ReplicaThreads::start(devices, Arc::new(SharedMemory::new(replicas))).map(Self)
    }
}

impl Strategy for MirroredStrategy {
    fn name(&self) -> &'static str {
        "mirrored"
    }

    fn replicas(&self) -> &ReplicaThreads {
        &self.0
    }
}
