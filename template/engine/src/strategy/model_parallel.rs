//! Models in pipeline stages, `--strategy model-parallel`.

use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::Device;

use super::Strategy;
use crate::{
    comm::SharedMemory,
    pipeline::Pipeline,
    replica::{Part, ReplicaThreads, Role},
    workers::{Alone, Workers},
};

/// Replicas whose models are split into pipeline stages, one device each; data-parallel between replicas
/// as `MirroredStrategy`.
pub struct ModelParallelStrategy {
    replicas: ReplicaThreads,
    alone: Alone,
}

impl ModelParallelStrategy {
    /// Creates one replica per `stages` devices; each splits its shard of a batch into `micro_batches`
    /// micro-batches.
    ///
    /// # Errors
    /// The number of devices is not a multiple of `stages`, or a thread cannot be started.
    pub fn new(devices: &[Device], stages: usize, micro_batches: usize) -> Result<Self> {
        ensure!(
            stages > 0 && !devices.is_empty() && devices.len().is_multiple_of(stages),
            "{} devices cannot be divided into {stages} stages each",
            devices.len()
        );
        let of_replicas: Vec<&[Device]> = devices.chunks(stages).collect();
        let replicas = of_replicas.len();
        // The last stage runs on the thread of the replica.
        let others = of_replicas
            .iter()
            .flat_map(|devices| &devices[..stages - 1]);
        let others: Vec<Device> = others.cloned().collect();
        let part = Part {
            role: Role::Stage,
            first_rank: 0,
            replicas: others.len(),
            sharing_cores: devices.len(),
        };
        let threads = ReplicaThreads::start_part(others, part, Arc::new(SharedMemory::new(1)))?;
        let threads = Arc::new(threads);
        let pipeline = |(replica, devices): (usize, &&[Device])| {
            let first = replica * (stages - 1);
            Pipeline::new(Arc::clone(&threads), first, devices.to_vec(), micro_batches)
        };
        let part = Part {
            role: Role::Replica,
            first_rank: 0,
            replicas,
            sharing_cores: devices.len(),
        };
        let pipelines = of_replicas.iter().enumerate().map(pipeline).collect();
        let ops = Arc::new(SharedMemory::new(replicas));
        Ok(ModelParallelStrategy {
            replicas: ReplicaThreads::start_pipelines(pipelines, part, ops)?,
            alone: Alone::default(),
        })
    }
}

impl Strategy for ModelParallelStrategy {
    fn replicas(&self) -> &ReplicaThreads {
        &self.replicas
    }

    fn workers(&self) -> &dyn Workers {
        &self.alone
    }
}
