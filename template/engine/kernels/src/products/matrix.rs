//! Matrix products, with the library that Burn uses.

use std::{mem::MaybeUninit, ops::Range};

use rayon::prelude::*;

/// Rows and columns of a transposed tile: a cache line of values.
const TILE: usize = 16;

/// Columns a multiple of this many values (1 KiB) apart share a few sets of a first-level cache.
const SAME_SETS: usize = 256;

/// A strided matrix view of a slice.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    values: &'a [f32],
    /// Rows and columns.
    size: [usize; 2],
    /// Strides of rows and columns.
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// A row-major matrix.
    ///
    /// # Panics
    /// `values` is too short.
    pub fn new(values: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        let values = &values[..rows * columns];
        Matrix {
            values,
            size: [rows, columns],
            strides: [columns, 1],
        }
    }

    /// A range of columns.
    ///
    /// # Panics
    /// The range is out of bounds.
    pub fn columns(self, columns: Range<usize>) -> Self {
        let ([rows, all], strides) = (self.size, self.strides);
        assert!(columns.start <= columns.end && columns.end <= all);
        let start = columns.start * strides[1];
        Matrix {
            // Empty without rows, or at the end.
            values: self.values.get(start..).unwrap_or_default(),
            size: [rows, columns.len()],
            strides,
        }
    }

    /// Rows and columns.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Strides of rows and columns.
    pub fn strides(&self) -> [usize; 2] {
        self.strides
    }

    /// The slice from the first value of the matrix on; it may be longer than the matrix.
    pub fn values(&self) -> &'a [f32] {
        self.values
    }

    /// The transposed view of the same values.
    pub fn transposed(self) -> Self {
        let ([rows, columns], [row, column]) = (self.size, self.strides);
        Matrix {
            values: self.values,
            size: [columns, rows],
            strides: [column, row],
        }
    }
}

/// The threads of a product; its result does not depend on them.
#[derive(Clone, Copy)]
pub enum Threads {
    /// The calling thread alone.
    This,
    /// The threads of this replica.
    All,
}

/// `product = left * right`, or `product += left * right`, row-major.
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
    let ([rows, inner], [inner_too, columns]) = (left.size, right.size);
    assert_eq!(inner, inner_too);
    let copy;
    let right = if packs_wide_panels() && is_slow_to_pack(rows, right) {
        copy = columns_of(right.transposed(), threads);
        Matrix::new(&copy, right.size)
    } else {
        right
    };
    let [left_strides, right_strides] = [&left, &right].map(|it| it.strides.map(|n| n as isize));
    let parallelism = match threads {
        Threads::This => gemm::Parallelism::None,
        Threads::All => gemm::Parallelism::Rayon(0),
    };
    // SAFETY: `Matrix::new` and `Matrix::columns` ensure that sizes and strides stay within the slices, and
    // the caller does for `product`.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            product,
            1,
            columns as isize,
            add,
            left.values.as_ptr(),
            left_strides[1],
            left_strides[0],
            right.values.as_ptr(),
            right_strides[1],
            right_strides[0],
            1.0,
            1.0,
            false,
            false,
            false,
            parallelism,
        );
    }
}

/// Whether `gemm` packs 64 columns of a right operand at a time, as for AVX-512. For AVX2, it packs 16, which
/// is faster than a copy.
fn packs_wide_panels() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Whether packing the right operand in [wide panels](packs_wide_panels), row by row, reads its cache lines
/// again for each row, as columns evict one another from the cache. Small products are not packed.
fn is_slow_to_pack(rows: usize, right: Matrix) -> bool {
    let [row, column] = right.strides;
    let columns = right.size[1];
    let is_packed = rows > 1 && columns >= TILE && rows * columns > TILE * TILE;
    is_packed && row == 1 && column.is_multiple_of(SAME_SETS)
}

/// The values of a matrix whose rows are contiguous, one column after the other.
///
/// # Panics
/// Rows are not contiguous.
pub fn columns_of(matrix: Matrix, threads: Threads) -> Vec<f32> {
    let ([rows, columns], [stride, 1]) = (matrix.size, matrix.strides) else {
        panic!("rows are contiguous");
    };
    let transpose = |(number, lines): (usize, &mut [MaybeUninit<f32>])| {
        for row in (0..rows).step_by(TILE) {
            let values = &matrix.values[row * stride + number * TILE..];
            let size = [TILE.min(rows - row), lines.len() / rows];
            transpose_tile(&mut lines[row..], rows, values, stride, size);
        }
    };
    let mut result = Vec::with_capacity(rows * columns);
    let lines = &mut result.spare_capacity_mut()[..rows * columns];
    let len = TILE * rows.max(1);
    match threads {
        Threads::This => lines.chunks_mut(len).enumerate().for_each(transpose),
        Threads::All => lines.par_chunks_mut(len).enumerate().for_each(transpose),
    }
    // SAFETY: the tiles cover all values.
    unsafe { result.set_len(rows * columns) };
    result
}

/// Writes a tile of `rows` by `columns` of `values`, transposed. The whole tile is read before it is written,
/// so each cache line of `values` is read once.
fn transpose_tile(
    to: &mut [MaybeUninit<f32>],
    to_stride: usize,
    values: &[f32],
    stride: usize,
    [rows, columns]: [usize; 2],
) {
    let mut tile = [[0.0; TILE]; TILE];
    for (line, values) in tile[..rows].iter_mut().zip(values.chunks(stride)) {
        match values.first_chunk() {
            Some(values) if columns == TILE => *line = *values,
            _ => line[..columns].copy_from_slice(&values[..columns]),
        }
    }
    for (column, to) in to.chunks_mut(to_stride).take(columns).enumerate() {
        for (to, line) in to.iter_mut().zip(&tile[..rows]) {
            to.write(line[column]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{multiply_in, product_in},
        *,
    };

    fn at(it: &Matrix, row: usize, column: usize) -> f32 {
        it.values[row * it.strides[0] + column * it.strides[1]]
    }

    /// Row-major values of all places.
    fn row_major([rows, columns]: [usize; 2], value: impl Fn(usize, usize) -> f32) -> Vec<f32> {
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        places.map(|(row, column)| value(row, column)).collect()
    }

    /// The row-major product.
    fn naive(left: Matrix, right: Matrix) -> Vec<f32> {
        let ([rows, inner], [_, columns]) = (left.size(), right.size());
        row_major([rows, columns], |row, column| {
            let terms = (0..inner).map(|k| at(&left, row, k) * at(&right, k, column));
            terms.sum()
        })
    }

    fn sines(len: usize) -> Vec<f32> {
        (0..len).map(|place| (place as f32 * 0.7).sin()).collect()
    }

    #[test]
    fn parts_of_matrices_are_multiplied() {
        let values: Vec<f32> = (0..60).map(|place| (place % 7) as f32).collect();
        let left = Matrix::new(&values, [5, 12]).columns(3..7); // [5, 4]
        let right = Matrix::new(&values, [6, 10]).transposed(); // [10, 6]
        let pairs = [
            (left, right.transposed().columns(2..6).transposed()), // [4, 6]
            (
                left.transposed(),
                right.columns(1..4).transposed().columns(5..10).transposed(),
            ),
            (left.columns(4..4), Matrix::new(&values, [0, 3])),
        ];
        for (left, right) in pairs {
            let expected = naive(left, right);
            let mut sums = vec![1.0; expected.len()];
            multiply_in(None, &mut sums, false, left, right, Threads::This);
            assert_eq!(sums, expected);
            assert_eq!(product_in(None, left, right, Threads::All), expected);
            multiply_in(None, &mut sums, true, left, right, Threads::All);
            let twice: Vec<f32> = expected.iter().map(|sum| 2.0 * sum).collect();
            assert_eq!(sums, twice);
        }
        let end = Matrix::new(&values, [5, 12]).transposed().columns(5..5);
        assert_eq!(end.size(), [12, 0]);
    }

    #[test]
    fn a_right_operand_that_is_copied_changes_no_bit() {
        let values = sines(70 * 512);
        // Rows, inner values and columns, and the distance of columns.
        for [rows, inner, columns, stride] in [
            [20, 512, 33, 512],
            [4, 300, 70, 512],
            [128, 32, 64, 256],
            [17, 0, 16, 256],
        ] {
            let left = Matrix::new(&values, [rows, inner]);
            let right = Matrix::new(&values, [columns, stride]);
            let right = right.columns(stride - inner..stride).transposed();
            assert!(is_slow_to_pack(rows, right));
            let copy = row_major(right.size(), |row, column| at(&right, row, column));
            let copy = Matrix::new(&copy, right.size());
            assert!(!is_slow_to_pack(rows, copy));
            for threads in [Threads::This, Threads::All] {
                let bits = |right| -> Vec<u32> {
                    let product = product_in(None, left, right, threads);
                    product.into_iter().map(f32::to_bits).collect()
                };
                assert_eq!(bits(right), bits(copy), "{rows} x {inner} x {columns}");
            }
        }
    }

    #[test]
    fn columns_follow_one_another_for_each_size() {
        let values = sines(70 * 90);
        for [rows, columns] in [[70, 40], [16, 32], [1, 90], [33, 1], [5, 0], [0, 7]] {
            let matrix = Matrix::new(&values, [rows, 90]).columns(90 - columns..90);
            let expected = row_major([columns, rows], |row, column| at(&matrix, column, row));
            for threads in [Threads::This, Threads::All] {
                assert_eq!(columns_of(matrix, threads), expected);
            }
        }
    }
}
