//! Deterministic pseudo-random numbers.

use std::time::Duration;

/// A random number generator.
pub struct Random(u32);

impl Random {
    /// A generator with a seed.
    pub fn new(seed: u32) -> Self {
        let mut random = Random(seed);
        // The first numbers of consecutive seeds are similar.
        for _ in 0..8 {
            random.below(1);
        }
        random
    }

    /// A number below `end`.
    pub fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        // The low bits have short periods.
        (self.0 >> 8) % end
    }

    /// A random element of `all`.
    pub fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u32) as usize]
    }

    /// A random duration below `end`.
    pub fn time(&mut self, end: Duration) -> Duration {
        end * self.below(1 << 16) / (1 << 16)
    }
}
