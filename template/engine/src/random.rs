//! Independent streams of random numbers.

use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};
use sha2::{Digest, Sha256};

/// A random number generator for `purpose`, seeded with `numbers`, such as seed, epoch and position. Equal
/// arguments give the same stream, different ones independent streams.
pub fn stream(purpose: &str, numbers: &[u64]) -> StdRng {
    let mut hash = Sha256::new();
    hash.update(purpose.as_bytes());
    for number in numbers {
        hash.update(number.to_le_bytes());
    }
    StdRng::from_seed(hash.finalize().into())
}

/// The numbers below `len` in random order.
pub(crate) fn shuffled(len: usize, mut random: StdRng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    order.shuffle(&mut random);
    order
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;

    #[test]
    fn streams_repeat_and_differ_by_purpose_and_numbers() {
        let draw = |purpose, numbers: &[u64]| stream(purpose, numbers).random::<u64>();
        assert_eq!(draw("order", &[1, 2]), draw("order", &[1, 2]));
        let mut all = vec![
            draw("order", &[1, 2]),
            draw("order", &[2, 1]),
            draw("order", &[1, 3]),
            draw("augment", &[1, 2]),
        ];
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 4);
    }
}
