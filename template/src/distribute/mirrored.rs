use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::Device;

use super::{Alone, ReplicaThreads, SharedMemory, Strategy, Workers};

/// Replicas in this process that hold equal weights and sum their gradients at every step.
///
/// Source: `tf.distribute.MirroredStrategy`.
pub struct MirroredStrategy {
    replicas: ReplicaThreads,
    alone: Alone,
}

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
        let ops = Arc::new(SharedMemory::new(replicas));
        Ok(MirroredStrategy {
            replicas: ReplicaThreads::start(devices, ops)?,
            alone: Alone::default(),
        })
    }
}

impl Strategy for MirroredStrategy {
    fn replicas(&self) -> &ReplicaThreads {
        &self.replicas
    }

    fn workers(&self) -> &dyn Workers {
        &self.alone
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use burn::tensor::Tensor;

    use super::*;
    use crate::distribute::{PerReplica, ReduceOp, scale_regularization_loss};

    fn mirrored(replicas: usize) -> Arc<dyn Strategy> {
        Arc::new(MirroredStrategy::new(vec![Device::flex(); replicas]).unwrap())
    }

    #[test]
    fn regularization_of_all_replicas_sums_to_itself() {
        let parts = mirrored(3).run_on_all(|replica| {
            let decay = Tensor::from_floats([6.0], replica.device());
            Ok(scale_regularization_loss(decay)?.into_scalar::<f32>())
        });
        assert_eq!(parts.unwrap(), PerReplica::from_iter([2.0; 3]));
    }

    #[test]
    fn replicas_that_differ_are_named() {
        let check = |word: fn(usize) -> u64| {
            mirrored(3)
                .run_on_all(move |replica| replica.check_equal("weights", word(replica.rank())))
        };
        assert!(check(|_| 7).is_ok());
        let error = format!("{:#}", check(|rank| u64::from(rank == 2)).unwrap_err());
        assert!(
            error.contains("weights of replica 2 differ from those of replica 0"),
            "{error}"
        );
    }

    /// Replica 1 fails while the others wait for it in an all-reduce.
    fn failure(fail: fn() -> Result<()>) -> String {
        let result = mirrored(3).run_on_all(move |replica| {
            if replica.rank() == 1 {
                fail()?;
            }
            replica.all_reduce(ReduceOp::Sum, &mut vec![1.0])
        });
        format!("{:#}", result.unwrap_err())
    }

    #[test]
    fn a_replica_that_fails_is_named_and_the_others_do_not_wait() {
        let message = failure(|| bail!("no such example"));
        assert!(message.contains("no such example"), "{message}");
        assert!(message.contains("replica 1"), "{message}");
    }

    #[test]
    fn a_replica_that_panics_is_named_and_the_others_do_not_wait() {
        let message = failure(|| panic!("index out of range"));
        assert!(
            message.contains("it panicked: index out of range"),
            "{message}"
        );
        assert!(message.contains("replica 1"), "{message}");
    }
}
