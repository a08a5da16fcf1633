//! Collective operations between replicas, and those between the threads of a process.

use std::{
    mem,
    ops::Range,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Result, ensure};
use kiln_kernels::{
    elementwise::add,
    threads::{PIECE, on_all_threads},
};
use rayon::prelude::*;

use super::{
    collective::Collective, exchange::ExchangePrecision, queues::Queues, rendezvous::Rendezvous,
};

/// A reduction over replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReduceOp {
    /// The elementwise sum.
    Sum,
    /// The elementwise mean.
    Mean,
}

/// Collective operations between replicas. Every replica must call the same operations in the same
/// order.
pub trait CrossDeviceOps: Send + Sync {
    /// Reduces `values` elementwise over all replicas, in place; bitwise equal on all.
    ///
    /// # Errors
    /// A replica failed, or brought another number of values.
    fn all_reduce(&self, rank: usize, op: ReduceOp, values: &mut Vec<f32>) -> Result<()>;

    /// [`all_reduce`](Self::all_reduce) of each bucket, in order.
    ///
    /// # Errors
    /// As `all_reduce`.
    fn all_reduce_buckets(
        &self,
        rank: usize,
        op: ReduceOp,
        buckets: &mut [Vec<f32>],
    ) -> Result<()> {
        let mut buckets = buckets.iter_mut();
        buckets.try_for_each(|bucket| self.all_reduce(rank, op, bucket))
    }

    /// Sums each bucket over all replicas, to all of them. Processes send values and sums in the precision
    /// `exchange`.
    ///
    /// # Errors
    /// As `all_reduce`.
    fn sum_gradients(
        &self,
        rank: usize,
        _exchange: ExchangePrecision,
        buckets: &mut [Vec<f32>],
    ) -> Result<()> {
        self.all_reduce_buckets(rank, ReduceOp::Sum, buckets)
    }

    /// Sums each bucket over all replicas, to the first replica of each process. The sums are bitwise equal
    /// to those of `sum_gradients`; the other replicas' buckets are emptied.
    ///
    /// # Errors
    /// As `all_reduce`.
    fn reduce_buckets(
        &self,
        rank: usize,
        exchange: ExchangePrecision,
        buckets: &mut [Vec<f32>],
    ) -> Result<()>;

    /// The collective between the devices of this process, if any.
    fn collective(&self) -> Option<&dyn Collective> {
        None
    }

    /// Sums buckets over processes, to all replicas. The first replica of each process passes the sum over
    /// its own replicas. Processes send values and sums in the precision `exchange`.
    ///
    /// # Errors
    /// A replica failed.
    fn sum_over_workers(
        &self,
        _rank: usize,
        _exchange: ExchangePrecision,
        _buckets: &mut [Vec<f32>],
    ) -> Result<()> {
        Ok(())
    }

    /// Gathers one word per replica on every replica, by rank.
    ///
    /// # Errors
    /// A replica failed.
    fn all_gather(&self, rank: usize, word: u64) -> Result<Vec<u64>>;

    /// Barrier of the replicas of this process.
    ///
    /// # Errors
    /// A replica failed.
    fn meet(&self) -> Result<()>;

    /// Fails all waiting replicas with the error `reason`.
    fn abort(&self, reason: &str);

    /// Begins a step of all replicas of this process.
    fn begin_step(&self);

    /// Says that the replica `rank` has ended its step. Replicas of this process that wait for it fail, as it
    /// will not come.
    fn end_step(&self, rank: usize);
}

/// Collective operations between the threads of one process.
///
/// Each replica sums one slice over all replicas in the order of ranks (reduce-scatter), then copies the
/// other slices (all-gather): the result does not depend on timing. If replicas share an update, the
/// others move their values to the first one, which adds them in the same order.
pub struct SharedMemory {
    meeting: Rendezvous,
    contributions: Vec<RwLock<Vec<f32>>>,
    reduced: Vec<RwLock<Vec<f32>>>,
    /// The buckets from each replica to the first one, which may lag behind.
    handed: Queues<Vec<Vec<f32>>>,
    words: Vec<AtomicU64>,
    collective: Option<Arc<dyn Collective>>,
}

impl SharedMemory {
    /// Creates the operations between `replicas` threads.
    pub fn new(replicas: usize) -> Self {
        SharedMemory {
            collective: None,
            meeting: Rendezvous::new(replicas),
            contributions: (0..replicas).map(|_| RwLock::default()).collect(),
            reduced: (0..replicas).map(|_| RwLock::default()).collect(),
            handed: Queues::new(replicas),
            words: (0..replicas).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Adds a collective between the replicas' devices.
    #[must_use]
    pub fn with_collective(mut self, collective: Option<Arc<dyn Collective>>) -> Self {
        self.collective = collective;
        self
    }

    /// Broadcasts the values of the first replica.
    ///
    /// # Errors
    /// A replica failed.
    pub fn broadcast(&self, rank: usize, values: &mut Vec<f32>) -> Result<()> {
        if self.contributions.len() == 1 {
            return Ok(());
        }
        let first = &self.contributions[0];
        if rank == 0 {
            *first.write().unwrap_or_else(PoisonError::into_inner) = mem::take(values);
        }
        self.meeting.wait()?;
        if rank > 0 {
            values.clone_from(&read(first));
        }
        self.meeting.wait()?;
        if rank == 0 {
            *values = mem::take(&mut *first.write().unwrap_or_else(PoisonError::into_inner));
        }
        Ok(())
    }

    /// Moves the buckets of all other replicas to the first one, in the order of ranks.
    ///
    /// # Errors
    /// A replica failed.
    pub fn move_to_first(
        &self,
        rank: usize,
        buckets: &mut [Vec<f32>],
    ) -> Result<Vec<Vec<Vec<f32>>>> {
        if rank > 0 {
            let own = buckets.iter_mut().map(mem::take).collect();
            self.handed.push(rank, own);
        }
        self.meeting.wait()?;
        let others = match rank {
            0 => 1..self.handed.len(),
            _ => 0..0,
        };
        let oldest = others.map(|other| self.handed.pop(other).unwrap_or_default());
        Ok(oldest.collect())
    }

    /// The part of `len` values that replica `rank` sums.
    fn slice_of(&self, rank: usize, len: usize) -> Range<usize> {
        let replicas = self.contributions.len();
        len * rank / replicas..len * (rank + 1) / replicas
    }

    fn reduce_slice(&self, rank: usize, op: ReduceOp) -> Result<()> {
        let contributions: Vec<_> = self.contributions.iter().map(read).collect();
        let len = contributions[0].len();
        for (other, values) in contributions.iter().enumerate() {
            ensure_equal_len(len, other, values.len())?;
        }
        let slice = self.slice_of(rank, len);
        let mut sum = self.reduced[rank]
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        sum.clear();
        let first = &contributions[0][slice.clone()];
        // The first two in one pass: memory traffic bounds the time.
        let second = &contributions[1][slice.clone()];
        sum.extend(
            first
                .iter()
                .zip(second)
                .map(|(first, second)| first + second),
        );
        for values in &contributions[2..] {
            add(&mut sum, &values[slice.clone()]);
        }
        if op == ReduceOp::Mean {
            let replicas = contributions.len() as f32;
            for (place, total) in sum.iter_mut().enumerate() {
                let value_of = |values: &RwLockReadGuard<'_, Vec<f32>>| values[slice.start + place];
                // The mean of equal values is that value; a division could round.
                if contributions
                    .iter()
                    .any(|values| value_of(values) != first[place])
                {
                    *total /= replicas;
                } else {
                    *total = first[place];
                }
            }
        }
        Ok(())
    }
}

impl CrossDeviceOps for SharedMemory {
    fn all_reduce(&self, rank: usize, op: ReduceOp, values: &mut Vec<f32>) -> Result<()> {
        if self.contributions.len() == 1 {
            return Ok(());
        }
        let own = &self.contributions[rank];
        *own.write().unwrap_or_else(PoisonError::into_inner) = mem::take(values);
        self.meeting.wait()?;
        self.reduce_slice(rank, op)?;
        self.meeting.wait()?;
        // Contributions are no longer read; slices stay until the next meeting.
        *values = mem::take(&mut *own.write().unwrap_or_else(PoisonError::into_inner));
        for (other, slice) in self.reduced.iter().enumerate() {
            let range = self.slice_of(other, values.len());
            values[range].copy_from_slice(&read(slice));
        }
        Ok(())
    }

    fn reduce_buckets(
        &self,
        rank: usize,
        _exchange: ExchangePrecision,
        buckets: &mut [Vec<f32>],
    ) -> Result<()> {
        let others = self.move_to_first(rank, buckets)?;
        // In one batch: waking a thread takes as long as adding one bucket.
        on_all_threads(buckets.iter().map(Vec::len).sum(), || {
            let buckets = buckets.par_iter_mut().enumerate();
            buckets.try_for_each(|(place, bucket)| add_bucket(bucket, place, &others))
        })
    }

    fn collective(&self) -> Option<&dyn Collective> {
        self.collective.as_deref()
    }

    fn all_gather(&self, rank: usize, word: u64) -> Result<Vec<u64>> {
        self.words[rank].store(word, Ordering::Release);
        self.meeting.wait()?;
        let words = self
            .words
            .iter()
            .map(|word| word.load(Ordering::Acquire))
            .collect();
        // Barrier: all must read this word before the next one is written.
        self.meeting.wait()?;
        Ok(words)
    }

    fn meet(&self) -> Result<()> {
        self.meeting.wait()
    }

    fn abort(&self, reason: &str) {
        self.meeting.abort(reason);
    }

    fn begin_step(&self) {
        self.meeting.begin();
    }

    fn end_step(&self, rank: usize) {
        self.meeting.leave(rank);
    }
}

/// Adds bucket number `place` of all `others`, in the order of ranks.
///
/// # Errors
/// A replica brought another number of values.
pub(crate) fn add_bucket(sums: &mut [f32], place: usize, others: &[Vec<Vec<f32>>]) -> Result<()> {
    for (other, buckets) in others.iter().enumerate() {
        ensure_equal_len(
            sums.len(),
            other + 1,
            buckets.get(place).map_or(0, Vec::len),
        )?;
    }
    on_all_threads(sums.len(), || {
        let pieces = sums.par_chunks_mut(PIECE).enumerate();
        pieces.for_each(|(piece, sums)| {
            for buckets in others {
                add(sums, &buckets[place][piece * PIECE..]);
            }
        });
    });
    Ok(())
}

fn ensure_equal_len(len: usize, other: usize, len_of_other: usize) -> Result<()> {
    ensure!(
        len == len_of_other,
        "replicas do not agree on what to reduce: replica 0 brings {len} values, replica {other} \
         brings {len_of_other}"
    );
    Ok(())
}

fn read(values: &RwLock<Vec<f32>>) -> RwLockReadGuard<'_, Vec<f32>> {
    values.read().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    const FLOAT32: ExchangePrecision = ExchangePrecision::Float32;

    /// Integers in [-100, 100] by rank and index; their sums are exact in f32.
    fn integer(rank: usize, place: usize) -> f32 {
        ((rank * 7_919 + place * 104_729) % 201) as f32 - 100.0
    }

    fn all_reduce_on_threads(replicas: usize, len: usize, op: ReduceOp) -> Vec<Vec<f32>> {
        let ops = &SharedMemory::new(replicas);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..replicas)
                .map(|rank| {
                    scope.spawn(move || {
                        let mut values = (0..len).map(|place| integer(rank, place)).collect();
                        ops.all_reduce(rank, op, &mut values).unwrap();
                        values
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap())
                .collect()
        })
    }

    #[test]
    fn all_reduce_is_exact_for_every_length_around_a_slice_boundary() {
        for replicas in 1..=8 {
            let lengths = (0..=2 * replicas + 1).chain([1_023, 1_024, 1_025, 65_537]);
            for len in lengths {
                let expected: Vec<f32> = (0..len)
                    .map(|place| (0..replicas).map(|rank| integer(rank, place)).sum())
                    .collect();
                for values in all_reduce_on_threads(replicas, len, ReduceOp::Sum) {
                    assert_eq!(values, expected, "{replicas} replicas, {len} values");
                }
            }
        }
    }

    #[test]
    fn buckets_are_reduced_to_the_first_replica() {
        let lengths = [5, 0, 3 * PIECE + 1];
        let bucket = |rank: usize, len| -> Vec<f32> {
            let values = (0..len).map(|place| integer(rank, place));
            values.collect()
        };
        for replicas in 1..=5 {
            let ops = &SharedMemory::new(replicas);
            let reduce = |rank: usize| {
                // Repeated, as a replica may run ahead.
                for _ in 0..9 {
                    let mut buckets = lengths.map(|len| vec![rank as f32; len]);
                    ops.reduce_buckets(rank, FLOAT32, &mut buckets).unwrap();
                }
                let mut buckets = lengths.map(|len| bucket(rank, len));
                ops.reduce_buckets(rank, FLOAT32, &mut buckets).unwrap();
                buckets
            };
            let all: Vec<_> = thread::scope(|scope| {
                let threads: Vec<_> = (0..replicas)
                    .map(|rank| scope.spawn(move || reduce(rank)))
                    .collect();
                let buckets = threads.into_iter().map(|thread| thread.join().unwrap());
                buckets.collect()
            });
            let sum = |place| (0..replicas).map(|rank| integer(rank, place)).sum();
            assert_eq!(
                all[0],
                lengths.map(|len| (0..len).map(sum).collect::<Vec<f32>>())
            );
            for others in &all[1..] {
                assert!(others.iter().all(Vec::is_empty));
            }
        }
    }

    #[test]
    fn mean_divides_the_sum_by_the_replicas() {
        let expected = (integer(0, 0) + integer(1, 0)) / 2.0;
        assert_eq!(
            all_reduce_on_threads(2, 1, ReduceOp::Mean),
            [[expected], [expected]]
        );
        // In f32, 3 * 0.1 / 3 differs from 0.1.
        let ops = &SharedMemory::new(3);
        thread::scope(|scope| {
            for rank in 0..3 {
                scope.spawn(move || {
                    let mut values = vec![0.1];
                    ops.all_reduce(rank, ReduceOp::Mean, &mut values).unwrap();
                    assert_eq!(values, [0.1]);
                });
            }
        });
    }

    #[test]
    fn replicas_that_bring_different_numbers_of_values_are_told() {
        let ops = &SharedMemory::new(2);
        let errors = thread::scope(|scope| {
            let reduce = |rank: usize| {
                move || {
                    ops.all_reduce(rank, ReduceOp::Sum, &mut vec![0.0; rank])
                        .unwrap_err()
                }
            };
            [scope.spawn(reduce(0)), scope.spawn(reduce(1))].map(|thread| thread.join().unwrap())
        });
        assert!(
            errors[0].to_string().contains("replica 1 brings 1"),
            "{}",
            errors[0]
        );
    }

    #[test]
    fn a_replica_that_hands_over_another_number_of_values_is_named() {
        let ops = &SharedMemory::new(2);
        let results = thread::scope(|scope| {
            let reduce = |rank: usize| {
                move || ops.reduce_buckets(rank, FLOAT32, &mut [vec![0.0; 3], vec![0.0; 4 + rank]])
            };
            [scope.spawn(reduce(0)), scope.spawn(reduce(1))].map(|thread| thread.join().unwrap())
        });
        let error = results[0].as_ref().unwrap_err().to_string();
        let expected = "replica 0 brings 4 values, replica 1 brings 5";
        assert!(error.ends_with(expected), "{error}");
    }

    #[test]
    fn who_waits_for_a_replica_that_failed_is_released() {
        let ops = &SharedMemory::new(2);
        thread::scope(|scope| {
            let waiting = scope.spawn(|| ops.all_gather(0, 1).unwrap_err().to_string());
            ops.abort("replica 1 failed");
            assert_eq!(waiting.join().unwrap(), "replica 1 failed");
        });
    }

    #[test]
    fn who_waits_for_a_replica_that_ended_its_step_is_released() {
        for waiting_before in 0..=2 {
            let ops = &SharedMemory::new(3);
            // Those that ended an earlier step come again.
            (0..3).for_each(|rank| ops.end_step(rank));
            ops.begin_step();
            let error = thread::scope(|scope| {
                let wait =
                    |rank| scope.spawn(move || ops.all_gather(rank, 1).unwrap_err().to_string());
                let mut waiting: Vec<_> = (0..waiting_before).map(wait).collect();
                thread::sleep(Duration::from_millis(20));
                ops.end_step(2);
                waiting.extend((waiting_before..2).map(wait));
                let errors = waiting.into_iter().map(|thread| thread.join().unwrap());
                let errors: Vec<_> = errors.collect();
                assert_eq!(errors[0], errors[1]);
                errors[0].clone()
            });
            let expected = "replica 2 ended its step while others wait for it";
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
