//! Operands of a product, rounded to bfloat16 and laid out for [`super::avx512`] and [`super::amx`].

use std::{
    arch::x86_64::*,
    mem::{self, MaybeUninit},
    ops::Range,
};

use super::super::matrix::Matrix;

/// Pairs of numbers in a vector register.
pub const LANES: usize = 16;

/// A vector of pairs of bfloat16 numbers: two neighbours of the inner dimension of a product, for 16 rows of
/// the left operand or columns of the right one.
#[derive(Clone, Copy, Default)]
#[repr(C, align(64))]
pub struct Pairs(pub [[u32; LANES / 2]; 2]);

impl Pairs {
    #[inline]
    #[target_feature(enable = "avx512f")]
    pub fn vector(self) -> __m512bh {
        // SAFETY: both are 64 bytes, of which any are valid.
        unsafe { mem::transmute(self) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn bits(self) -> __m512i {
        // SAFETY: both are 64 bytes, of which any are valid.
        unsafe { mem::transmute(self) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn new(bits: __m512i) -> Self {
        // SAFETY: both are 64 bytes, of which any are valid.
        unsafe { mem::transmute(bits) }
    }
}

/// Packs up to [`LANES`] rows from `row` on into every `step`-th of `packed`, a pair of columns each. Missing
/// rows, and the other half of an odd last column, are zero.
///
/// Rows or columns of `matrix` must be contiguous.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub fn pack(matrix: Matrix, row: usize, columns: Range<usize>, packed: &mut [Pairs], step: usize) {
    let rows = LANES.min(matrix.size()[0] - row);
    let [row_step, column_step] = matrix.strides();
    let values = &matrix.values()[row * row_step + columns.start * column_step..];
    match row_step {
        1 => interleave(values, rows, columns.len(), column_step, packed, step),
        _ => pack_rows(values, rows, columns.len(), row_step, packed, step),
    }
}

/// [`pack`] for contiguous rows of a column.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn interleave(
    values: &[f32],
    rows: usize,
    columns: usize,
    column_step: usize,
    packed: &mut [Pairs],
    step: usize,
) {
    // The 16 numbers of one column are followed by those of the other.
    let order = interleaved();
    for (column, to) in (0..columns).step_by(2).zip(packed.iter_mut().step_by(step)) {
        let one = load(&values[column * column_step..], rows);
        let two = match column + 1 < columns {
            true => load(&values[(column + 1) * column_step..], rows),
            false => _mm512_setzero_ps(),
        };
        *to = Pairs::new(_mm512_permutexvar_epi16(order, rounded(one, two)));
    }
}

/// [`pack`] for contiguous columns of a row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
fn pack_rows(
    values: &[f32],
    rows: usize,
    columns: usize,
    row_step: usize,
    packed: &mut [Pairs],
    step: usize,
) {
    let mut packed = packed.iter_mut().step_by(step);
    for column in (0..columns).step_by(2 * LANES) {
        let count = (columns - column).min(2 * LANES);
        let mut block = [_mm512_setzero_si512(); LANES];
        for (row, to) in block.iter_mut().enumerate().take(rows) {
            let values = &values[row * row_step + column..][..count];
            let (one, two) = values.split_at(count.min(LANES));
            *to = rounded(load(one, one.len()), load(two, two.len()));
        }
        let block = transposed(block).into_iter().take(count.div_ceil(2));
        for (from, to) in block.zip(&mut packed) {
            *to = Pairs::new(from);
        }
    }
}

/// Packs up to 16 rows from `row` on into tiles of 16 rows of 16 pairs. Missing rows and columns are zero.
///
/// Rows or columns of `matrix` must be contiguous.
#[target_feature(enable = "avx512f,avx512bw,avx512bf16")]
pub fn pack_tiles(matrix: Matrix, row: usize, tiles: &mut [[Pairs; LANES]]) {
    let ([rows, columns], [row_step, _]) = (matrix.size(), matrix.strides());
    let rows = LANES.min(rows.saturating_sub(row));
    if row_step == 1 && rows > 0 {
        let (packed, used) = (tiles.as_flattened_mut(), columns.div_ceil(2));
        pack(matrix, row, 0..columns, packed, 1);
        packed[used..].fill(Pairs::default());
        for tile in tiles {
            *tile = transposed(tile.map(|pairs| pairs.bits())).map(|bits| Pairs::new(bits));
        }
        return;
    }
    for (number, tile) in tiles.iter_mut().enumerate() {
        let columns = number * 2 * LANES..columns.min((number + 1) * 2 * LANES);
        for (line, to) in tile.iter_mut().enumerate() {
            *to = Pairs::default();
            if line < rows {
                let start = (row + line) * row_step;
                let values = &matrix.values()[start + columns.start..start + columns.end];
                let (one, two) = values.split_at(values.len().min(LANES));
                *to = Pairs::new(rounded(load(one, one.len()), load(two, two.len())));
            }
        }
    }
}

/// The first `count` values, and zeros.
#[inline]
#[target_feature(enable = "avx512f")]
pub fn load(values: &[f32], count: usize) -> __m512 {
    let values = &values[..count];
    // SAFETY: only the values of the slice are read.
    unsafe { _mm512_maskz_loadu_ps(first(count), values.as_ptr()) }
}

/// Writes as many values as `to` has, up to [`LANES`].
#[inline]
#[target_feature(enable = "avx512f")]
pub fn store(values: __m512, to: &mut [MaybeUninit<f32>]) {
    // SAFETY: only the values of the slice are written.
    unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr().cast(), first(to.len()), values) }
}

/// A mask of the first lanes.
#[inline]
fn first(count: usize) -> __mmask16 {
    ((1_u32 << count.min(LANES)) - 1) as __mmask16
}

/// The 16 numbers of `one` and of `two`, in bfloat16.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn rounded(one: __m512, two: __m512) -> __m512i {
    let vector = _mm512_cvtne2ps_pbh(two, one);
    // SAFETY: both are 64 bytes, of which any are valid.
    unsafe { mem::transmute(vector) }
}

/// The order 0, 16, 1, 17, .. of 16-bit numbers.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn interleaved() -> __m512i {
    let ones = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    let twos = _mm512_slli_epi32::<16>(_mm512_add_epi32(ones, _mm512_set1_epi32(16)));
    _mm512_or_si512(ones, twos)
}

/// A matrix of 16 rows of 16 numbers, transposed.
#[inline]
#[target_feature(enable = "avx512f")]
fn transposed(rows: [__m512i; LANES]) -> [__m512i; LANES] {
    // Within each quarter of a register, the four numbers of each of four rows.
    let mut quarters = [_mm512_setzero_si512(); LANES];
    for start in (0..LANES).step_by(4) {
        let [a, b, c, d] = [0, 1, 2, 3].map(|number| rows[start + number]);
        let (low, high) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
        let (low_2, high_2) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
        quarters[start] = _mm512_unpacklo_epi64(low, low_2);
        quarters[start + 1] = _mm512_unpackhi_epi64(low, low_2);
        quarters[start + 2] = _mm512_unpacklo_epi64(high, high_2);
        quarters[start + 3] = _mm512_unpackhi_epi64(high, high_2);
    }
    let mut columns = quarters;
    for number in 0..4 {
        let [a, b, c, d] = [0, 4, 8, 12].map(|start| quarters[start + number]);
        const EVEN: i32 = 0b10_00_10_00;
        const ODD: i32 = 0b11_01_11_01;
        let even = _mm512_shuffle_i32x4::<EVEN>(a, b);
        let even_2 = _mm512_shuffle_i32x4::<EVEN>(c, d);
        let odd = _mm512_shuffle_i32x4::<ODD>(a, b);
        let odd_2 = _mm512_shuffle_i32x4::<ODD>(c, d);
        columns[number] = _mm512_shuffle_i32x4::<EVEN>(even, even_2);
        columns[4 + number] = _mm512_shuffle_i32x4::<EVEN>(odd, odd_2);
        columns[8 + number] = _mm512_shuffle_i32x4::<ODD>(even, even_2);
        columns[12 + number] = _mm512_shuffle_i32x4::<ODD>(odd, odd_2);
    }
    columns
}
