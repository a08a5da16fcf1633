//! Matrix products on the CPU, in the precision of a layer: of rounded operands, with sums in float32.

pub mod bfloat16;
pub mod matrix;

use burn::tensor::f16;

use crate::half::Half;
use bfloat16::{multiply_bfloat16, multiply_rounded};
use matrix::{Matrix, Threads, multiply, product};

/// `product = left * right`, or `product += left * right`, row-major, of operands rounded to `half`. The
/// result does not depend on the threads.
///
/// # Panics
/// As [`multiply`].
pub fn multiply_in(
    half: Option<Half>,
    product: &mut [f32],
    add: bool,
    left: Matrix,
    right: Matrix,
    threads: Threads,
) {
    match half {
        None => multiply(product, add, left, right, threads),
        Some(Half::Bfloat16) => multiply_bfloat16(product, add, left, right, threads),
        Some(Half::Float16) => {
            let round = |value| f16::from_f32(value).to_f32();
            multiply_rounded(round, product, add, left, right, threads);
        }
    }
}

/// `left * right`, row-major, of operands rounded to `half`, as [`multiply_in`].
///
/// # Panics
/// As [`multiply`].
pub fn product_in(half: Option<Half>, left: Matrix, right: Matrix, threads: Threads) -> Vec<f32> {
    if half.is_none() {
        return product(left, right, threads);
    }
    let mut product = vec![0.0; left.size()[0] * right.size()[1]];
    multiply_in(half, &mut product, false, left, right, threads);
    product
}
