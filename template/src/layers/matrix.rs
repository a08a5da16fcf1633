//! Products of matrices, by the library that Burn multiplies with.

use std::ops::Range;

/// A matrix in a slice.
#[derive(Clone, Copy)]
pub struct Matrix<'a> {
    values: &'a [f32],
    /// Rows and columns.
    size: [usize; 2],
    /// How far apart two rows are, and two columns.
    strides: [usize; 2],
}

impl<'a> Matrix<'a> {
    /// One row after the other.
    ///
    /// # Panics
    /// There are fewer values.
    pub fn new(values: &'a [f32], [rows, columns]: [usize; 2]) -> Self {
        let values = &values[..rows * columns];
        Matrix {
            values,
            size: [rows, columns],
            strides: [columns, 1],
        }
    }

    /// Some of the columns.
    ///
    /// # Panics
    /// There are fewer.
    pub fn columns(self, columns: Range<usize>) -> Self {
        let ([rows, all], [row, column]) = (self.size, self.strides);
        assert!(columns.start <= columns.end && columns.end <= all);
        let start = match rows {
            0 => 0,
            _ => columns.start * column,
        };
        Matrix {
            values: &self.values[start..],
            size: [rows, columns.len()],
            strides: [row, column],
        }
    }

    /// Rows and columns.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    pub fn transposed(self) -> Self {
        let ([rows, columns], [row, column]) = (self.size, self.strides);
        Matrix {
            values: self.values,
            size: [columns, rows],
            strides: [column, row],
        }
    }
}

/// Who works on a product. Its bits are the same.
#[derive(Clone, Copy)]
pub enum Threads {
    This,
    /// Those of this replica.
    All,
}

/// `product = left * right`, or `product += left * right`, row after row.
///
/// # Panics
/// Sizes that do not fit, or a `product` that is too short.
pub fn multiply(product: &mut [f32], add: bool, left: Matrix, right: Matrix, threads: Threads) {
    let ([rows, inner], [inner_too, columns]) = (left.size, right.size);
    assert_eq!(inner, inner_too);
    let product = &mut product[..rows * columns];
    let [left_strides, right_strides] = [&left, &right].map(|it| it.strides.map(|n| n as isize));
    let parallelism = match threads {
        Threads::This => gemm::Parallelism::None,
        Threads::All => gemm::Parallelism::Rayon(0),
    };
    // SAFETY: sizes and strides stay within the slices, as `Matrix::new` and the line above cut them so;
    // `product` is borrowed by nothing else.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            product.as_mut_ptr(),
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
