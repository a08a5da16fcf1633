//! Matrix products on the CPU, in the precision of a layer: of rounded operands, with sums in float32.

pub mod bfloat16;
pub mod matrix;

use burn::tensor::f16;

use crate::half::Half;
use matrix::{Matrix, Threads};

/// `product = left * right`, or `product += left * right`, row-major, of operands rounded to `half`. The
/// result does not depend on the threads.
///
/// # Panics
/// Sizes do not match, or `product` is too short.
pub fn multiply_in(
    half: Option<Half>,
    product: &mut [f32],
    add: bool,
    left: Matrix,
    right: Matrix,
    threads: Threads,
) {
    let product = &mut product[..left.size()[0] * right.size()[1]];
    // SAFETY: `product` has this many values, which are initialised and borrowed exclusively.
    unsafe { multiply_at(half, product.as_mut_ptr(), add, left, right, threads) }
}

/// `left * right`, row-major, of operands rounded to `half`, in new memory, which is not filled with zeros
/// first.
///
/// # Panics
/// Sizes do not match.
pub fn product_in(half: Option<Half>, left: Matrix, right: Matrix, threads: Threads) -> Vec<f32> {
    let len = left.size()[0] * right.size()[1];
    let mut product = Vec::with_capacity(len);
    // SAFETY: `product` has the capacity, and without `add`, all values are written.
    unsafe {
        multiply_at(half, product.as_mut_ptr(), false, left, right, threads);
        product.set_len(len);
    }
    product
}

/// As [`multiply_in`].
///
/// # Safety
/// `product` is valid for reads and writes of as many values as the product has, which nothing else uses
/// meanwhile. With `add`, they are initialised; without, all are written and none is read.
///
/// # Panics
/// Sizes do not match.
unsafe fn multiply_at(
    half: Option<Half>,
    product: *mut f32,
    add: bool,
    left: Matrix,
    right: Matrix,
    threads: Threads,
) {
    // SAFETY: as the caller promises.
    unsafe {
        match half {
            None => matrix::multiply_at(product, add, left, right, threads),
            Some(Half::Bfloat16) => bfloat16::multiply_at(product, add, left, right, threads),
            Some(Half::Float16) => {
                let round = |value| f16::from_f32(value).to_f32();
                bfloat16::multiply_rounded_at(round, product, add, left, right, threads);
            }
        }
    }
}
