//! The precision in which replicas exchange gradients.

use burn::tensor::{DType, FloatDType, Tensor};
use clap::ValueEnum;
use kiln_kernels::elementwise::round_to_bfloat16;

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
        round_to_bfloat16(buckets);
    }

    /// Rounds values on their device, as if they were sent; those of other types than float32 are kept.
    pub(crate) fn round_tensor(self, values: Tensor<1>) -> Tensor<1> {
        match self == ExchangePrecision::Bfloat16 && values.dtype() == DType::F32 {
            true => values.cast(FloatDType::BF16).cast(FloatDType::F32),
            false => values,
        }
    }
}

#[cfg(test)]
mod tests;
