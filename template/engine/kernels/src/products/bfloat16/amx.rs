//! Blocks of a product with AMX, the tile registers of Intel's processors since Sapphire Rapids. Sizes were
//! measured there with two threads.
//!
//! A tile has 16 rows of 64 bytes: 16 rows of 16 pairs of the left operand, 16 pairs of 16 columns of the right
//! one, or 16 rows and columns of sums. Rust has no stable functions for these instructions, but assembles them.
//!
//! Source: Intel, 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.

use std::{
    arch::{
        asm,
        x86_64::{__cpuid_count, __get_cpuid_max},
    },
    ops::Range,
    sync::LazyLock,
};

use super::{
    blocks::{Output, Product, Task, for_each, tasks, with_buffer},
    packing::{LANES, Pairs, pack, pack_tiles},
};

/// Rows and columns of a block, two tiles each: four tiles of sums, and two of each operand, use all 8 registers.
const SIDE: usize = 2 * LANES;
/// Pairs of the inner dimension in a tile.
const STEP: usize = LANES;
/// Values of the inner dimension that are packed at a time: more keep a block's columns out of the L1 cache.
const INNER: usize = 512;
/// Lines of a row-major right operand that are packed at a time: few, as processors fetch lines ahead in the
/// order of memory.
const LINES: usize = 8;
/// Blocks of columns of a task at most, whose packed part stays in the L2 cache.
const WIDTH: usize = 16;

/// Whether the processor has the instructions, and the operating system lets this process use the registers.
pub fn is_available() -> bool {
    static IS_AVAILABLE: LazyLock<bool> = LazyLock::new(|| has_instructions() && is_permitted());
    *IS_AVAILABLE
}

/// AMX-TILE and AMX-BF16.
fn has_instructions() -> bool {
    const BOTH: u32 = 1 << 24 | 1 << 22;
    let (last_leaf, _) = __get_cpuid_max(0);
    last_leaf >= 7 && __cpuid_count(7, 0).edx & BOTH == BOTH
}

/// Asks Linux for the registers of tiles, for all threads of the process.
///
/// Source: Linux, Documentation/arch/x86/xstate.rst.
#[cfg(target_os = "linux")]
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call has no effect on memory.
    unsafe {
        libc::syscall(
            libc::SYS_arch_prctl,
            ARCH_REQ_XCOMP_PERM,
            XFEATURE_XTILEDATA,
        ) == 0
    }
}

#[cfg(not(target_os = "linux"))]
fn is_permitted() -> bool {
    false
}

/// The rows of a product, on these threads.
///
/// # Safety
/// AMX is [available](is_available). With `add`, the output is initialised.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub(super) unsafe fn compute_rows(
    product: Product,
    output: &Output,
    add: bool,
    rows: Range<usize>,
    threads: usize,
) {
    let pairs = padded(product.left.size()[1]);
    with_buffer(0, rows.len().div_ceil(SIDE) * 2 * pairs, |packed| {
        let panels = packed.chunks_exact_mut(pairs).collect();
        for_each(panels, threads, |number, panel| {
            pack_tiles(
                product.left,
                rows.start + number * LANES,
                panel.as_chunks_mut().0,
            );
        });
        let blocks = output.size[1].div_ceil(SIDE);
        let tasks = tasks(rows.clone(), blocks, [1, WIDTH], SIDE, threads);
        for_each(tasks, threads, |_, task| {
            let packed = &packed[(task.rows.start - rows.start) / LANES * pairs..];
            with_buffer(1, INNER * task.units.len(), |buffer| {
                // SAFETY: as the caller promises.
                unsafe { compute_task(product, output, add, &task, packed, buffer) }
            });
        });
    });
}

/// Pairs of `inner` values, rounded up to whole tiles.
fn padded(inner: usize) -> usize {
    inner.div_ceil(2).next_multiple_of(STEP)
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
    let inner = product.right.size()[1];
    // SAFETY: AMX is available.
    let registers = unsafe { Registers::configure() };
    for start in (0..inner).step_by(INNER) {
        let part = start..inner.min(start + INNER);
        let pairs = padded(part.len());
        pack_right(product, &task.units, part, packed);
        let panels = left.chunks_exact(padded(inner));
        let panels: Vec<_> = panels.map(|panel| &panel[start / 2..][..pairs]).collect();
        for (block, right) in task.units.clone().zip(packed.chunks_exact(2 * pairs)) {
            for (row, left) in task.rows.clone().step_by(SIDE).zip(panels.as_chunks().0) {
                let rows = row..task.rows.end.min(row + SIDE);
                let columns = block * SIDE..output.size[1].min((block + 1) * SIDE);
                // SAFETY: after the first part of the inner dimension, the values are written.
                unsafe {
                    registers.add_to(output, add || start > 0, rows, columns, *left, right);
                }
            }
        }
    }
}

/// Packs the part of the inner dimension of blocks of columns, block by block. Missing columns and rows are zero.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_right(product: Product, blocks: &Range<usize>, part: Range<usize>, packed: &mut [Pairs]) {
    let (pairs, used) = (padded(part.len()), part.len().div_ceil(2));
    // Values are read in the order of memory, so that the processor fetches them ahead.
    let step = match product.right.strides() {
        [1, _] => LINES,
        _ => INNER,
    };
    for start in part.clone().step_by(step) {
        let lines = start..part.end.min(start + step);
        for (block, packed) in blocks.clone().zip(packed.chunks_exact_mut(2 * pairs)) {
            for vector in 0..2 {
                let row = block * SIDE + vector * LANES;
                let packed = &mut packed[start - part.start + vector..];
                match row < product.right.size()[0] {
                    true => pack(product.right, row, lines.clone(), packed, 2),
                    false => {
                        let missing = packed.iter_mut().step_by(2).take(lines.len().div_ceil(2));
                        missing.for_each(|pairs| *pairs = Pairs::default());
                    }
                }
            }
        }
    }
    for packed in packed.chunks_exact_mut(2 * pairs).take(blocks.len()) {
        packed[2 * used..].fill(Pairs::default());
    }
}

/// The sizes of tiles, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Sizes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes_of_row: [u16; 16],
    rows: [u8; 16],
}

/// The thread's registers, of 8 tiles of 16 rows of 64 bytes, until the value is dropped. Nothing else in a
/// program has these registers.
struct Registers;

impl Registers {
    /// # Safety
    /// AMX is [available](is_available).
    unsafe fn configure() -> Self {
        let mut sizes = Sizes {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            bytes_of_row: [0; 16],
            rows: [0; 16],
        };
        sizes.bytes_of_row[..8].fill(64);
        sizes.rows[..8].fill(16);
        // SAFETY: AMX is available, and the sizes are valid.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &sizes, options(nostack, readonly)) }
        Registers
    }

    /// Writes the product of two panels of rows and a block of columns, or adds it.
    ///
    /// # Safety
    /// With `add`, the values are initialised.
    unsafe fn add_to(
        &self,
        output: &Output,
        add: bool,
        rows: Range<usize>,
        columns: Range<usize>,
        left: [&[Pairs]; 2],
        right: &[Pairs],
    ) {
        if rows.len() == SIDE && columns.len() == SIDE {
            let sums = output.block(rows, columns);
            // SAFETY: the block is within the product, and no other task has a part of it.
            return unsafe { self.multiply(sums, output.size[1], add, left, right) };
        }
        let mut block = [[0.0; SIDE]; SIDE];
        // SAFETY: the tiles of all tasks are separate, and a task uses one row at a time.
        let values = |row| unsafe { output.row(row, columns.clone()) };
        if add {
            for (row, sums) in rows.clone().zip(&mut block) {
                // SAFETY: the values are initialised, as the caller promises.
                sums[..columns.len()].copy_from_slice(unsafe { values(row).assume_init_ref() });
            }
        }
        // SAFETY: the block has the size of four tiles.
        unsafe { self.multiply(block.as_mut_ptr().cast(), SIDE, add, left, right) };
        for (row, sums) in rows.zip(&block) {
            values(row).write_copy_of_slice(&sums[..columns.len()]);
        }
    }

    /// Sums of 32 rows and columns, which are `line` values apart in memory, of 2 panels of the left operand and 2
    /// vectors of the right one.
    ///
    /// # Safety
    /// Nobody else uses the sums.
    ///
    /// # Panics
    /// The operands have different lengths, or no whole tiles.
    unsafe fn multiply(
        &self,
        sums: *mut f32,
        line: usize,
        add: bool,
        [left, left_2]: [&[Pairs]; 2],
        right: &[Pairs],
    ) {
        let steps = left.len() / STEP;
        assert!(steps > 0 && left.len() == steps * STEP && left_2.len() == left.len());
        assert_eq!(right.len(), 2 * left.len());
        // SAFETY: the registers are configured, and the tiles lie within the operands and the sums.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "test {add}, {add}",
                "jz 2f",
                "tileloadd tmm0, [{sums} + {line}*1]",
                "tileloadd tmm1, [{sums} + {line}*1 + 64]",
                "tileloadd tmm2, [{sums_2} + {line}*1]",
                "tileloadd tmm3, [{sums_2} + {line}*1 + 64]",
                "2:",
                "tileloadd tmm4, [{left} + {row}*1]",
                "tileloadd tmm6, [{right} + {row}*2]",
                "tileloadd tmm7, [{right} + {row}*2 + 64]",
                "tileloadd tmm5, [{left_2} + {row}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {left}, 1024",
                "add {left_2}, 1024",
                "add {right}, 2048",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{sums} + {line}*1], tmm0",
                "tilestored [{sums} + {line}*1 + 64], tmm1",
                "tilestored [{sums_2} + {line}*1], tmm2",
                "tilestored [{sums_2} + {line}*1 + 64], tmm3",
                sums = in(reg) sums,
                sums_2 = in(reg) sums.wrapping_add(LANES * line),
                line = in(reg) line * size_of::<f32>(),
                add = in(reg) u64::from(add),
                row = in(reg) size_of::<Pairs>(),
                left = inout(reg) left.as_ptr() => _,
                left_2 = inout(reg) left_2.as_ptr() => _,
                right = inout(reg) right.as_ptr() => _,
                steps = inout(reg) steps => _,
                out("tmm0") _,
                out("tmm1") _,
                out("tmm2") _,
                out("tmm3") _,
                out("tmm4") _,
                out("tmm5") _,
                out("tmm6") _,
                out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // So that the system need not keep the tiles when it switches threads.
        // SAFETY: AMX is available.
        unsafe { asm!("tilerelease", options(nomem, nostack)) }
    }
}
