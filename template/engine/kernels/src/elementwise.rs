//! Sums, averages and roundings of vectors.

use burn::tensor::bf16;
use rayon::prelude::*;

use crate::{
    threads::{PIECE, on_all_threads},
    vectors::vectorized,
};

/// Adds `values` to `sums`, which may be fewer.
pub fn add(sums: &mut [f32], values: &[f32]) {
    vectorized!(add_inline(sums, values));
}

/// As [`add`], with the vector instructions of the caller.
#[inline(always)]
pub(crate) fn add_inline(sums: &mut [f32], values: &[f32]) {
    let places = sums.iter_mut().zip(values);
    places.for_each(|(sum, value)| *sum += value);
}

/// Multiplies `values` by `factor`, on all threads.
pub fn scale(values: &mut [f32], factor: f32) {
    on_all_threads(values.len(), || {
        let pieces = values.par_chunks_mut(PIECE);
        pieces.for_each(|piece| vectorized!(scale_piece(piece, factor)));
    });
}

#[inline(always)]
fn scale_piece(values: &mut [f32], factor: f32) {
    values.iter_mut().for_each(|value| *value *= factor);
}

/// The sum of the squares of all buckets, which does not depend on the number of threads.
pub fn sum_of_squares(buckets: &[Vec<f32>]) -> f64 {
    let pieces = buckets.iter().flat_map(|bucket| bucket.chunks(PIECE));
    let pieces: Vec<&[f32]> = pieces.collect();
    let squares: Vec<f64> = on_all_threads(pieces.len() * PIECE, || {
        let pieces = pieces.into_par_iter();
        pieces
            .map(|piece| vectorized!(sum_of_squares_of(piece)))
            .collect()
    });
    squares.into_iter().sum()
}

/// Sums fixed lanes, for vector instructions and a reproducible order.
#[inline(always)]
fn sum_of_squares_of(values: &[f32]) -> f64 {
    let square = |value: &f32| f64::from(*value) * f64::from(*value);
    let (whole, rest) = values.as_chunks::<16>();
    let mut sums = [0.0; 16];
    for values in whole {
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum += square(value);
        }
    }
    sums.iter().sum::<f64>() + rest.iter().map(square).sum::<f64>()
}

/// Moves `averages` towards `values`, of the same length, by a share of `weight`, in place.
///
/// Source: `torch.lerp`, which begins at the nearer end.
pub fn lerp(averages: &mut [f32], values: &[f32], weight: f64) {
    on_all_threads(averages.len(), || {
        averages
            .par_chunks_mut(PIECE)
            .zip(values.par_chunks(PIECE))
            .for_each(|(averages, values)| vectorized!(lerp_piece(averages, values, weight)));
    });
}

#[inline(always)]
fn lerp_piece(averages: &mut [f32], values: &[f32], weight: f64) {
    let (share, rest) = (weight as f32, (1.0 - weight) as f32);
    let pairs = averages.iter_mut().zip(values);
    match weight < 0.5 {
        true => pairs.for_each(|(average, value)| *average += (value - *average) * share),
        false => pairs.for_each(|(average, value)| *average = value - (value - *average) * rest),
    }
}

/// Rounds each value to the nearest of bfloat16 (ties to even).
pub fn round_to_bfloat16(buckets: &mut [Vec<f32>]) {
    on_all_threads(buckets.iter().map(Vec::len).sum(), || {
        let buckets = buckets.par_iter_mut();
        let pieces = buckets.flat_map(|bucket| bucket.par_chunks_mut(PIECE));
        pieces.for_each(|piece| vectorized!(round_each(piece)));
    });
}

#[inline(always)]
fn round_each(values: &mut [f32]) {
    for value in values {
        *value = bf16::from_f32(*value).to_f32();
    }
}

/// The bits of `values` in bfloat16, rounded to the nearest (ties to even).
pub fn to_bfloat16(values: &[f32]) -> Vec<u16> {
    let bits = |value: &f32| bf16::from_f32(*value).to_bits();
    vectorized!(values.iter().map(bits).collect())
}

/// The value of bits in bfloat16.
#[inline(always)]
pub fn from_bfloat16(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}

/// The sums, in the order of ranks, of the values in bfloat16 of all ranks, which are concatenated in `received`.
pub fn sum_of_bfloat16(received: &[u16], sums: &mut [f32]) {
    vectorized!(sum_of_ranks(received, sums));
}

#[inline(always)]
fn sum_of_ranks(received: &[u16], sums: &mut [f32]) {
    // Without values, chunks of one, of which there are none.
    let of_each = received.chunks_exact(sums.len().max(1)).enumerate();
    for (rank, bits) in of_each {
        for (sum, bits) in sums.iter_mut().zip(bits) {
            let value = from_bfloat16(*bits);
            *sum = if rank == 0 { value } else { *sum + value };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Values of both signs in more than two pieces, the last of which is no multiple of a vector.
    fn values() -> Vec<f32> {
        let value = |place: usize| (place as f32 * 0.37).sin() * 3.0;
        (0..2 * PIECE + 21).map(value).collect()
    }

    #[test]
    fn fewer_sums_than_values_leave_the_rest() {
        let mut sums = [1.0, 2.0];
        add(&mut sums, &[0.5, -2.0, 7.0]);
        assert_eq!(sums, [1.5, 0.0]);
    }

    #[test]
    fn each_piece_is_scaled() {
        let mut scaled = values();
        scale(&mut scaled, -0.5);
        let expected: Vec<f32> = values().iter().map(|value| value * -0.5).collect();
        assert_eq!(scaled, expected);
    }

    #[test]
    fn squares_are_summed_in_64_bits_over_all_buckets() {
        let buckets = [values(), Vec::new(), vec![4096.0, 1e-3]];
        let squares = buckets
            .iter()
            .flatten()
            .map(|value| f64::from(*value).powi(2));
        let expected: f64 = squares.sum();
        let sum = sum_of_squares(&buckets);
        assert!((sum / expected - 1.0).abs() < 1e-14, "{sum}, {expected}");
        let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
        let alone = pool.unwrap().install(|| sum_of_squares(&buckets));
        assert_eq!(sum.to_bits(), alone.to_bits(), "on one thread");
    }

    #[test]
    fn an_average_ends_at_the_values_and_begins_at_itself() {
        let (start, target) = (values(), values().into_iter().rev().collect::<Vec<_>>());
        let moved = |weight| {
            let mut averages = start.clone();
            lerp(&mut averages, &target, weight);
            averages
        };
        assert_eq!(moved(0.0), start);
        assert_eq!(moved(1.0), target);
        for weight in [0.1, 0.9] {
            for ((moved, start), target) in moved(weight).iter().zip(&start).zip(&target) {
                let expected = f64::from(*start) * (1.0 - weight) + f64::from(*target) * weight;
                let error = (f64::from(*moved) - expected).abs();
                assert!(error < 1e-6, "{weight}: {moved}, {expected}");
            }
        }
    }

    #[test]
    fn ties_round_to_the_even_bfloat16() {
        // Of eight bits, the last of 1 is 2^-7.
        let step = 2_f32.powi(-7);
        let half = step / 2.0;
        let mut buckets = vec![vec![1.0 + half], vec![1.0 + step + half, -1.0 - half * 1.5]];
        round_to_bfloat16(&mut buckets);
        assert_eq!(buckets, [vec![1.0], vec![1.0 + 2.0 * step, -1.0 - step]]);
        let bits = to_bfloat16(&[1.0 + half, f32::INFINITY]);
        let back: Vec<f32> = bits.into_iter().map(from_bfloat16).collect();
        assert_eq!(back, [1.0, f32::INFINITY]);
    }

    #[test]
    fn ranks_are_summed_in_their_order() {
        let [large, small] = [2_f32.powi(24), 1.0];
        // In 32 bits, `large + small` is `large`.
        let ranks = [[large, small], [small, small], [-large, large]].concat();
        let mut sums = [7.0, 7.0];
        sum_of_bfloat16(&to_bfloat16(&ranks), &mut sums);
        assert_eq!(sums, [0.0, large + 2.0]);
        sum_of_bfloat16(&[], &mut []);
    }
}
