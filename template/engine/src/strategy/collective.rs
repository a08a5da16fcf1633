//! The check of the collective between the GPUs of a process, before training.

use std::{sync::mpsc::channel, time::Duration};

use anyhow::{Context, Result, ensure};
use burn::tensor::Tensor;

use crate::{
    device::read_data,
    replica::{ReplicaContext, ReplicaThreads},
};

/// Timeout of the check, far above what initialisation and one sum take.
const LIMIT: Duration = Duration::from_secs(60);

/// Checks the replicas' collective, if any, before training.
///
/// # Errors
/// It fails, or does not complete within a minute.
pub fn ensure_connected(replicas: &ReplicaThreads) -> Result<()> {
    if replicas.cross_device_ops().collective().is_none() {
        return Ok(());
    }
    ensure_connected_within(replicas, LIMIT).context(
        "NCCL does not sum over the GPUs of this process: check that its library is installed \
         (libnccl.so, of NVIDIA's package libnccl-dev), and its log with NCCL_DEBUG=INFO. \
         `--cross-device-ops host` avoids NCCL",
    )
}

fn ensure_connected_within(replicas: &ReplicaThreads, limit: Duration) -> Result<()> {
    let (sender, results) = channel();
    for replica in 0..replicas.len() {
        let sender = sender.clone();
        replicas.start_on(replica, sum_of_ones, move |result| {
            // The receiver is gone only after the timeout.
            let _ = sender.send(result);
        })?;
    }
    for _ in 0..replicas.len() {
        let sum = results.recv_timeout(limit);
        let sum = sum.with_context(|| format!("no answer within {} s", limit.as_secs()))??;
        ensure!(
            sum == replicas.len() as f32,
            "the sum of {} ones is {sum}",
            replicas.len()
        );
    }
    Ok(())
}

fn sum_of_ones(replica: &ReplicaContext) -> Result<f32> {
    let ops = replica.cross_device_ops();
    let collective = ops.collective().context("replicas are not connected")?;
    let device = replica.device().clone().without_autodiff();
    let ones = Tensor::ones([1], &device);
    ops.meet()?;
    let sum = collective.sum(replica.place(), vec![ones]).into_iter();
    let sum = read_data(sum.last().context("a sum")?)?;
    sum.iter::<f32>().next().context("the sum is empty")
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread::sleep};

    use super::*;
    use crate::comm::{
        Collective,
        collective::tests::{InMemory, connected},
    };

    /// A collective that returns its input after a delay.
    struct Broken(Duration);

    impl Collective for Broken {
        fn replicas(&self) -> usize {
            2
        }

        fn sum(&self, _place: usize, tensors: Vec<Tensor<1>>) -> Vec<Tensor<1>> {
            sleep(self.0);
            tensors
        }
    }

    #[test]
    fn a_collective_that_does_not_work_is_found_at_the_start() {
        assert!(ensure_connected(&connected(2, None)).is_ok());
        assert!(ensure_connected(&connected(2, InMemory::between(2))).is_ok());
        let limit = Duration::from_millis(200);
        let error = |collective: Arc<dyn Collective>| {
            let replicas = connected(2, Some(collective));
            let failed = ensure_connected_within(&replicas, limit);
            format!("{:#}", failed.unwrap_err())
        };
        let wrong = error(Arc::new(Broken(Duration::ZERO)));
        assert_eq!(wrong, "the sum of 2 ones is 1");
        let hangs = error(Arc::new(Broken(5 * limit)));
        assert!(hangs.starts_with("no answer within"), "{hangs}");
    }
}
