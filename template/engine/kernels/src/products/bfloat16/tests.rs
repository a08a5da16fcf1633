//! Products in bfloat16 against those of rounded operands.

use rayon::{ThreadPoolBuilder, prelude::*};

use super::{super::multiply_in, *};
use crate::half::Half;

type Multiply = Box<dyn Fn(&mut [f32], bool, Matrix, Matrix, Threads) + Sync>;

/// With all instructions that this processor has.
#[cfg(target_arch = "x86_64")]
fn fast() -> Vec<Multiply> {
    let with = |instructions| -> Multiply {
        Box::new(move |product, add, left, right, threads| {
            let [rows, columns] = [left.size()[0], right.size()[1]];
            let operation = blocks::Product::with(instructions, left, right).unwrap();
            let product = &mut product[..rows * columns];
            // SAFETY: `product` has the size of the product.
            unsafe { operation.compute(product.as_mut_ptr(), add, threads) };
        })
    };
    blocks::Instructions::available().map(with).collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn fast() -> Vec<Multiply> {
    Vec::new()
}

/// The product as layers call it, with all instructions that this processor has, and of any processor.
fn all() -> Vec<Multiply> {
    let mut all = fast();
    all.push(Box::new(|product, add, left, right, threads| {
        multiply_in(Some(Half::Bfloat16), product, add, left, right, threads);
    }));
    all.push(Box::new(|product, add, left, right, threads| {
        let product = &mut product[..left.size()[0] * right.size()[1]];
        // SAFETY: `product` has the size of the product.
        unsafe { multiply_rounded_at(round, product.as_mut_ptr(), add, left, right, threads) };
    }));
    all
}

/// Values between -1 and 1, different for each `seed`.
fn values(count: usize, seed: u32) -> Vec<f32> {
    let hash = |place: u32| (place ^ seed << 16).wrapping_mul(0x9E37_79B1) ^ place << 9;
    let mixed = |place| hash(hash(place).rotate_left(13));
    let places = 0..count as u32;
    places
        .map(|place| mixed(place) as i32 as f32 / 2_f32.powi(31))
        .collect()
}

fn at(matrix: Matrix, row: usize, column: usize) -> f32 {
    let [row_step, column_step] = matrix.strides();
    matrix.values()[row * row_step + column * column_step]
}

/// The product of rounded operands in 64 bits, and the same of their magnitudes.
fn expected(left: Matrix, right: Matrix) -> Vec<(f64, f64)> {
    let rounded = |value| bf16::from_f32(value).to_f64();
    let ([rows, inner], [_, columns]) = (left.size(), right.size());
    let places = (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column)));
    let sums = places.map(|(row, column)| {
        let terms = (0..inner).map(|k| rounded(at(left, row, k)) * rounded(at(right, k, column)));
        terms.fold((0.0, 0.0), |(sum, size), term| {
            (sum + term, size + term.abs())
        })
    });
    sums.collect()
}

fn check(left: Matrix, right: Matrix) {
    let expected = expected(left, right);
    for (number, multiply) in all().into_iter().enumerate() {
        let mut product = vec![f32::NAN; expected.len()];
        let sizes = (left.size(), right.size());
        for (add, times) in [(false, 1.0), (true, 2.0)] {
            multiply(&mut product, add, left, right, Threads::All);
            for (value, (sum, size)) in product.iter().zip(&expected) {
                let error = (f64::from(*value) - times * sum).abs();
                assert!(
                    error <= 1e-5 * times * size,
                    "{error}: {number}, {sizes:?}, {add}"
                );
            }
        }
    }
}

/// All layouts of operands: as they are, transposed, and parts of wider matrices.
fn check_layouts([rows, inner, columns]: [usize; 3]) {
    let (left, right) = (values(rows * inner, 1), values(inner * columns, 2));
    let wider = [
        values(rows * (inner + 5), 3),
        values(inner * (columns + 3), 4),
    ];
    let lefts = [
        Matrix::new(&left, [rows, inner]),
        Matrix::new(&left, [inner, rows]).transposed(),
        Matrix::new(&wider[0], [rows, inner + 5]).columns(2..inner + 2),
    ];
    let rights = [
        Matrix::new(&right, [inner, columns]),
        Matrix::new(&right, [columns, inner]).transposed(),
        Matrix::new(&wider[1], [inner, columns + 3]).columns(3..columns + 3),
    ];
    for (left, right) in lefts.into_iter().zip(rights) {
        check(left, right);
    }
    check(lefts[0], rights[1]);
    check(lefts[1], rights[0]);
}

#[test]
fn products_are_those_of_rounded_operands() {
    // Around the sizes of vectors, tiles, groups and blocks.
    let sizes = [
        [32, 32, 32],
        [33, 511, 64],
        [64, 514, 31],
        [31, 1025, 63],
        [1, 1, 1],
        [2, 3, 5],
        [8, 32, 48],
        [7, 31, 15],
        [9, 33, 49],
        [17, 64, 16],
        [24, 383, 33],
        [5, 386, 65],
        [33, 401, 97],
        [70, 19, 200],
        [130, 65, 210],
        [9, 20, 410],
    ];
    sizes.into_iter().for_each(check_layouts);
}

#[test]
fn large_operands_are_packed_in_parts() {
    let (left, right) = (values(531 * 2051, 1), values(2051, 2));
    check(
        Matrix::new(&left, [531, 2051]),
        Matrix::new(&right, [2051, 1]),
    );
}

#[test]
fn sizes_of_zero_are_allowed() {
    let some = values(12, 1);
    for multiply in all() {
        for [rows, inner, columns] in [[0, 3, 4], [3, 4, 0], [0, 0, 0], [3, 0, 4]] {
            let left = Matrix::new(&some, [rows, inner]);
            let right = Matrix::new(&some, [inner, columns]);
            let mut product = vec![1.0; rows * columns];
            multiply(&mut product, true, left, right, Threads::All);
            assert_eq!(product, vec![1.0; rows * columns]);
            multiply(&mut product, false, left, right, Threads::This);
            assert_eq!(product, vec![0.0; rows * columns]);
        }
    }
}

#[test]
fn numbers_are_rounded_to_the_nearest() {
    let halves = [
        1.0,
        1.003_906_3,
        1.011_718_8,
        -1.003_906_3,
        3.4e38,
        f32::MAX,
        0.0,
        -1e-30,
    ];
    let ties = (0..200).map(|number| f32::from_bits(0x3F80_8000 + number * 0x8000));
    let near = (0..200).map(|number| f32::from_bits(0x3F80_7FFF + number * 0x8001));
    let numbers: Vec<f32> = halves.into_iter().chain(ties).chain(near).collect();
    let count = numbers.len();
    let expected: Vec<f32> = numbers
        .iter()
        .map(|it| bf16::from_f32(*it).to_f32())
        .collect();
    for multiply in all() {
        let [mut as_left, mut as_right] = [vec![0.0; count], vec![0.0; count]];
        let one = Matrix::new(&[1.0], [1, 1]);
        let (rows, columns) = ([count, 1], [1, count]);
        multiply(
            &mut as_left,
            false,
            Matrix::new(&numbers, rows),
            one,
            Threads::This,
        );
        multiply(
            &mut as_right,
            false,
            one,
            Matrix::new(&numbers, columns),
            Threads::This,
        );
        assert_eq!([as_left, as_right], [expected.clone(), expected.clone()]);
    }
}

#[test]
fn infinity_and_nan_stay_in_their_row_and_column() {
    const ROWS: usize = 19;
    const INNER: usize = 37;
    const COLUMNS: usize = 53;
    let (mut left, mut right) = (values(ROWS * INNER, 1), values(INNER * COLUMNS, 2));
    left[4 * INNER + 36] = f32::NAN;
    left[11 * INNER + 3] = f32::INFINITY;
    right[20 * COLUMNS + 52] = f32::NEG_INFINITY;
    for multiply in all() {
        let mut product = vec![0.0; ROWS * COLUMNS];
        let (left, right) = (
            Matrix::new(&left, [ROWS, INNER]),
            Matrix::new(&right, [INNER, COLUMNS]),
        );
        multiply(&mut product, false, left, right, Threads::All);
        for (place, value) in product.iter().enumerate() {
            match (place / COLUMNS, place % COLUMNS) {
                (4, _) => assert!(value.is_nan(), "{place}: {value}"),
                (11, 52) => assert!(!value.is_finite(), "{place}: {value}"),
                (11, _) | (_, 52) => assert!(value.is_infinite(), "{place}: {value}"),
                _ => assert!(value.is_finite(), "{place}: {value}"),
            }
        }
    }
}

#[test]
fn neither_threads_nor_other_rows_and_columns_change_a_bit() {
    let (left, right) = (values(160 * 401, 1), values(401 * 140, 2));
    let (left, right) = (
        Matrix::new(&left, [160, 401]),
        Matrix::new(&right, [401, 140]),
    );
    for (number, multiply) in all().into_iter().enumerate() {
        let bits = |left: Matrix, right: Matrix, threads| {
            let mut product = vec![0.0; left.size()[0] * right.size()[1]];
            multiply(&mut product, false, left, right, threads);
            product.into_iter().map(f32::to_bits).collect::<Vec<_>>()
        };
        let one = bits(left, right, Threads::This);
        for threads in [1, 2, 3, 7] {
            let pool = ThreadPoolBuilder::new()
                .num_threads(threads)
                .build()
                .unwrap();
            let several = pool.install(|| bits(left, right, Threads::All));
            assert!(several == one, "{number}, {threads}");
        }
        if number >= fast().len() {
            continue;
        }
        for (row, column) in [(0, 1), (159, 139), (77, 50)] {
            let left = left.transposed().columns(row..row + 1).transposed();
            let right = right.columns(column..column + 1);
            assert_eq!(bits(left, right, Threads::This), [one[row * 140 + column]]);
        }
    }
}

#[test]
fn products_within_threads_of_others_have_memory_of_their_own() {
    let (left, right) = (values(210 * 420, 1), values(420 * 100, 2));
    for multiply in all() {
        let product = |_| {
            let (left, right) = (
                Matrix::new(&left, [210, 420]),
                Matrix::new(&right, [420, 100]),
            );
            let mut product = vec![0.0; 210 * 100];
            multiply(&mut product, false, left, right, Threads::All);
            product
        };
        let alone = product(0);
        let pool = ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        let all: Vec<_> = pool.install(|| (0..8).into_par_iter().map(product).collect());
        assert!(all.iter().all(|product| *product == alone));
    }
}
