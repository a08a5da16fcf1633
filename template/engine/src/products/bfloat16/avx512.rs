//! The product with AVX-512 and its extension BF16, blocked for registers and caches.
//!
//! Source: F. Van Zee and R. van de Geijn, BLIS: A framework for rapidly instantiating BLAS functionality,
//! ACM TOMS 2015. Unlike there, the left operand is packed at once, and each task packs the columns of the
//! right one that it uses: they stay in the core's cache, and tasks need not wait for each other. Sizes were
//! measured on AMD Zen with two threads. The smallest products, too, are packed: rounding operands for
//! another product takes longer.

use std::{arch::x86_64::*, cell::Cell, marker::PhantomData, ops::Range, slice};

use rayon::prelude::*;

use super::{
    super::matrix::{Matrix, Threads},
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
/// Tasks of a thread at least, so that threads finish together.
const TASKS: usize = 2;
/// Rows of a task at most; at each, its part of the right operand is packed again.
const TASK_ROWS: usize = 512;
/// Vectors of the left operand that are packed at a time, 2 MiB, unless [`TASK_ROWS`] are more.
const LEFT: usize = 1 << 15;
/// Multiplications below which waking threads costs more time than they save, about 40 microseconds.
const SMALL: usize = 1 << 23;

thread_local! {
    /// Memory for packed operands, kept: new memory costs more time than a product's packing.
    static BUFFERS: [Cell<Vec<Pairs>>; 2] = const { [Cell::new(Vec::new()), Cell::new(Vec::new())] };
}

/// Operands that can be packed, on a processor with the instructions.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    left: Matrix<'a>,
    /// Transposed.
    right: Matrix<'a>,
}

/// A part of the product: rows, from a multiple of [`LANES`] on, and vectors of columns.
struct Task {
    rows: Range<usize>,
    vectors: Range<usize>,
}

/// The product's values, which tasks write apart.
struct Output<'a> {
    start: *mut f32,
    size: [usize; 2],
    values: PhantomData<&'a mut [f32]>,
}

// SAFETY: the pointer is used by `Output::row` alone, whose callers write to separate parts.
unsafe impl Sync for Output<'_> {}

impl<'a> Output<'a> {
    /// `values` are row-major.
    fn new(values: &'a mut [f32], size: [usize; 2]) -> Self {
        assert_eq!(values.len(), size[0] * size[1]);
        Output {
            start: values.as_mut_ptr(),
            size,
            values: PhantomData,
        }
    }

    /// A part of a row.
    ///
    /// # Safety
    /// No other part in use has values of it.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    unsafe fn row(&self, row: usize, columns: Range<usize>) -> &mut [f32] {
        let [rows, all] = self.size;
        assert!(row < rows && columns.start <= columns.end && columns.end <= all);
        // SAFETY: the part is within the values, and nobody else uses it, as the caller promises.
        unsafe {
            slice::from_raw_parts_mut(self.start.add(row * all + columns.start), columns.len())
        }
    }
}

impl<'a> Product<'a> {
    /// Whether the processor has the instructions.
    pub fn is_available() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512bf16")
    }

    /// `None` if the processor lacks the instructions, or if neither rows nor columns of an operand are
    /// contiguous.
    pub fn new(left: Matrix<'a>, right: Matrix<'a>) -> Option<Self> {
        let are_contiguous = [left, right].iter().all(|it| it.strides().contains(&1));
        (are_contiguous && Self::is_available()).then(|| Product {
            left,
            right: right.transposed(),
        })
    }

    /// See [`super::multiply_bfloat16`]; `product` has the size of the product.
    pub fn compute(self, product: &mut [f32], add: bool, threads: Threads) {
        let ([rows, inner], [columns, _]) = (self.left.size(), self.right.size());
        if inner == 0 && !add {
            product.fill(0.0);
        }
        if product.is_empty() || inner == 0 {
            return;
        }
        let is_small = rows * columns * inner < SMALL;
        let are_many = matches!(threads, Threads::All) && !is_small;
        let threads = match are_many {
            true => rayon::current_num_threads(),
            false => 1,
        };
        let output = Output::new(product, [rows, columns]);
        let most = LEFT / inner.div_ceil(2) * LANES;
        for start in (0..rows).step_by(most.max(TASK_ROWS)) {
            let rows = start..rows.min(start + most.max(TASK_ROWS));
            // SAFETY: `Product::new` made sure that the processor has the instructions.
            unsafe { self.compute_rows(&output, add, rows, threads) }
        }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn compute_rows(self, output: &Output, add: bool, rows: Range<usize>, threads: usize) {
        let pairs = self.left.size()[1].div_ceil(2);
        with_buffer(0, rows.len().div_ceil(LANES) * pairs, |packed| {
            for_each(
                packed.chunks_exact_mut(pairs).collect(),
                threads,
                |number, panel| {
                    let row = rows.start + number * LANES;
                    pack(self.left, row, 0..self.left.size()[1], panel, 1);
                },
            );
            let tasks = tasks(rows.clone(), output.size[1], threads);
            for_each(tasks, threads, |_, task| {
                let packed = &packed[(task.rows.start - rows.start) / LANES * pairs..];
                with_buffer(1, INNER.div_ceil(2) * task.vectors.len(), |buffer| {
                    self.compute_task(output, add, &task, packed, buffer);
                });
            });
        });
    }

    /// A task, with `left` packed from its first row on.
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn compute_task(
        self,
        output: &Output,
        add: bool,
        task: &Task,
        left: &[Pairs],
        packed: &mut [Pairs],
    ) {
        let [columns, inner] = self.right.size();
        for start in (0..inner).step_by(INNER) {
            let part = start..inner.min(start + INNER);
            let pairs = part.len().div_ceil(2);
            self.pack_right(&task.vectors, part, packed);
            let panels = left.chunks_exact(inner.div_ceil(2));
            let panels = panels.map(|panel| &panel[start / 2..][..pairs]);
            let mut right = &packed[..];
            for vectors in groups(&task.vectors) {
                let group = right.split_off(..vectors.len() * pairs).unwrap_or_default();
                let columns = vectors.start * LANES..columns.min(vectors.end * LANES);
                let tiles = Tiles {
                    output,
                    add: add || start > 0,
                    rows: task.rows.clone(),
                    columns,
                };
                match vectors.len() {
                    1 => tiles.multiply::<1>(panels.clone(), group),
                    2 => tiles.multiply::<2>(panels.clone(), group),
                    _ => tiles.multiply::<VECTORS>(panels.clone(), group),
                }
            }
        }
    }

    /// Packs the part of the inner dimension of vectors of columns, group by group.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
    fn pack_right(self, vectors: &Range<usize>, part: Range<usize>, packed: &mut [Pairs]) {
        let pairs = part.len().div_ceil(2);
        // Values are read in the order of memory, so that the processor fetches them ahead.
        let step = match self.right.strides() {
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
                    pack(self.right, row, lines.clone(), packed, group.len());
                }
            }
        }
    }
}

/// Rows of the product and a group of its vectors of columns.
struct Tiles<'a> {
    output: &'a Output<'a>,
    add: bool,
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Tiles<'_> {
    /// From packed panels of the rows and `N` packed vectors.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bf16")]
    fn multiply<'a, const N: usize>(
        &self,
        panels: impl Iterator<Item = &'a [Pairs]>,
        right: &[Pairs],
    ) {
        let right = right.as_chunks::<N>().0;
        for (row, left) in self.rows.clone().step_by(LANES).zip(panels) {
            for (half, row) in [(false, row), (true, row + ROWS)] {
                if row < self.rows.end {
                    self.write(row, multiply_tile(left, half, right));
                }
            }
        }
    }

    /// Writes the sums of a tile from `row` on, or adds them.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn write<const N: usize>(&self, row: usize, sums: [[__m512; N]; ROWS]) {
        for (row, sums) in (row..self.rows.end).zip(sums) {
            // SAFETY: the tiles of all tasks are separate, and a task uses one row at a time.
            let values = unsafe { self.output.row(row, self.columns.clone()) };
            for (values, sum) in values.chunks_mut(LANES).zip(sums) {
                let sum = match self.add {
                    true => _mm512_add_ps(load(values, values.len()), sum),
                    false => sum,
                };
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

/// Tasks of similar size, several for each thread if there are many.
fn tasks(rows: Range<usize>, columns: usize, threads: usize) -> Vec<Task> {
    let vectors = columns.div_ceil(LANES);
    let wanted = if threads == 1 { 1 } else { TASKS * threads };
    let width = vectors.div_ceil(wanted).clamp(VECTORS, WIDTH);
    let parts = vectors.div_ceil(width);
    // Threads that finish together are worth a right operand that is packed again.
    let blocks = wanted.div_ceil(parts).min(rows.len() / (4 * LANES));
    let blocks = blocks.max(rows.len().div_ceil(TASK_ROWS)).max(1);
    let length = rows.len().div_ceil(blocks).next_multiple_of(LANES);
    let starts = rows.clone().step_by(length);
    starts
        .flat_map(|start| {
            let rows = start..rows.end.min(start + length);
            (0..parts).map(move |part| Task {
                rows: rows.clone(),
                vectors: vectors * part / parts..vectors * (part + 1) / parts,
            })
        })
        .collect()
}

/// Calls with each item and its number.
fn for_each<T: Send>(items: Vec<T>, threads: usize, call: impl Fn(usize, T) + Sync) {
    match threads {
        1 => items
            .into_iter()
            .enumerate()
            .for_each(|(number, item)| call(number, item)),
        _ => items
            .into_par_iter()
            .enumerate()
            .for_each(|(number, item)| call(number, item)),
    }
}

/// Calls with one of the thread's buffers, of any contents.
///
/// A thread that waits for others may begin another product meanwhile, which then has a new buffer.
fn with_buffer(number: usize, length: usize, call: impl FnOnce(&mut [Pairs])) {
    let mut buffer = BUFFERS.with(|all| all[number].take());
    if buffer.len() < length {
        buffer.resize(length, Pairs::default());
    }
    call(&mut buffer[..length]);
    BUFFERS.with(|all| all[number].set(buffer));
}
