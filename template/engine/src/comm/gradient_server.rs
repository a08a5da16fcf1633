//! Gradients that are pushed instead of all-reduced.

use anyhow::Result;

use super::ExchangePrecision;

/// A server that updates the parameters for all replicas with the gradients of each: a strategy gives one to replicas
/// that do not all-reduce their gradients.
pub trait GradientServer: Send + Sync {
    /// Pushes the gradients of the replica `rank`, all values one after another, without waiting for the update. They
    /// are sent in the precision `exchange`.
    ///
    /// # Errors
    /// The process of the server is lost.
    fn push(&self, rank: usize, exchange: ExchangePrecision, gradients: Vec<f32>) -> Result<()>;
}
