//! Sums over processes of values that are sent in bfloat16.

use std::ops::Range;

#[cfg(feature = "mpi")]
use mpi::{
    datatype::{Partition, PartitionMut},
    topology::SimpleCommunicator,
    traits::{Communicator, CommunicatorCollectives},
};

use kiln_kernels::elementwise::{from_bfloat16, sum_of_bfloat16, to_bfloat16};

/// Messages of 16-bit words between the processes of a job, which all call the same operations in the same order.
pub(super) trait Words {
    /// The rank of this process, and the number of processes.
    fn place(&self) -> (usize, usize);

    /// Sends its part of `words` to each process. Returns the part of this process from each, by rank.
    fn all_to_all(&self, words: &[u16], parts: &[Range<usize>]) -> Vec<u16>;

    /// Sends `own`, the part of this process, to all. Returns all parts, by rank.
    fn all_gather(&self, own: &[u16], parts: &[Range<usize>]) -> Vec<u16>;
}

/// Sums `values` over all processes into `sum`, of the same length; bitwise equal on all. Each process sums one part,
/// of values rounded to bfloat16, in float32 in the order of ranks, and sends the sum, rounded again, to all.
///
/// A reduce-scatter and an all-gather, as of a ring all-reduce: each process sends `2 * (N - 1) / N` times
/// two bytes per value.
///
/// Source: `reduce_scatter_with_fp32_accumulation` of Megatron-Core.
pub(super) fn sum_into(words: &impl Words, values: &[f32], sum: &mut [f32]) {
    let (own, processes) = words.place();
    let len = values.len();
    let part = |process| len * process / processes..len * (process + 1) / processes;
    let parts: Vec<_> = (0..processes).map(part).collect();
    let received = words.all_to_all(&to_bfloat16(values), &parts);
    let of_own = &mut sum[..parts[own].len()];
    sum_of_bfloat16(&received, of_own);
    let all = words.all_gather(&to_bfloat16(of_own), &parts);
    for (sum, bits) in sum.iter_mut().zip(all) {
        *sum = from_bfloat16(bits);
    }
}

#[cfg(feature = "mpi")]
impl Words for SimpleCommunicator {
    fn place(&self) -> (usize, usize) {
        (self.rank() as usize, self.size() as usize)
    }

    fn all_to_all(&self, words: &[u16], parts: &[Range<usize>]) -> Vec<u16> {
        let own = parts[self.rank() as usize].len();
        let mut received = vec![0; own * parts.len()];
        let from_each = parts.iter().enumerate();
        let from_each = from_each.map(|(rank, _)| rank * own..(rank + 1) * own);
        let (counts, starts) = layout(from_each);
        let mut into = PartitionMut::new(&mut received[..], counts, starts);
        let (counts, starts) = layout(parts.iter().cloned());
        self.all_to_all_varcount_into(&Partition::new(words, counts, starts), &mut into);
        received
    }

    fn all_gather(&self, own: &[u16], parts: &[Range<usize>]) -> Vec<u16> {
        let mut all = vec![0; parts.last().map_or(0, |part| part.end)];
        let (counts, starts) = layout(parts.iter().cloned());
        let mut into = PartitionMut::new(&mut all[..], counts, starts);
        self.all_gather_varcount_into(own, &mut into);
        all
    }
}

/// The lengths and starts of parts, which MPI counts in C integers.
#[cfg(feature = "mpi")]
fn layout(parts: impl Iterator<Item = Range<usize>>) -> (Vec<i32>, Vec<i32>) {
    parts
        .map(|part| (part.len() as i32, part.start as i32))
        .unzip()
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Barrier, Mutex,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
    };

    use super::*;

    /// Messages between threads, which count the bytes from one to another.
    struct Counted {
        mail: Vec<Mutex<Vec<u16>>>,
        barrier: Barrier,
        bytes: AtomicUsize,
    }

    struct Place<'a>(&'a Counted, usize);

    impl Counted {
        fn exchange(
            &self,
            own: usize,
            words: &[u16],
            take: impl Fn(usize, &[u16]) -> Vec<u16>,
        ) -> Vec<u16> {
            *self.mail[own].lock().unwrap() = words.to_vec();
            self.barrier.wait();
            let mut all = Vec::new();
            for (from, words) in self.mail.iter().enumerate() {
                let taken = take(from, &words.lock().unwrap());
                if from != own {
                    self.bytes
                        .fetch_add(size_of_val(&taken[..]), Ordering::Relaxed);
                }
                all.extend(taken);
            }
            self.barrier.wait();
            all
        }
    }

    impl Words for Place<'_> {
        fn place(&self) -> (usize, usize) {
            (self.1, self.0.mail.len())
        }

        fn all_to_all(&self, words: &[u16], parts: &[Range<usize>]) -> Vec<u16> {
            let own = parts[self.1].clone();
            self.0
                .exchange(self.1, words, |_, words| words[own.clone()].to_vec())
        }

        fn all_gather(&self, own: &[u16], parts: &[Range<usize>]) -> Vec<u16> {
            self.0.exchange(self.1, own, |from, words| {
                assert_eq!(words.len(), parts[from].len());
                words.to_vec()
            })
        }
    }

    /// The sum on each of `processes`, and the bytes sent by all together.
    fn summed(values: &[Vec<f32>]) -> (Vec<Vec<f32>>, usize) {
        let counted = &Counted {
            mail: values.iter().map(|_| Mutex::default()).collect(),
            barrier: Barrier::new(values.len()),
            bytes: AtomicUsize::new(0),
        };
        let sums = thread::scope(|scope| {
            let threads = values.iter().enumerate().map(|(rank, values)| {
                scope.spawn(move || {
                    let mut sum = vec![7.0; values.len()];
                    sum_into(&Place(counted, rank), values, &mut sum);
                    sum
                })
            });
            let threads: Vec<_> = threads.collect();
            let sums = threads.into_iter().map(|thread| thread.join().unwrap());
            sums.collect()
        });
        (sums, counted.bytes.load(Ordering::Relaxed))
    }

    #[test]
    fn sums_are_those_of_integers_on_all_processes_in_half_the_bytes() {
        // Sums of up to 256 are exact.
        let integer =
            |rank: usize, place: usize| ((rank * 7_919 + place * 104_729) % 65) as f32 - 32.0;
        for processes in 1..=5 {
            for len in (0..=2 * processes + 1).chain([1_023, 1_024]) {
                let all = (0..processes).map(|rank| (0..len).map(|at| integer(rank, at)).collect());
                let (sums, bytes) = summed(&all.collect::<Vec<_>>());
                let sum = |at| (0..processes).map(|rank| integer(rank, at)).sum();
                let expected: Vec<f32> = (0..len).map(sum).collect();
                assert_eq!(sums, vec![expected; processes], "{processes} {len}");
                // Of all processes together; a ring all-reduce of float32 sends four bytes each.
                let of_float32 = 2 * (processes - 1) * len * size_of::<f32>();
                assert_eq!(2 * bytes, of_float32, "{processes} {len}");
            }
        }
    }

    #[test]
    fn what_is_sent_is_rounded_and_the_sum_is_not_until_it_is_sent() {
        // In bfloat16, 256 + 1 is 256; in float32, 256 + 1 + 1 is 258.
        let (sums, _) = summed(&[vec![256.0, -0.0], vec![1.0, -0.0], vec![1.001, -0.0]]);
        for sum in sums {
            assert_eq!(sum[0], 258.0);
            assert!(sum[1].is_sign_negative(), "-0 is kept");
        }
        let (sums, _) = summed(&[vec![1.0, f32::INFINITY], vec![f32::NAN, 1.0]]);
        assert!(
            sums.iter()
                .all(|sum| sum[0].is_nan() && sum[1] == f32::INFINITY)
        );
    }
}
