use std::mem;

use anyhow::Result;
use burn::tensor::Tensor;

use crate::replica::{is_cpu, read_all};

/// Values from which all are read at once, which bounds their memory on the GPU to 8 MiB.
const VALUES: usize = 1 << 20;

/// Pairs of tensors `[observations]` of the batches that are still to be read from a GPU: a read in each
/// batch would wait for it.
#[derive(Clone, Debug, Default)]
pub struct Unread {
    pairs: Vec<[Tensor<1>; 2]>,
    values: usize,
}

impl Unread {
    /// Adds a batch; true if it is to be read now.
    pub fn push(&mut self, pair: [Tensor<1>; 2]) -> bool {
        let is_cpu = is_cpu(&[pair[0].device()]);
        self.values += 2 * pair[0].dims()[0];
        self.pairs.push(pair);
        is_cpu || self.values >= VALUES
    }

    /// The values of all batches, in one read.
    ///
    /// # Errors
    /// A device failed.
    pub fn read(&mut self) -> Result<Vec<[Vec<f32>; 2]>> {
        let pairs = mem::take(self).pairs;
        if pairs.is_empty() {
            return Ok(Vec::new());
        }
        let mut values = read_all(pairs.into_iter().flatten().collect())?.into_iter();
        let mut all = Vec::new();
        while let (Some(first), Some(second)) = (values.next(), values.next()) {
            all.push([first, second]);
        }
        Ok(all)
    }

    /// Drops all batches.
    pub fn clear(&mut self) {
        *self = Unread::default();
    }
}
