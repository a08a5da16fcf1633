//! Matrix products in bfloat16, accumulated in float32.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod blocks;
#[cfg(target_arch = "x86_64")]
mod packing;
#[cfg(test)]
mod tests;

use burn::tensor::bf16;

use super::matrix::{self, Matrix, Threads};

/// Whether this processor has instructions for products in bfloat16 (AMX: Intel since Sapphire Rapids, with
/// Linux; AVX-512 with its extension BF16: AMD since Zen 4, Intel since Cooper Lake). Without them, these
/// products are slower than those in float32.
pub fn is_bfloat16_fast() -> bool {
    #[cfg(target_arch = "x86_64")]
    return blocks::Instructions::available().next().is_some();
    #[cfg(not(target_arch = "x86_64"))]
    return false;
}

/// `product = left * right`, or `product += left * right`, row-major, of operands rounded to bfloat16 (to
/// the nearest, ties to even; infinity and NaN are kept), accumulated in float32.
///
/// A value of the product does not depend on the threads, nor on the number of rows and columns.
/// With the instructions of the processor (see [`is_bfloat16_fast`]), subnormal numbers count as zero, and
/// additions are not fused with multiplications, so that other processors give other last bits.
///
/// # Safety
/// As [`super::multiply_at`].
///
/// # Panics
/// Sizes do not match.
pub(super) unsafe fn multiply_at(
    product: *mut f32,
    add: bool,
    left: Matrix,
    right: Matrix,
    threads: Threads,
) {
    assert_eq!(left.size()[1], right.size()[0]);
    // SAFETY: as the caller promises.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if let Some(operation) = blocks::Product::new(left, right) {
            return operation.compute(product, add, threads);
        }
        multiply_rounded_at(round, product, add, left, right, threads);
    }
}

fn round(value: f32) -> f32 {
    bf16::from_f32(value).to_f32()
}

/// As [`matrix::multiply_at`], of operands rounded by `round`, on any processor.
///
/// # Safety
/// As [`super::multiply_at`].
///
/// # Panics
/// Sizes do not match.
pub(super) unsafe fn multiply_rounded_at(
    round: fn(f32) -> f32,
    product: *mut f32,
    add: bool,
    left: Matrix,
    right: Matrix,
    threads: Threads,
) {
    let values = [rounded(left, round), rounded(right, round)];
    let [left, right] = [(left, &values[0]), (right, &values[1])].map(|(it, values)| {
        let [rows, columns] = it.size();
        match it.strides() {
            [1, _] => Matrix::new(values, [columns, rows]).transposed(),
            _ => Matrix::new(values, [rows, columns]),
        }
    });
    // SAFETY: as the caller promises.
    unsafe { matrix::multiply_at(product, add, left, right, threads) };
}

/// The rounded values: row-major, or column-major as the matrix itself.
fn rounded(matrix: Matrix, round: fn(f32) -> f32) -> Vec<f32> {
    let ([mut lines, mut length], [mut far, mut near]) = (matrix.size(), matrix.strides());
    if far == 1 {
        (lines, length, far, near) = (length, lines, near, far);
    }
    let mut values = Vec::with_capacity(lines * length);
    for line in 0..lines {
        let line = matrix.values().get(line * far..).unwrap_or_default();
        let line = line.iter().step_by(near.max(1)).take(length);
        values.extend(line.map(|value| round(*value)));
    }
    values
}
