//! Replicas in several processes, `--strategy multi-worker-mirrored`.

use std::{
    collections::VecDeque,
    mem, slice,
    sync::{Arc, PoisonError, RwLock},
};

use anyhow::{Result, ensure};
use burn::tensor::Device;

use super::{Strategy, collective::ensure_connected};
use crate::{
    comm::{
        CrossDeviceOps, ExchangePrecision, ReduceOp, SharedMemory,
        collective::{Collective, CrossDevice, connect},
        cross_device_ops::add_bucket,
    },
    replica::{Part, ReplicaThreads, Role},
    workers::{PendingSum, Workers, ensure_equal},
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
    /// All-reduces buckets; over processes, sums in the precision `exchange`.
    fn reduce_to_all(
        &self,
        rank: usize,
        op: ReduceOp,
        exchange: ExchangePrecision,
        buckets: &mut [Vec<f32>],
    ) -> Result<()> {
        let (local, count) = (rank - self.first_rank, buckets.len());
        let mut pending = VecDeque::new();
        for bucket in buckets.iter_mut() {
            self.local.all_reduce(local, op, bucket)?;
            if local == 0 {
                let values = mem::take(bucket);
                pending.push_back(self.start_over_workers(op, exchange, count, values)?);
            }
        }
        self.finish(local, pending, buckets)
    }

    /// Starts the reduction over processes of `values`, one of `buckets` buckets.
    fn start_over_workers(
        &self,
        op: ReduceOp,
        exchange: ExchangePrecision,
        buckets: usize,
        values: Vec<f32>,
    ) -> Result<PendingSum> {
        match op {
            ReduceOp::Sum if exchange == ExchangePrecision::Bfloat16 => {
                self.workers.start_sum_bf16(values)
            }
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
        self.reduce_to_all(rank, op, ExchangePrecision::Float32, buckets)
    }

    fn sum_gradients(
        &self,
        rank: usize,
        exchange: ExchangePrecision,
        buckets: &mut [Vec<f32>],
    ) -> Result<()> {
        self.reduce_to_all(rank, ReduceOp::Sum, exchange, buckets)
    }

    fn collective(&self) -> Option<&dyn Collective> {
        self.local.collective()
    }

    fn sum_over_workers(
        &self,
        rank: usize,
        exchange: ExchangePrecision,
        buckets: &mut [Vec<f32>],
    ) -> Result<()> {
        let (local, count) = (rank - self.first_rank, buckets.len());
        let mut pending = VecDeque::new();
        if local == 0 {
            for bucket in buckets.iter_mut() {
                pending.push_back(self.start_over_workers(
                    ReduceOp::Sum,
                    exchange,
                    count,
                    mem::take(bucket),
                )?);
            }
        }
        self.finish(local, pending, buckets)
    }

    fn reduce_buckets(
        &self,
        rank: usize,
        exchange: ExchangePrecision,
        buckets: &mut [Vec<f32>],
    ) -> Result<()> {
        let (local, count) = (rank - self.first_rank, buckets.len());
        let others = self.local.move_to_first(local, buckets)?;
        if local > 0 {
            return Ok(());
        }
        let mut pending = VecDeque::new();
        for (place, bucket) in buckets.iter_mut().enumerate() {
            add_bucket(bucket, place, &others)?;
            let values = mem::take(bucket);
            pending.push_back(self.start_over_workers(ReduceOp::Sum, exchange, count, values)?);
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

    fn begin_step(&self) {
        self.local.begin_step();
    }

    fn end_step(&self, rank: usize) {
        self.local.end_step(rank);
    }
}

#[cfg(test)]
mod tests;
