//! The global batch of a step.

/// Metadata of a global batch, known on every replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchInfo {
    /// Seed of all random numbers.
    pub seed: u64,
    /// The epoch, from 1.
    pub epoch: usize,
    /// Examples before the batch in the endless stream of passes over the dataset.
    pub position: usize,
    /// Examples in the batch, over all replicas.
    pub examples: usize,
    /// Examples in all batches of the update, over all replicas.
    pub examples_in_update: usize,
    /// Batches of the update.
    pub batches_in_update: usize,
    /// Whether the batch is the last one of its update.
    pub completes_update: bool,
    /// Whether the batch is the last one of its epoch.
    pub ends_epoch: bool,
}
