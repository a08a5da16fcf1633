//! The precision in which replicas exchange gradients.

use burn::tensor::{DType, FloatDType, Tensor, bf16};
use clap::ValueEnum;
use rayon::prelude::*;

use crate::{
    threads::{PIECE, on_all_threads},
    vectors::vectorized,
};

/// The values of `--exchange-precision`.
///
/// In bfloat16, the gradients of a replica are rounded to the nearest number (ties to even) to be sent, summed in
/// float32, and the sum is rounded for its way back: half the bytes in both directions, without the roundings of
/// partial sums of an all-reduce in bfloat16, as that of `bf16_compress_hook` of PyTorch. Replicas of one process
/// round alike, so that results do not depend on where replicas run. The sum over several replicas of a process is
/// rounded once more on its way to other processes.
///
/// NaN and infinities are kept; finite values beyond those of bfloat16 (3.39e38) become infinite.
///
/// Source: `reduce_scatter_with_fp32_accumulation` of Megatron-Core;
/// `torch.distributed.algorithms.ddp_comm_hooks.default_hooks.bf16_compress_hook`.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExchangePrecision {
    /// No rounding.
    #[default]
    Float32,
    /// Half the bytes between processes.
    Bfloat16,
}

impl ExchangePrecision {
    /// Rounds values in host memory, as if they were sent.
    pub(crate) fn round(self, buckets: &mut [Vec<f32>]) {
        if self == ExchangePrecision::Float32 {
            return;
        }
        on_all_threads(buckets.iter().map(Vec::len).sum(), || {
            let buckets = buckets.par_iter_mut();
            let pieces = buckets.flat_map(|bucket| bucket.par_chunks_mut(PIECE));
            pieces.for_each(|piece| vectorized!(round_each(piece)));
        });
    }

    /// Rounds values on their device, as if they were sent; those of other types than float32 are kept.
    pub(crate) fn round_tensor(self, values: Tensor<1>) -> Tensor<1> {
        match self == ExchangePrecision::Bfloat16 && values.dtype() == DType::F32 {
            true => values.cast(FloatDType::BF16).cast(FloatDType::F32),
            false => values,
        }
    }
}

// Inlined, to use the vector instructions of the caller.
#[inline(always)]
fn round_each(values: &mut [f32]) {
    for value in values {
        *value = bf16::from_f32(*value).to_f32();
    }
}

/// The bits of `values` in bfloat16, rounded to the nearest.
pub(crate) fn to_bfloat16(values: &[f32]) -> Vec<u16> {
    let bits = |value: &f32| bf16::from_f32(*value).to_bits();
    vectorized!(values.iter().map(bits).collect())
}

/// The value of bits in bfloat16.
#[inline(always)]
pub(crate) fn from_bfloat16(bits: u16) -> f32 {
    bf16::from_bits(bits).to_f32()
}

#[cfg(test)]
mod tests;
