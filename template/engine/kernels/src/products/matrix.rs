//! Matrix products, with the library that Burn uses.

use std::ops::Range;

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
/// # Panics
/// Sizes do not match, or `product` is too short.
pub fn multiply(product: &mut [f32], add: bool, left: Matrix, right: Matrix, threads: Threads) {
    let ([rows, inner], [inner_too, columns]) = (left.size, right.size);
    assert_eq!(inner, inner_too);
    let product = &mut product[..rows * columns];
    let [left_strides, right_strides] = [&left, &right].map(|it| it.strides.map(|n| n as isize));
    let parallelism = match threads {
        Threads::This => gemm::Parallelism::None,
        Threads::All => gemm::Parallelism::Rayon(0),
    };
    // SAFETY: `Matrix::new`, `Matrix::columns` and the slicing of `product` above ensure that sizes and
    // strides stay within the slices; `product` is borrowed exclusively.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// The row-major product.
    fn product(left: Matrix, right: Matrix) -> Vec<f32> {
        let at = |it: &Matrix, row, column| it.values[row * it.strides[0] + column * it.strides[1]];
        let ([rows, inner], [_, columns]) = (left.size(), right.size());
        let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
        let value = |(row, column)| {
            let terms = (0..inner).map(|k| at(&left, row, k) * at(&right, k, column));
            terms.sum()
        };
        places.map(value).collect()
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
            let mut sums = vec![1.0; left.size()[0] * right.size()[1]];
            multiply(&mut sums, false, left, right, Threads::This);
            assert_eq!(sums, product(left, right));
            multiply(&mut sums, true, left, right, Threads::All);
            let twice: Vec<f32> = product(left, right).iter().map(|sum| 2.0 * sum).collect();
            assert_eq!(sums, twice);
        }
        let end = Matrix::new(&values, [5, 12]).transposed().columns(5..5);
        assert_eq!(end.size(), [12, 0]);
    }
}
