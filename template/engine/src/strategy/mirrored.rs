//! Replicas in one process, `--strategy mirrored` and `remote`.

use std::sync::Arc;

use anyhow::{Result, ensure};
use burn::tensor::Device;

use super::{Strategy, collective::ensure_connected};
use crate::{
    comm::{
        SharedMemory,
        collective::{CrossDevice, connect},
    },
    replica::ReplicaThreads,
    workers::{Alone, Workers},
};

/// Synchronous data parallelism in one process: replicas have equal parameters and all-reduce gradients at
/// every step.
///
/// Source: `tf.distribute.MirroredStrategy`.
pub struct MirroredStrategy {
    replicas: ReplicaThreads,
    alone: Alone,
}

impl MirroredStrategy {
    /// Creates one replica per device; the CPU may occur several times. `cross_device` selects the gradient
    /// all-reduce between devices [default: the fastest available].
    ///
    /// # Errors
    /// `devices` is empty, does not support `cross_device`, or a thread cannot be started.
    pub fn new(devices: Vec<Device>, cross_device: Option<CrossDevice>) -> Result<Self> {
        ensure!(
            !devices.is_empty(),
            "the mirrored strategy needs at least one device"
        );
        let collective = connect(&devices, cross_device)?;
        let ops = SharedMemory::new(devices.len()).with_collective(collective);
        let replicas = ReplicaThreads::start(devices, Arc::new(ops))?;
        ensure_connected(&replicas)?;
        Ok(MirroredStrategy {
            replicas,
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
    use std::{
        sync::mpsc::channel,
        thread::{available_parallelism, sleep},
        time::Duration,
    };

    use anyhow::bail;
    use burn::tensor::Tensor;

    use burn::module::Module;

    use super::*;
    use crate::{
        comm::ReduceOp,
        data::{BatchInfo, BatchOptions, Collate, Dataset, Epoch, Remainder, Shard},
        loss::scale_regularization_loss,
        replica::ReplicaContext,
    };

    fn mirrored(replicas: usize) -> Arc<dyn Strategy> {
        Arc::new(MirroredStrategy::new(vec![Device::flex(); replicas], None).unwrap())
    }

    /// The regularisation loss of an update of several batches on 3 replicas, some without examples.
    fn regularization(examples: usize, batches: usize) -> f32 {
        let parts = mirrored(3).run_on_all(move |replica| {
            let decay = Tensor::from_floats([6.0], replica.device());
            replica.begin_batch(BatchInfo {
                seed: 0,
                epoch: 1,
                position: 0,
                examples,
                examples_in_update: examples * batches,
                batches_in_update: batches,
                completes_update: true,
                ends_epoch: true,
            });
            match replica.rank() < examples {
                true => Ok(scale_regularization_loss(decay)?.into_scalar::<f32>()),
                false => Ok(0.0),
            }
        });
        parts.unwrap().into_iter().sum::<f32>() * batches as f32
    }

    #[test]
    fn a_replica_alone_computes_on_all_cores() {
        if available_parallelism().map_or(1, usize::from) == 1 {
            return println!("skipped: there is one core");
        }
        let together = mirrored(1).run_on_all(|_| {
            let (sender, receiver) = channel();
            let wait = move || receiver.recv_timeout(Duration::from_secs(30)).is_ok();
            Ok(rayon::join(wait, move || sender.send(())).0)
        });
        let together = together.unwrap().into_iter().next();
        assert_eq!(together, Some(true), "one after the other, on one thread");
    }

    /// Reading time of an example.
    const READ: Duration = Duration::from_millis(2);

    struct Numbers;

    impl Dataset for Numbers {
        type Example = usize;

        fn len(&self) -> usize {
            9
        }

        fn get(&self, index: usize) -> Result<usize> {
            sleep(READ);
            Ok(index)
        }
    }

    #[derive(Module, Debug)]
    struct Batch {}

    impl Collate for Batch {
        type Example = usize;

        fn collate(_: Vec<usize>, _: &Device) -> Result<Self> {
            Ok(Batch {})
        }
    }

    fn distribute(strategy: &Arc<dyn Strategy>, prefetch: Option<usize>) -> Epoch<usize> {
        let options = BatchOptions {
            global_batch_size: 3,
            seed: 1,
            shuffle: false,
            remainder: Remainder::Keep,
            accumulate: 1,
            prefetch,
            training: true,
            augment: None,
        };
        let data = strategy.distribute_dataset(Arc::new(Numbers), options);
        data.unwrap().epoch(1)
    }

    fn reads_ahead(replicas: usize, prefetch: Option<usize>) -> bool {
        let batches = distribute(&mirrored(replicas), prefetch);
        matches!(batches, Epoch::Ahead(_))
    }

    #[test]
    fn the_time_that_replicas_read_is_known() {
        let reading_time = |prefetch| {
            let strategy = mirrored(2);
            for shards in distribute(&strategy, Some(prefetch)) {
                let load = |shard: Shard<usize>, _: &_| shard.load::<Batch>();
                strategy.replicas().run(shards, load).unwrap();
            }
            let time = strategy.replicas().take_reading_time();
            assert_eq!(strategy.replicas().take_reading_time(), Duration::ZERO);
            time
        };
        assert_eq!(reading_time(2), Duration::ZERO);
        // 9 examples, on two replicas.
        let (time, expected) = (reading_time(0), READ * 9 / 2);
        assert!(time >= expected, "{time:?} and not {expected:?}");
    }

    #[test]
    fn no_reader_takes_the_core_of_a_replica_unless_told_to() {
        let cores = available_parallelism().map_or(1, usize::from);
        assert!(!reads_ahead(cores, None) && !reads_ahead(cores + 1, None));
        assert!(cores == 1 || reads_ahead(cores - 1, None));
        assert!(reads_ahead(cores, Some(2)) && !reads_ahead(1, Some(0)));
    }

    #[test]
    fn regularization_of_all_replicas_sums_to_itself() {
        for examples in [1, 2, 3, 7] {
            for batches in [1, 3] {
                let sum = regularization(examples, batches);
                assert!((sum - 6.0).abs() < 1e-5, "{examples} examples: {sum}");
            }
        }
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
        // Repeated, as the other replicas fail at almost the same time.
        for _ in 0..100 {
            let message = failure(|| bail!("no such example"));
            assert_eq!(message, "replica 1 of 3 failed: no such example");
        }
    }

    #[test]
    fn a_replica_that_panics_is_named_and_the_others_do_not_wait() {
        let message = failure(|| panic!("index out of range"));
        assert_eq!(
            message,
            "replica 1 of 3 failed: it panicked: index out of range"
        );
    }

    #[test]
    fn a_reduction_that_only_some_replicas_call_is_an_error() {
        let strategy = mirrored(3);
        let all_reduce = |replica: &ReplicaContext| {
            let mut values = vec![1.0];
            replica.all_reduce(ReduceOp::Sum, &mut values)
        };
        for _ in 0..20 {
            strategy.run_on_all(all_reduce).unwrap();
        }
        let some = strategy.run_on_all(move |replica| match replica.rank() {
            1 => Ok(()),
            _ => all_reduce(replica),
        });
        let message = format!("{:#}", some.unwrap_err());
        let expected =
            " of 3 failed: replica 1 ended its step while others wait for it in a reduction";
        assert!(message.contains(expected), "{message}");
    }
}
