//! The pipeline of a replica whose model is split into stages.

use std::sync::Arc;

use burn::tensor::Device;

use super::ReplicaThreads;

/// The pipeline stages of one replica's model. The last stage runs on the replica's own thread, with losses
/// and metrics; each other stage has a thread of its own.
///
/// Source: Huang et al., GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism,
/// NeurIPS 2019. The last stage runs the backward pass of a micro-batch as soon as its loss is known, which
/// changes no result and keeps fewer activations: Narayanan et al., PipeDream-Flush, 2021.
#[derive(Clone)]
pub struct Pipeline {
    pub(crate) threads: Arc<ReplicaThreads>,
    /// Index of the thread of the first stage.
    pub(crate) first: usize,
    /// One per stage.
    pub(crate) devices: Vec<Device>,
    micro_batches: usize,
}

impl Pipeline {
    /// The pipeline of a replica with its stages on `devices`. All stages but the last run on `threads`,
    /// from index `first`.
    pub(crate) fn new(
        threads: Arc<ReplicaThreads>,
        first: usize,
        devices: Vec<Device>,
        micro_batches: usize,
    ) -> Self {
        Pipeline {
            threads,
            first,
            devices,
            micro_batches,
        }
    }

    /// The number of micro-batches into which a replica's shard of a batch is split, at most one per
    /// example.
    pub fn micro_batches(&self) -> usize {
        self.micro_batches
    }

    /// The device of each stage.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }
}
