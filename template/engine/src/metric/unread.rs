//! Values of batches that are still on a GPU.

use std::mem;

use anyhow::Result;
use burn::tensor::Tensor;

use crate::device::{is_cpu, read_all};

/// Bounds from which all tensors are read at once: their values on the GPU, of 4 MiB, and their number.
const VALUES: usize = 1 << 20;
pub const TENSORS: usize = 1 << 10;

/// A queue of batches, each of `N` tensors `[..]`, that are still to be read from a GPU: a read in each batch
/// would wait for it.
#[derive(Clone, Debug)]
pub struct Unread<const N: usize> {
    batches: Vec<[Tensor<1>; N]>,
    values: usize,
}

impl<const N: usize> Default for Unread<N> {
    fn default() -> Self {
        Unread {
            batches: Vec::new(),
            values: 0,
        }
    }
}

impl<const N: usize> Unread<N> {
    /// Adds a batch; true if all are to be read now.
    pub fn push(&mut self, batch: [Tensor<1>; N]) -> bool {
        let is_cpu = batch.iter().all(|tensor| is_cpu(&[tensor.device()]));
        let values = batch.iter().map(|tensor| tensor.dims()[0]);
        self.values += values.sum::<usize>();
        self.batches.push(batch);
        is_cpu || self.is_full()
    }

    fn is_full(&self) -> bool {
        self.values >= VALUES || N * self.batches.len() >= TENSORS
    }

    /// Takes the values of all batches, in order and in one read.
    ///
    /// # Errors
    /// A device failed.
    pub fn read(&mut self) -> Result<Vec<[Vec<f32>; N]>> {
        let batches = mem::take(self).batches;
        let count = batches.len();
        let mut values = read_all(batches.into_iter().flatten().collect())?.into_iter();
        let mut next = || values.next().unwrap_or_default();
        Ok((0..count).map(|_| [(); N].map(|()| next())).collect())
    }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Device;

    use super::*;

    fn batch(len: usize) -> [Tensor<1>; 2] {
        [0.0, 1.0].map(|value| Tensor::full([len], value, &Device::flex()))
    }

    #[test]
    fn values_and_tensors_are_bounded() {
        for (len, bound) in [(VALUES / 4, 2), (1, TENSORS / 2)] {
            let mut unread = Unread::default();
            for _ in 1..bound {
                unread.push(batch(len));
                assert!(!unread.is_full(), "{len} values in a tensor");
            }
            unread.push(batch(len));
            assert!(unread.is_full(), "{len} values in a tensor");
            let read = unread.read().unwrap();
            assert_eq!(read, vec![[vec![0.0; len], vec![1.0; len]]; bound]);
            assert!(unread.read().unwrap().is_empty() && !unread.is_full());
        }
    }

    #[test]
    fn nothing_waits_on_the_cpu() {
        assert!(Unread::default().push(batch(1)));
    }
}
