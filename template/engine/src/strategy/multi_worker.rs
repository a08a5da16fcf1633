use std::{
    collections::VecDeque,
    mem, slice,
    sync::{Arc, PoisonError, RwLock},
};

use anyhow::{Result, ensure};
use burn::tensor::Device;

use super::Strategy;
use crate::{
    comm::{
        CrossDeviceOps, ReduceOp, SharedMemory,
        collective::{Collective, CrossDevice, connect, ensure_connected},
        cross_device_ops::add_bucket,
    },
    replica::{Part, ReplicaThreads, Role},
    workers::{PendingSum, Workers},
};

/// Synchronous data parallelism over several processes, on one machine or many: replicas have equal
/// parameters and all-reduce gradients at every step.
///
/// Source: `tf.distribute.MultiWorkerMirroredStrategy`.
pub struct MultiWorkerMirroredStrategy {
    replicas: ReplicaThreads,
    workers: Arc<dyn Workers>,
}

impl MultiWorkerMirroredStrategy {
    /// Creates one replica per device of this process; all processes must have equally many and the same
    /// `settings`, as names and values. `cross_device` selects the all-reduce within a process.
    ///
    /// # Errors
    /// Processes differ, one is lost, or a thread cannot be started.
    pub fn new(
        devices: Vec<Device>,
        workers: Arc<dyn Workers>,
        settings: &[(&str, String)],
        cross_device: Option<CrossDevice>,
    ) -> Result<Self> {
        ensure!(!devices.is_empty(), "a worker needs at least one device");
        let mut settings = settings.to_vec();
        settings.push(("--replicas", devices.len().to_string()));
        ensure_equal(&*workers, &settings)?;
        let part = Part {
            role: Role::Replica,
            first_rank: workers.index() * devices.len(),
            replicas: workers.count() * devices.len(),
            // Processes that are not bound to cores share those of the host.
            sharing_cores: match is_bound(&*workers)? {
                true => devices.len(),
                false => devices.len() * workers.on_this_host().count,
            },
        };
        let collective = connect(&devices, cross_device)?;
        let ops = HierarchicalOps {
            first_rank: part.first_rank,
            local: SharedMemory::new(devices.len()).with_collective(collective),
            workers: Arc::clone(&workers),
            words: RwLock::default(),
        };
        let replicas = ReplicaThreads::start_part(devices, part, Arc::new(ops))?;
        ensure_connected(&replicas)?;
        Ok(MultiWorkerMirroredStrategy { replicas, workers })
    }
}

impl Strategy for MultiWorkerMirroredStrategy {
    fn replicas(&self) -> &ReplicaThreads {
        &self.replicas
    }

    fn num_replicas(&self) -> usize {
        self.workers.count() * self.replicas.len()
    }

    fn workers(&self) -> &dyn Workers {
        &*self.workers
    }
}

/// Checks that all processes have the same `settings`.
///
/// # Errors
/// A setting differs; the message names the first one.
pub fn ensure_equal(workers: &dyn Workers, settings: &[(&str, String)]) -> Result<()> {
    let own = serde_json::to_vec(settings)?;
    let all = workers.all_gather("the comparison of settings", own)?;
    let mut all_settings = Vec::new();
    for bytes in &all {
        all_settings.push(serde_json::from_slice::<Vec<(String, String)>>(bytes)?);
    }
    for (worker, other) in all_settings.iter().enumerate() {
        for ((name, first), (_, value)) in all_settings[0].iter().zip(other) {
            ensure!(
                first == value,
                "{name} differs between workers: {first} on {}, {value} on {}. Start all with the \
                 same options and data",
                workers.name(0),
                workers.name(worker)
            );
        }
        ensure!(
            other.len() == all_settings[0].len(),
            "{} and {} run different programs",
            workers.name(0),
            workers.name(worker)
        );
    }
    Ok(())
}

/// True if the processes of this host are bound to separate cores.
fn is_bound(workers: &dyn Workers) -> Result<bool> {
    // The list of allowed cores, on Linux only; elsewhere processes are not bound.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let own = status
        .lines()
        .find(|line| line.starts_with("Cpus_allowed_list"));
    let own = own.unwrap_or_default();
    let all = workers.all_gather("the exchange of cores", own.as_bytes().to_vec())?;
    let host = &workers.hosts()[workers.index()];
    let on_host = all
        .iter()
        .zip(workers.hosts())
        .filter(|(_, of)| *of == host);
    let same = on_host.filter(|(cores, _)| cores.as_slice() == own.as_bytes());
    Ok(same.count() == 1)
}

/// Hierarchical collective operations: within each process through shared memory, then between processes
/// by the first replica of each, then back to the others. The order is fixed, for bitwise reproducible
/// results.
struct HierarchicalOps {
    first_rank: usize,
    local: SharedMemory,
    workers: Arc<dyn Workers>,
    /// The last result of `all_gather`.
    words: RwLock<Vec<u64>>,
}

impl HierarchicalOps {
    /// Starts the reduction over processes of `values`, one of `buckets` buckets.
    fn start_over_workers(
        &self,
        op: ReduceOp,
        buckets: usize,
        values: Vec<f32>,
    ) -> Result<PendingSum> {
        match op {
            // A single bucket has nothing to overlap with.
            ReduceOp::Sum if buckets == 1 => Ok(PendingSum::Ready(self.workers.sum_f32(values)?)),
            ReduceOp::Sum => self.workers.start_sum_f32(values),
            ReduceOp::Mean => Ok(PendingSum::Ready(self.mean_over_workers(&values)?)),
        }
    }

    /// Finishes a reduction of the first replica and broadcasts it in this process.
    fn finish(
        &self,
        local: usize,
        mut pending: VecDeque<PendingSum>,
        buckets: &mut [Vec<f32>],
    ) -> Result<()> {
        for bucket in buckets {
            if let Some(sum) = pending.pop_front() {
                *bucket = self.workers.finish_sum_f32(sum)?;
            }
            self.local.broadcast(local, bucket)?;
        }
        Ok(())
    }

    fn mean_over_workers(&self, values: &[f32]) -> Result<Vec<f32>> {
        // In double precision, the mean of equal numbers is exact.
        let mut sums: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        self.workers.sum_f64(&mut sums)?;
        let workers = self.workers.count() as f64;
        Ok(sums.into_iter().map(|sum| (sum / workers) as f32).collect())
    }
}

impl CrossDeviceOps for HierarchicalOps {
    fn all_reduce(&self, rank: usize, op: ReduceOp, values: &mut Vec<f32>) -> Result<()> {
        self.all_reduce_buckets(rank, op, slice::from_mut(values))
    }

    fn all_reduce_buckets(
        &self,
        rank: usize,
        op: ReduceOp,
        buckets: &mut [Vec<f32>],
    ) -> Result<()> {
        let (local, count) = (rank - self.first_rank, buckets.len());
        let mut pending = VecDeque::new();
        for bucket in buckets.iter_mut() {
            self.local.all_reduce(local, op, bucket)?;
            if local == 0 {
                pending.push_back(self.start_over_workers(op, count, mem::take(bucket))?);
            }
        }
        self.finish(local, pending, buckets)
    }

    fn collective(&self) -> Option<&dyn Collective> {
        self.local.collective()
    }

    fn sum_over_workers(&self, rank: usize, buckets: &mut [Vec<f32>]) -> Result<()> {
        let (local, count) = (rank - self.first_rank, buckets.len());
        let mut pending = VecDeque::new();
        if local == 0 {
            for bucket in buckets.iter_mut() {
                pending.push_back(self.start_over_workers(
                    ReduceOp::Sum,
                    count,
                    mem::take(bucket),
                )?);
            }
        }
        self.finish(local, pending, buckets)
    }

    fn reduce_buckets(&self, rank: usize, buckets: &mut [Vec<f32>]) -> Result<()> {
        let (local, count) = (rank - self.first_rank, buckets.len());
        let others = self.local.move_to_first(local, buckets)?;
        if local > 0 {
            return Ok(());
        }
        let mut pending = VecDeque::new();
        for (place, bucket) in buckets.iter_mut().enumerate() {
            add_bucket(bucket, place, &others)?;
            pending.push_back(self.start_over_workers(ReduceOp::Sum, count, mem::take(bucket))?);
        }
        for (bucket, sum) in buckets.iter_mut().zip(pending) {
            *bucket = self.workers.finish_sum_f32(sum)?;
        }
        Ok(())
    }

    fn all_gather(&self, rank: usize, word: u64) -> Result<Vec<u64>> {
        let local = rank - self.first_rank;
        let own = self.local.all_gather(local, word)?;
        if local == 0 {
            let bytes = own.iter().flat_map(|word| word.to_le_bytes()).collect();
            let all = self
                .workers
                .all_gather("the comparison of replicas", bytes)?
                .concat();
            let words = all
                .as_chunks()
                .0
                .iter()
                .map(|bytes| u64::from_le_bytes(*bytes));
            *self.words.write().unwrap_or_else(PoisonError::into_inner) = words.collect();
        }
        // Barrier: all must read the words before the next call writes them.
        self.local.all_gather(local, 0)?;
        Ok(self
            .words
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone())
    }

    fn meet(&self) -> Result<()> {
        self.local.meet()
    }

    fn abort(&self, reason: &str) {
        self.local.abort(reason);
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use anyhow::Context;

    use super::*;
    use crate::comm::collective::tests::{InMemory, gradients};

    /// One of two processes, simulated by threads.
    struct Half {
        index: usize,
        hosts: [String; 2],
        memory: Arc<SharedMemory>,
    }

    impl Workers for Half {
        fn index(&self) -> usize {
            self.index
        }

        fn hosts(&self) -> &[String] {
            &self.hosts
        }

        fn start_sum_f32(&self, mut values: Vec<f32>) -> Result<PendingSum> {
            self.memory
                .all_reduce(self.index, ReduceOp::Sum, &mut values)?;
            Ok(PendingSum::Ready(values))
        }

        fn finish_sum_f32(&self, sum: PendingSum) -> Result<Vec<f32>> {
            match sum {
                PendingSum::Ready(sum) => Ok(sum),
                PendingSum::Coming { .. } => unreachable!("sums are ready at once"),
            }
        }

        fn sum_f64(&self, values: &mut Vec<f64>) -> Result<()> {
            let mut singles = values.iter().map(|value| *value as f32).collect();
            self.memory
                .all_reduce(self.index, ReduceOp::Sum, &mut singles)?;
            *values = singles.into_iter().map(f64::from).collect();
            Ok(())
        }

        fn all_gather(&self, _what: &'static str, bytes: Vec<u8>) -> Result<Vec<Vec<u8>>> {
            let word = |place: usize| {
                let word = bytes[place * 8..][..8].try_into().unwrap();
                self.memory.all_gather(self.index, u64::from_le_bytes(word))
            };
            let words: Vec<Vec<u64>> = (0..bytes.len() / 8).map(word).collect::<Result<_>>()?;
            let of = |process: usize| {
                let words = words.iter().map(|all| all[process].to_le_bytes());
                words.collect::<Vec<_>>().concat()
            };
            Ok((0..2).map(of).collect())
        }

        fn broadcast(&self, _what: &'static str, bytes: Vec<u8>) -> Result<Vec<u8>> {
            Ok(bytes)
        }
    }

    /// The operations of two processes with two replicas each, with or without a device collective.
    fn ops_of_two(is_connected: bool) -> [HierarchicalOps; 2] {
        let memory = Arc::new(SharedMemory::new(2));
        [0, 1].map(|index| HierarchicalOps {
            first_rank: 2 * index,
            local: match is_connected {
                true => SharedMemory::new(2).with_collective(InMemory::between(2)),
                false => SharedMemory::new(2),
            },
            workers: Arc::new(Half {
                index,
                hosts: ["a".to_owned(), "b".to_owned()],
                memory: Arc::clone(&memory),
            }),
            words: RwLock::default(),
        })
    }

    /// The results of `work` on two replicas of each of two processes, by rank.
    fn on_four<T: Send>(work: impl Fn(&HierarchicalOps, usize) -> T + Sync) -> Vec<T> {
        let (ops, work) = (&ops_of_two(false), &work);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|rank| scope.spawn(move || work(&ops[rank / 2], rank)))
                .collect();
            let values = threads.into_iter().map(|thread| thread.join().unwrap());
            values.collect()
        })
    }

    #[test]
    fn buckets_are_reduced_over_all_replicas_of_all_processes() {
        for (op, divisor) in [(ReduceOp::Sum, 1.0), (ReduceOp::Mean, 4.0)] {
            let value = |rank: usize, bucket: usize, place: usize| {
                (rank * 100 + bucket * 10 + place) as f32
            };
            let lens = [5, 1, 0, 7];
            let bucket = |rank, bucket: usize| {
                (0..lens[bucket])
                    .map(|place| value(rank, bucket, place))
                    .collect::<Vec<_>>()
            };
            let all = on_four(|ops, rank| {
                let mut buckets: Vec<_> = (0..lens.len()).map(|at| bucket(rank, at)).collect();
                ops.all_reduce_buckets(rank, op, &mut buckets).unwrap();
                buckets
            });
            let sum = |bucket: usize, place: usize| {
                (0..4).map(|rank| value(rank, bucket, place)).sum::<f32>() / divisor
            };
            let expected: Vec<Vec<f32>> = lens
                .iter()
                .enumerate()
                .map(|(bucket, len)| (0..*len).map(|place| sum(bucket, place)).collect())
                .collect();
            for buckets in all {
                assert_eq!(buckets, expected, "{op:?}");
            }
        }
    }

    #[test]
    fn buckets_are_reduced_to_the_first_replica_of_each_process() {
        let all = on_four(|ops, rank| {
            let mut buckets = [5, 1, 0, 7].map(|len| vec![rank as f32 + 1.0; len]);
            ops.reduce_buckets(rank, &mut buckets).unwrap();
            buckets
        });
        let sums = [5, 1, 0, 7].map(|len| vec![10.0; len]);
        let nothing = [0; 4].map(|_| Vec::new());
        assert_eq!(all, [sums.clone(), nothing.clone(), sums, nothing]);
    }

    #[test]
    fn what_devices_summed_is_summed_over_processes() {
        let of_process = |(index, ops): (usize, HierarchicalOps)| {
            let part = Part {
                role: Role::Replica,
                first_rank: 2 * index,
                replicas: 4,
                sharing_cores: 4,
            };
            let devices = vec![Device::flex(); 2];
            let replicas = ReplicaThreads::start_part(devices, part, Arc::new(ops)).unwrap();
            let nothing = [(), ()].into_iter().collect();
            let sums = replicas.run(nothing, |(), replica| {
                let summed = replica.reduce_gradients(gradients(replica)?)?;
                summed.context("each replica has the sums")?.to_values()
            });
            sums.unwrap().into_iter().collect::<Vec<_>>()
        };
        let processes = ops_of_two(true).into_iter().enumerate();
        let sums: Vec<_> = thread::scope(|scope| {
            let processes = processes.map(|process| scope.spawn(move || of_process(process)));
            let processes: Vec<_> = processes.collect();
            let sums = processes.into_iter().map(|process| process.join().unwrap());
            sums.collect()
        });
        // 2 + 4 + 6 + 8, twice.
        assert_eq!(sums, [0, 1].map(|_| vec![vec![20.0, 20.0, 0.0, 0.0]; 2]));
    }

    #[test]
    fn words_come_in_the_order_of_ranks() {
        let all = on_four(|ops, rank| ops.all_gather(rank, rank as u64 + 7).unwrap());
        assert_eq!(all, vec![vec![7, 8, 9, 10]; 4]);
    }
}
