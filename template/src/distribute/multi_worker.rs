use std::sync::{Arc, PoisonError, RwLock};

use anyhow::{Result, ensure};
use burn::tensor::Device;

use super::{CrossDeviceOps, Part, ReduceOp, ReplicaThreads, SharedMemory, Strategy, Workers};

/// Replicas in several processes, on one machine or many, that hold equal weights and sum their
/// gradients at every step.
///
/// Source: `tf.distribute.MultiWorkerMirroredStrategy`.
pub struct MultiWorkerMirroredStrategy {
    replicas: ReplicaThreads,
    workers: Arc<dyn Workers>,
}

impl MultiWorkerMirroredStrategy {
    /// One replica of this process for each of `devices`; all processes must have as many, and the
    /// same `settings`, each a name and a value.
    ///
    /// # Errors
    /// Processes differ, one is lost, or a thread cannot be started.
    pub fn new(
        devices: Vec<Device>,
        workers: Arc<dyn Workers>,
        settings: &[(&str, String)],
    ) -> Result<Self> {
        ensure!(!devices.is_empty(), "a worker needs at least one device");
        let mut settings = settings.to_vec();
        settings.push(("--replicas", devices.len().to_string()));
        ensure_equal(&*workers, &settings)?;
        let part = Part {
            first_rank: workers.index() * devices.len(),
            replicas: workers.count() * devices.len(),
            // Processes that are not bound to cores of their own share those of the host.
            sharing_cores: match is_bound(&*workers)? {
                true => devices.len(),
                false => devices.len() * workers.on_this_host().count,
            },
        };
        let ops = HierarchicalOps {
            first_rank: part.first_rank,
            local: SharedMemory::new(devices.len()),
            workers: Arc::clone(&workers),
            words: RwLock::default(),
        };
        let replicas = ReplicaThreads::start_part(devices, part, Arc::new(ops))?;
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

/// Makes sure that all processes have the same `settings`.
///
/// # Errors
/// They differ; the message names the first one that does.
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

/// Whether the processes of this host were bound to cores of their own.
fn is_bound(workers: &dyn Workers) -> Result<bool> {
    // Linux lists the cores that a process may run on; elsewhere nothing is bound.
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

/// Exchange in two levels: between the replicas of a process in its memory, then between processes
/// by the first replica of each, then back to the others. Always in this order, so that results
/// repeat bit for bit.
struct HierarchicalOps {
    first_rank: usize,
    local: SharedMemory,
    workers: Arc<dyn Workers>,
    /// What `all_gather` gathered last.
    words: RwLock<Vec<u64>>,
}

impl HierarchicalOps {
    fn mean_over_workers(&self, values: &mut Vec<f32>) -> Result<()> {
        // In double precision the mean of equal numbers is that number.
        let mut sums: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        self.workers.sum_f64(&mut sums)?;
        let workers = self.workers.count() as f64;
        *values = sums.into_iter().map(|sum| (sum / workers) as f32).collect();
        Ok(())
    }
}

impl CrossDeviceOps for HierarchicalOps {
    fn all_reduce(&self, rank: usize, op: ReduceOp, values: &mut Vec<f32>) -> Result<()> {
        let local = rank - self.first_rank;
        self.local.all_reduce(local, op, values)?;
        if local == 0 {
            match op {
                ReduceOp::Sum => self.workers.sum_f32(values)?,
                ReduceOp::Mean => self.mean_over_workers(values)?,
            }
        }
        self.local.broadcast(local, values)
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
        // The first to go on is not the last to come: the words stay until all are here again.
        self.local.all_gather(local, 0)?;
        Ok(self
            .words
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone())
    }

    fn abort(&self, reason: &str) {
        self.local.abort(reason);
    }
}
