//! All-reduce between the GPUs of a process, without a copy through host memory.

use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::{
    Device, Tensor,
    distributed::{CollectiveTensor, ReduceOperation, all_reduce},
};
use clap::ValueEnum;

/// The gradient all-reduce between the GPUs of a process.
///
/// Source: `cross_device_ops` of `tf.distribute.MirroredStrategy`.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossDevice {
    /// From GPU to GPU; NVIDIA only.
    Nccl,
    /// Through host memory.
    Host,
}

/// Sums tensors over the replicas of a process on their devices.
pub trait Collective: Send + Sync {
    /// Number of replicas.
    fn replicas(&self) -> usize;

    /// Sums `tensors` over all replicas; bitwise equal on all. Each replica calls this from its `place`,
    /// with tensors of the same shapes, and blocks until all have, without a timeout.
    fn sum(&self, place: usize, tensors: Vec<Tensor<1>>) -> Vec<Tensor<1>>;
}

/// The collective between the replicas on `devices`; `None` for exchange through host memory. Default is
/// NCCL if there are several CUDA GPUs.
///
/// # Errors
/// NCCL is `wanted` without several CUDA GPUs.
pub fn connect(
    devices: &[Device],
    wanted: Option<CrossDevice>,
) -> Result<Option<Arc<dyn Collective>>> {
    let are_gpus = are_several_cuda_gpus(devices);
    ensure!(
        are_gpus || wanted != Some(CrossDevice::Nccl),
        "--cross-device-ops nccl is for several CUDA GPUs in a process, one per replica, and this process \
         has {devices:?}: omit the option, build with `--features cuda`, or name the GPUs with --devices"
    );
    if !are_gpus || wanted == Some(CrossDevice::Host) {
        return Ok(None);
    }
    let devices = devices.to_vec();
    Ok(Some(Arc::new(Nccl { devices })))
}

// NCCL supports Linux only.
#[cfg(all(feature = "cuda", target_os = "linux"))]
fn are_several_cuda_gpus(devices: &[Device]) -> bool {
    use burn::tensor::DeviceType;

    let present: Vec<Device> = Device::enumerate(DeviceType::Cuda).into_iter().collect();
    let mut places = devices.iter().enumerate();
    devices.len() > 1
        && places.all(|(at, device)| present.contains(device) && !devices[..at].contains(device))
}

#[cfg(not(all(feature = "cuda", target_os = "linux")))]
fn are_several_cuda_gpus(_: &[Device]) -> bool {
    false
}

/// NVIDIA's collective communications library, called through Burn.
struct Nccl {
    devices: Vec<Device>,
}

impl Collective for Nccl {
    fn replicas(&self) -> usize {
        self.devices.len()
    }

    fn sum(&self, _place: usize, tensors: Vec<Tensor<1>>) -> Vec<Tensor<1>> {
        let begin = |tensor| all_reduce(tensor, ReduceOperation::Sum, self.devices.clone());
        // Start all before waiting for the first.
        let begun: Vec<_> = tensors.into_iter().map(begin).collect();
        begun.into_iter().map(CollectiveTensor::resolve).collect()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use anyhow::{Context, bail};
    use burn::{
        module::{Module, Param},
        optim::GradientsParams,
    };

    use super::*;
    use crate::{
        comm::{CrossDeviceOps, ExchangePrecision, ReduceOp, SharedMemory},
        optim::{FlatGradients, Gradients},
        replica::{ReplicaContext, ReplicaThreads},
        strategy::collective::ensure_connected,
    };

    /// A stand-in for NCCL, through host memory.
    pub struct InMemory(SharedMemory, usize);

    impl InMemory {
        pub fn between(replicas: usize) -> Option<Arc<dyn Collective>> {
            Some(Arc::new(InMemory(SharedMemory::new(replicas), replicas)))
        }
    }

    impl Collective for InMemory {
        fn replicas(&self) -> usize {
            self.1
        }

        fn sum(&self, place: usize, tensors: Vec<Tensor<1>>) -> Vec<Tensor<1>> {
            let sum = |tensor: Tensor<1>| {
                let device = tensor.device();
                let mut values = tensor.into_data().iter().collect();
                let summed = self.0.all_reduce(place, ReduceOp::Sum, &mut values);
                summed.unwrap();
                Tensor::from_floats(values.as_slice(), &device)
            };
            tensors.into_iter().map(sum).collect()
        }
    }

    #[derive(Module, Debug)]
    struct Weights {
        first: Param<Tensor<1>>,
        unused: Param<Tensor<2>>,
    }

    /// Gradients on this replica's device: 2 * rank + 2, and zeros.
    pub fn gradients(replica: &ReplicaContext) -> Result<FlatGradients> {
        gradients_of(replica, 2.0 * replica.rank() as f32 + 2.0)
    }

    /// Gradients on this replica's device: twice `value`, and zeros.
    fn gradients_of(replica: &ReplicaContext, value: f32) -> Result<FlatGradients> {
        let (device, weight) = (replica.device(), value / 2.0);
        let weights = Weights {
            first: Param::from_tensor(Tensor::from_floats([weight, weight], device)),
            unused: Param::from_tensor(Tensor::ones([2, 1], device)),
        };
        let loss = weights.first.val().square().sum();
        let gradients = GradientsParams::from_grads(loss.backward(), &weights);
        FlatGradients::on_devices(&weights, Gradients::new().with(gradients))
    }

    /// Replicas on the CPU, connected by `collective`.
    pub fn connected(replicas: usize, collective: Option<Arc<dyn Collective>>) -> ReplicaThreads {
        let ops = SharedMemory::new(replicas).with_collective(collective);
        ReplicaThreads::start(vec![Device::flex(); replicas], Arc::new(ops)).unwrap()
    }

    fn run<T: Send + 'static>(
        replicas: &ReplicaThreads,
        step: impl Fn(&ReplicaContext) -> Result<T> + Clone + Send + 'static,
    ) -> Result<Vec<T>> {
        let nothing = (0..replicas.len()).map(|_| ()).collect();
        let outputs = replicas.run(nothing, move |(), replica| step(replica))?;
        Ok(outputs.into_iter().collect())
    }

    #[test]
    fn gradients_are_summed_on_their_devices() {
        let replicas = connected(3, InMemory::between(3));
        let sums = run(&replicas, |replica| {
            let summed = replica.reduce_gradients(gradients(replica)?)?;
            let mut summed = summed.context("each replica has the sums")?;
            ensure!(summed.are_on_devices(), "they came to the host");
            Ok((summed.global_norm(), summed.to_values()?))
        });
        // 2 + 4 + 6, twice.
        for (norm, values) in sums.unwrap() {
            assert_eq!(values, [12.0, 12.0, 0.0, 0.0]);
            assert!((norm - 288_f64.sqrt()).abs() < 1e-6, "{norm}");
        }
    }

    #[test]
    fn gradients_are_rounded_on_their_devices() {
        for (exchange, expected) in [
            (ExchangePrecision::Float32, 256.0 + 1.001 + 2.001),
            // 259 is a tie.
            (ExchangePrecision::Bfloat16, 260.0),
        ] {
            let replicas = connected(3, InMemory::between(3));
            let sums = run(&replicas, move |replica| {
                replica.set_exchange(exchange);
                let value = [256.0, 1.001, 2.001][replica.rank()];
                let summed = replica.reduce_gradients(gradients_of(replica, value)?)?;
                let mut summed = summed.context("each replica has the sums")?;
                ensure!(summed.are_on_devices(), "they came to the host");
                Ok((summed.global_norm(), summed.to_values()?))
            });
            for (norm, values) in sums.unwrap() {
                assert_eq!(values, [expected, expected, 0.0, 0.0]);
                let expected = f64::from(expected) * 2_f64.sqrt();
                assert!((norm - expected).abs() < 1e-4, "{norm}, not {expected}");
            }
        }
    }

    #[test]
    fn a_replica_that_failed_is_not_waited_for() {
        let replicas = connected(2, InMemory::between(2));
        let failed = run(&replicas, |replica| {
            let gradients = gradients(replica)?;
            if replica.rank() == 1 {
                bail!("no more memory");
            }
            replica.reduce_gradients(gradients)
        });
        let message = format!("{:#}", failed.err().unwrap());
        assert_eq!(message, "replica 1 of 2 failed: no more memory");
    }

    #[test]
    fn without_gpus_nccl_says_what_to_do() {
        let devices = vec![Device::flex(); 2];
        assert!(connect(&devices, None).unwrap().is_none());
        assert!(
            connect(&devices, Some(CrossDevice::Host))
                .unwrap()
                .is_none()
        );
        let refused = connect(&devices, Some(CrossDevice::Nccl)).err().unwrap();
        assert!(
            refused.to_string().contains("several CUDA GPUs"),
            "{refused}"
        );
        // Burn's error if the library or the GPUs are missing.
        let replicas = connected(2, Some(Arc::new(Nccl { devices })));
        let failed = format!("{:#}", ensure_connected(&replicas).unwrap_err());
        assert!(failed.contains("--cross-device-ops host"), "{failed}");
        assert!(failed.contains("it panicked"), "{failed}");
    }
}
