//! A single replica, `--strategy one-device`.

use std::sync::Arc;

use anyhow::Result;
use burn::tensor::Device;

use super::Strategy;
use crate::{
    comm::SharedMemory,
    replica::ReplicaThreads,
    workers::{Alone, Workers},
};

/// One replica on one device, with all cores if that is the CPU.
///
/// Source: `tf.distribute.OneDeviceStrategy`.
pub struct OneDeviceStrategy {
    replicas: ReplicaThreads,
    alone: Alone,
}

impl OneDeviceStrategy {
    /// Creates the replica on `device`.
    ///
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
