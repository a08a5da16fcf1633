//! Blocks of a product with AVX-512 and its extension BF16. Sizes were measured on AMD Zen with two threads.

use std::{arch::x86_64::*, ops::Range};

use super::{
    blocks::{Output, Product, Task, for_each, tasks, with_buffer},
    packing::{LANES, Pairs, load, pack, store},
};

/// Rows of a tile, whose sums stay in registers.
const ROWS: usize = LANES / 2;
/// Vectors of columns of a tile at most: 24 sums, with 3 vectors of the right operand and one of the left,
/// use 28 of 32 registers.
const VECTORS: usize = 3;
/// Values of the inner dimension that are packed at a time. More keep a tile's columns out of the L1 cache,
/// and fewer make sums travel more often.
const INNER: usize = 384;
/// Lines of a row-major right operand that are packed at a time: few, as processors fetch lines ahead in
/// the order of memory.
const LINES: usize = 8;
/// Vectors of columns of a task at most: long lines of the right operand are read fast, and its packed part
/// stays in the L2 cache.
const WIDTH: usize = 24;

/// The rows of a product, on these threads.
///
/// # Safety
/// With `add`, the output is initialised.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn compute_rows(
    product: Product,
    output: &Output,
    add: bool,
    rows: Range<usize>,
    threads: usize,
) {
    let pairs = product.left.size()[1].div_ceil(2);
    with_buffer(0, rows.len().div_ceil(LANES) * pairs, |packed| {
        for_each(
            packed.chunks_exact_mut(pairs).collect(),
            threads,
            |number, panel| {
                let row = rows.start + number * LANES;
                pack(product.left, row, 0..product.left.size()[1], panel, 1);
            },
        );
        let vectors = output.size[1].div_ceil(LANES);
        let tasks = tasks(rows.clone(), vectors, [VECTORS, WIDTH], LANES, threads);
        for_each(tasks, threads, |_, task| {
            let packed = &packed[(task.rows.start - rows.start) / LANES * pairs..];
            with_buffer(1, INNER.div_ceil(2) * task.units.len(), |buffer| {
                // SAFETY: as the caller promises.
                unsafe { compute_task(product, output, add, &task, packed, buffer) };
            });
        });
    });
}

/// A task, with `left` packed from its first row on.
///
/// # Safety
/// As [`compute_rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
unsafe fn compute_task(
    product: Product,
    output: &Output,
    add: bool,
    task: &Task,
    left: &[Pairs],
    packed: &mut [Pairs],
) {
    let [columns, inner] = product.right.size();
    for start in (0..inner).step_by(INNER) {
        let part = start..inner.min(start + INNER);
        let pairs = part.len().div_ceil(2);
        pack_right(product, &task.units, part, packed);
        let panels = left.chunks_exact(inner.div_ceil(2));
        let panels = panels.map(|panel| &panel[start / 2..][..pairs]);
        let mut right = &packed[..];
        for vectors in groups(&task.units) {
            let group = right.split_off(..vectors.len() * pairs).unwrap_or_default();
            let columns = vectors.start * LANES..columns.min(vectors.end * LANES);
            let tiles = Tiles {
                output,
                add: add || start > 0,
                rows: task.rows.clone(),
                columns,
            };
            // SAFETY: after the first part of the inner dimension, the values are written.
            unsafe {
                match vectors.len() {
                    1 => tiles.multiply::<1>(panels.clone(), group),
                    2 => tiles.multiply::<2>(panels.clone(), group),
                    _ => tiles.multiply::<VECTORS>(panels.clone(), group),
                }
            }
        }
    }
}

/// Packs the part of the inner dimension of vectors of columns, group by group.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_right(product: Product, vectors: &Range<usize>, part: Range<usize>, packed: &mut [Pairs]) {
    let pairs = part.len().div_ceil(2);
    // Values are read in the order of memory, so that the processor fetches them ahead.
    let step = match product.right.strides() {
        [1, _] => LINES,
        _ => INNER,
    };
    for start in part.clone().step_by(step) {
        let lines = start..part.end.min(start + step);
        for group in groups(vectors) {
            let at = (group.start - vectors.start) * pairs;
            let at = at + (start - part.start) / 2 * group.len();
            for (number, vector) in group.clone().enumerate() {
                let (row, packed) = (vector * LANES, &mut packed[at + number..]);
                pack(product.right, row, lines.clone(), packed, group.len());
            }
        }
    }
}

/// Rows of the product and a group of its vectors of columns.
struct Tiles<'a> {
    output: &'a Output,
    add: bool,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Tiles<'_> {
    /// From packed panels of the rows and `N` packed vectors.
    ///
    /// # Safety
    /// With `add`, the values are initialised.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    unsafe fn multiply<'a, const N: usize>(
        &self,
        panels: impl Iterator<Item = &'a [Pairs]>,
        right: &[Pairs],
    ) {
        let right = right.as_chunks::<N>().0;
        for (row, left) in self.rows.clone().step_by(LANES).zip(panels) {
            for (half, row) in [(false, row), (true, row + ROWS)] {
                if row < self.rows.end {
                    // SAFETY: as the caller promises.
                    unsafe { self.write(row, multiply_tile(left, half, right)) };
                }
            }
        }
    }

    /// Writes the sums of a tile from `row` on, or adds them.
    ///
    /// # Safety
    /// With `add`, the values are initialised.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn write<const N: usize>(&self, row: usize, sums: [[__m512; N]; ROWS]) {
        for (row, sums) in (row..self.rows.end).zip(sums) {
            // SAFETY: the tiles of all tasks are separate, and a task uses one row at a time.
            let values = unsafe { self.output.row(row, self.columns.clone()) };
            for (values, mut sum) in values.chunks_mut(LANES).zip(sums) {
                if self.add {
                    // SAFETY: the values are initialised, as the caller promises.
                    let before = load(unsafe { values.assume_init_ref() }, values.len());
                    sum = _mm512_add_ps(before, sum);
                }
                store(sum, values);
            }
        }
    }
}

/// Vectors in groups of [`VECTORS`] at most, of equal numbers or one more.
fn groups(vectors: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<> {
    let (start, count) = (vectors.start, vectors.len());
    let groups = count.div_ceil(VECTORS);
    let bound = move |group| start + count * group / groups;
    (0..groups).map(move |group| bound(group)..bound(group + 1))
}

/// The sums of a tile: of 8 rows, one half of those in `left`, and `N` vectors of columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn multiply_tile<const N: usize>(
    left: &[Pairs],
    half: bool,
    right: &[[Pairs; N]],
) -> [[__m512; N]; ROWS] {
    let mut sums = [[_mm512_setzero_ps(); N]; ROWS];
    for (left, right) in left.iter().zip(right) {
        let left = &left.0[usize::from(half)];
        for (sums, left) in sums.iter_mut().zip(left) {
            let left = Pairs([[*left; ROWS]; 2]).vector();
            for (sum, right) in sums.iter_mut().zip(right) {
                *sum = _mm512_dpbf16_ps(*sum, left, right.vector());
            }
        }
    }
    sums
}
