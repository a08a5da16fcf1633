//! Products in bfloat16, blocked for registers and caches, with the instructions that the processor has.
//!
//! Source: F. Van Zee and R. van de Geijn, BLIS: A framework for rapidly instantiating BLAS functionality,
//! ACM TOMS 2015. Unlike there, the left operand is packed at once, and each task packs the columns of the
//! right one that it uses: they stay in the core's cache, and tasks need not wait for each other. The smallest
//! products, too, are packed: rounding operands for another product takes longer.

use std::{cell::Cell, mem::MaybeUninit, ops::Range, slice};

use rayon::prelude::*;

use super::{
    super::matrix::{Matrix, Threads},
    amx, avx512,
    packing::{LANES, Pairs},
};

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

/// Instructions of the processor for products in bfloat16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// Tile registers: Intel since Sapphire Rapids.
    Amx,
    /// AVX-512 with its extension BF16: AMD since Zen 4, Intel since Cooper Lake.
    Avx512,
}

impl Instructions {
    /// Those of this processor, the fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let packs = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512bf16");
        let both = [
            (Instructions::Amx, packs && amx::is_available()),
            (Instructions::Avx512, packs),
        ];
        let available = both.into_iter().filter(|(_, is_available)| *is_available);
        available.map(|(instructions, _)| instructions)
    }
}

/// Operands that can be packed, on a processor with the instructions.
#[derive(Clone, Copy)]
pub struct Product<'a> {
    pub(super) left: Matrix<'a>,
    /// Transposed.
    pub(super) right: Matrix<'a>,
    instructions: Instructions,
}

/// A part of the product: rows, from a multiple of the kernel's on, and units of columns.
pub(super) struct Task {
    pub(super) rows: Range<usize>,
    pub(super) units: Range<usize>,
}

/// The product's values, row-major, which tasks write apart. Until then, they need not be initialised.
pub(super) struct Output {
    /// Valid for `size[0] * size[1]` values.
    start: *mut f32,
    pub(super) size: [usize; 2],
}

// SAFETY: the pointer is used by `row` and `block` alone, whose callers write to separate parts.
unsafe impl Sync for Output {}

impl Output {
    /// A part of a row.
    ///
    /// # Safety
    /// No other part in use has values of it.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn row(&self, row: usize, columns: Range<usize>) -> &mut [MaybeUninit<f32>] {
        let [rows, all] = self.size;
        assert!(row < rows && columns.start <= columns.end && columns.end <= all);
        // SAFETY: the part is within the values, and nobody else uses it, as the caller promises.
        unsafe {
            let start = self.start.add(row * all + columns.start);
            slice::from_raw_parts_mut(start.cast(), columns.len())
        }
    }

    /// The first value of a block of rows and columns, whose rows are `size[1]` values apart. Callers write to
    /// separate blocks.
    ///
    /// # Panics
    /// The block is not within the product.
    #[inline]
    pub(super) fn block(&self, rows: Range<usize>, columns: Range<usize>) -> *mut f32 {
        let [all_rows, all_columns] = self.size;
        assert!(rows.start < rows.end && rows.end <= all_rows);
        assert!(columns.start < columns.end && columns.end <= all_columns);
        // SAFETY: the value is within the values.
        unsafe { self.start.add(rows.start * all_columns + columns.start) }
    }
}

impl<'a> Product<'a> {
    /// `None` if the processor lacks the instructions, or if neither rows nor columns of an operand are
    /// contiguous.
    pub fn new(left: Matrix<'a>, right: Matrix<'a>) -> Option<Self> {
        Self::with(Instructions::available().next()?, left, right)
    }

    /// As `new`, with these instructions, which are available.
    pub(super) fn with(
        instructions: Instructions,
        left: Matrix<'a>,
        right: Matrix<'a>,
    ) -> Option<Self> {
        let are_contiguous = [left, right].iter().all(|it| it.strides().contains(&1));
        are_contiguous.then(|| Product {
            left,
            right: right.transposed(),
            instructions,
        })
    }

    /// See [`super::multiply_at`].
    ///
    /// # Safety
    /// As there.
    pub unsafe fn compute(self, product: *mut f32, add: bool, threads: Threads) {
        let ([rows, inner], [columns, _]) = (self.left.size(), self.right.size());
        if inner == 0 && !add {
            // SAFETY: the product has this many values, and zeros are valid.
            unsafe { product.write_bytes(0, rows * columns) };
        }
        if rows * columns * inner == 0 {
            return;
        }
        let is_small = rows * columns * inner < SMALL;
        let are_many = matches!(threads, Threads::All) && !is_small;
        let threads = match are_many {
            true => rayon::current_num_threads(),
            false => 1,
        };
        let output = Output {
            start: product,
            size: [rows, columns],
        };
        let most = LEFT / inner.div_ceil(2) * LANES;
        for start in (0..rows).step_by(most.max(TASK_ROWS)) {
            let rows = start..rows.min(start + most.max(TASK_ROWS));
            // SAFETY: the instructions are available, and with `add`, all values are initialised.
            unsafe {
                match self.instructions {
                    Instructions::Amx => amx::compute_rows(self, &output, add, rows, threads),
                    Instructions::Avx512 => avx512::compute_rows(self, &output, add, rows, threads),
                }
            }
        }
    }
}

/// Tasks of similar size, several for each thread if there are many, of `units` of columns, `least` to `most` of
/// them, and of rows in multiples of `multiple`.
pub(super) fn tasks(
    rows: Range<usize>,
    units: usize,
    [least, most]: [usize; 2],
    multiple: usize,
    threads: usize,
) -> Vec<Task> {
    let wanted = if threads == 1 { 1 } else { TASKS * threads };
    let width = units.div_ceil(wanted).clamp(least, most);
    let parts = units.div_ceil(width);
    // Threads that finish together are worth a right operand that is packed again.
    let blocks = wanted.div_ceil(parts).min(rows.len() / (4 * LANES));
    let blocks = blocks.max(rows.len().div_ceil(TASK_ROWS)).max(1);
    let length = rows.len().div_ceil(blocks).next_multiple_of(multiple);
    let starts = rows.clone().step_by(length);
    starts
        .flat_map(|start| {
            let rows = start..rows.end.min(start + length);
            (0..parts).map(move |part| Task {
                rows: rows.clone(),
                units: units * part / parts..units * (part + 1) / parts,
            })
        })
        .collect()
}

/// Calls with each item and its number.
pub(super) fn for_each<T: Send>(items: Vec<T>, threads: usize, call: impl Fn(usize, T) + Sync) {
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
pub(super) fn with_buffer(number: usize, length: usize, call: impl FnOnce(&mut [Pairs])) {
    let mut buffer = BUFFERS.with(|all| all[number].take());
    if buffer.len() < length {
        buffer.resize(length, Pairs::default());
    }
    call(&mut buffer[..length]);
    BUFFERS.with(|all| all[number].set(buffer));
}
