use std::sync::Arc;

use anyhow::Result;
use burn::tensor::Device;

use super::{Alone, ReplicaThreads, SharedMemory, Strategy, Workers};

/// One replica on one device, with all the cores where that device is the CPU.
///
/// Source: `tf.distribute.OneDeviceStrategy`.
pub struct OneDeviceStrategy {
    replicas: ReplicaThreads,
    alone: Alone,
}

impl OneDeviceStrategy {
    /// # Errors
    /// The thread of the replica cannot be started.
    pub fn new(device: Device) -> Result<Self> {
        let ops = Arc::new(SharedMemory::new(1));
        Ok(OneDeviceStrategy {
            replicas: ReplicaThreads::start(vec![device], ops)?,
            alone: Alone::default(),
        })
    }
}

impl Strategy for OneDeviceStrategy {
    fn replicas(&self) -> &ReplicaThreads {
        &self.replicas
    }

    fn workers(&self) -> &dyn Workers {
        &self.alone
    }
}
