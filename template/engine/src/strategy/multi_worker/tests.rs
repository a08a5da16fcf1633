use std::{path::Path, sync::Mutex, thread};

use anyhow::Context;

use super::*;
use crate::{
    Options,
    comm::collective::tests::{InMemory, gradients},
    precision::{Half, LossScale, Precision},
    strategy::{MirroredStrategy, create::begin},
    test_task::{self, OVERFLOWING, PLAIN, Recipe, Trained, on_a_thread, train_here},
};

const FLOAT32: ExchangePrecision = ExchangePrecision::Float32;
const BFLOAT16: ExchangePrecision = ExchangePrecision::Bfloat16;

/// One of several processes, simulated by threads.
struct Process {
    index: usize,
    hosts: Vec<String>,
    memory: Arc<SharedMemory>,
    /// The bytes that each process brought to the last gathering.
    bytes: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Process {
    fn several(count: usize) -> Vec<Process> {
        let memory = Arc::new(SharedMemory::new(count));
        let bytes = Arc::new(Mutex::new(vec![Vec::new(); count]));
        let process = |index| Process {
            index,
            hosts: (0..count).map(|index| format!("host-{index}")).collect(),
            memory: Arc::clone(&memory),
            bytes: Arc::clone(&bytes),
        };
        (0..count).map(process).collect()
    }
}

impl Workers for Process {
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

    fn start_sum_bf16(&self, mut values: Vec<f32>) -> Result<PendingSum> {
        BFLOAT16.round(slice::from_mut(&mut values));
        let mut sum = self.sum_f32(values)?;
        BFLOAT16.round(slice::from_mut(&mut sum));
        Ok(PendingSum::Ready(sum))
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
        self.bytes.lock().unwrap()[self.index] = bytes;
        self.memory.meet()?;
        let all = self.bytes.lock().unwrap().clone();
        self.memory.meet()?;
        Ok(all)
    }

    fn broadcast(&self, what: &'static str, bytes: Vec<u8>) -> Result<Vec<u8>> {
        Ok(self.all_gather(what, bytes)?.swap_remove(0))
    }

    fn fail(&self, reason: &str) -> bool {
        self.memory.abort(reason);
        true
    }
}

/// The operations of two processes with two replicas each, with or without a device collective.
fn ops_of_two(is_connected: bool) -> [HierarchicalOps; 2] {
    let mut processes = Process::several(2).into_iter();
    [0, 1].map(|index| HierarchicalOps {
        first_rank: 2 * index,
        local: match is_connected {
            true => SharedMemory::new(2).with_collective(InMemory::between(2)),
            false => SharedMemory::new(2),
        },
        workers: Arc::new(processes.next().unwrap()),
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
        let value =
            |rank: usize, bucket: usize, place: usize| (rank * 100 + bucket * 10 + place) as f32;
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
        ops.reduce_buckets(rank, FLOAT32, &mut buckets).unwrap();
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

/// The sum of values of bfloat16 on four replicas, with the partial sums of each process: 256 and 1, and 1 and 1.
#[test]
fn processes_send_rounded_sums_of_their_replicas() {
    let value = |rank| [256.0, 1.0, 1.0, 1.0][rank];
    for (exchange, sum) in [(FLOAT32, 259.0), (BFLOAT16, 258.0)] {
        let to_all = on_four(|ops, rank| {
            let mut buckets = [vec![value(rank)], vec![value(rank); 3]];
            ops.sum_gradients(rank, exchange, &mut buckets).unwrap();
            buckets
        });
        assert_eq!(to_all, [0; 4].map(|_| [vec![sum], vec![sum; 3]]));
        let to_first = on_four(|ops, rank| {
            let mut buckets = [vec![value(rank)], vec![value(rank); 3]];
            ops.reduce_buckets(rank, exchange, &mut buckets).unwrap();
            buckets
        });
        assert_eq!([&to_first[0], &to_first[2]], [&to_all[0]; 2]);
    }
    // Other sums, such as those of a model's own step, are not rounded.
    let others = on_four(|ops, rank| {
        let mut values = vec![value(rank)];
        ops.all_reduce(rank, ReduceOp::Sum, &mut values).unwrap();
        values
    });
    assert_eq!(others, [0; 4].map(|_| [259.0]));
}

/// Trains with a replica in each of `count` processes; returns what is left of each.
fn train_processes(count: usize, recipe: Recipe, output: &Path, words: &[&str]) -> Vec<Trained> {
    let folder = output.to_string_lossy();
    let words = [words, &["--output-dir", &*folder, "--batch-size", "4"]].concat();
    let options = &test_task::options(&words);
    let train = |process: Process| {
        let workers: Arc<dyn Workers> = Arc::new(process);
        let trained = || {
            let devices = vec![Device::flex()];
            let workers = Arc::clone(&workers);
            let strategy = MultiWorkerMirroredStrategy::new(devices, workers, &[], None)?;
            train_on(Arc::new(strategy), options, recipe)
        };
        let trained = trained();
        if let Err(error) = &trained {
            workers.fail(&format!("{error:#}"));
        }
        trained
    };
    thread::scope(|scope| {
        let processes = Process::several(count).into_iter();
        let threads: Vec<_> = processes
            .map(|process| scope.spawn(move || train(process).unwrap()))
            .collect();
        let trained = threads.into_iter().map(|thread| thread.join().unwrap());
        trained.collect()
    })
}

fn train_on(strategy: Arc<dyn Strategy>, options: &Options, recipe: Recipe) -> Result<Trained> {
    let half = (options.precision == Precision::Float16).then_some(Half::Float16);
    begin(&strategy, options, half)?;
    test_task::register(&strategy, options)?;
    train_here(&strategy, options, recipe)
}

/// Trains in three processes with a replica each, and in one process with three, all on the CPU: the bits of a
/// GPU depend on the kernels that tuning chose.
fn train_both(recipe: Recipe, options: &[&str]) -> [Vec<Trained>; 2] {
    let folder = tempfile::tempdir().unwrap();
    let options = [options, &["--epochs", "2"]].concat();
    let processes = train_processes(3, recipe, &folder.path().join("processes"), &options);
    let words = ["--replicas", "3", "--batch-size", "4"];
    let words = [&words[..], &options].concat();
    let threads = on_a_thread(&folder.path().join("threads"), &words, |options| {
        let strategy = MirroredStrategy::new(vec![Device::flex(); 3], None)?;
        train_on(Arc::new(strategy), options, recipe)
    });
    [processes, vec![threads.unwrap()]]
}

#[test]
fn processes_and_threads_train_to_the_same_bits() {
    let mut ends = Vec::new();
    for exchange in ["float32", "bfloat16"] {
        let [processes, threads] = train_both(PLAIN, &["--exchange-precision", exchange]);
        for process in &processes {
            assert_eq!(process.hashes, threads[0].hashes, "{exchange}");
            assert_eq!(process.saved, threads[0].saved, "{exchange}");
        }
        ends.push(threads[0].hashes.clone());
    }
    assert_ne!(ends[0], ends[1], "bfloat16 rounds");
}

#[test]
fn an_overflow_in_one_process_skips_the_update_in_all() {
    for exchange in ["float32", "bfloat16"] {
        let options = ["--precision", "float16", "--exchange-precision", exchange];
        let [processes, threads] = train_both(OVERFLOWING, &options);
        let state = threads[0].saved.1;
        let expected = |state: LossScale| (state.scale, state.skipped) == (16_384.0, 2);
        assert!(state.is_some_and(expected), "{state:?}");
        for process in &processes {
            assert_eq!(process.scales, [state]);
            assert_eq!(process.hashes, threads[0].hashes);
            assert_eq!(process.saved, threads[0].saved);
        }
    }
}
