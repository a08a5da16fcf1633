use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::Device;

use super::{Alone, Part, Pipeline, ReplicaThreads, Role, SharedMemory, Strategy, Workers};

/// Replicas whose models are cut into stages, each on a device of its own; between the replicas as
/// `MirroredStrategy`.
pub struct ModelParallelStrategy {
    replicas: ReplicaThreads,
    alone: Alone,
}

impl ModelParallelStrategy {
    /// As many replicas as `devices` are for, with `stages` devices each; `micro_batches` parts of
    /// its share of a batch follow each other through them.
    ///
    /// # Errors
    /// The devices cannot be divided so, or a thread cannot be started.
    pub fn new(devices: &[Device], stages: usize, micro_batches: usize) -> Result<Self> {
        ensure!(
            stages > 0 && !devices.is_empty() && devices.len().is_multiple_of(stages),
            "{} devices cannot be divided into {stages} stages each",
            devices.len()
        );
        let of_replicas: Vec<&[Device]> = devices.chunks(stages).collect();
        let replicas = of_replicas.len();
        // The last stage of each is on the thread of the replica.
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
