//! Reductions over the values of a row, to be vectorized by their callers.

/// Rows per work item of a thread. Sums over rows are sums of these parts, for the same bits on any number of
/// threads.
pub const ROWS: usize = 64;

/// Number of partial results.
const LANES: usize = 16;

/// The sum of `term(value)`, in an order that does not depend on the processor.
#[inline(always)]
pub fn sum(row: &[f32], term: impl Fn(f32) -> f32) -> f32 {
    sum_of_pairs(row, row, |value, _| term(value))
}

/// The sum of `term(value, other)` over two rows of the same length, in the order of [`sum`].
#[inline(always)]
pub fn sum_of_pairs(one: &[f32], other: &[f32], term: impl Fn(f32, f32) -> f32) -> f32 {
    let (whole, rest) = one.as_chunks::<LANES>();
    let (other_whole, other_rest) = other.as_chunks::<LANES>();
    let mut sums = [0.0; LANES];
    for (values, others) in whole.iter().zip(other_whole) {
        for (sum, (value, other)) in sums.iter_mut().zip(values.iter().zip(others)) {
            *sum += term(*value, *other);
        }
    }
    let rest = rest.iter().zip(other_rest);
    let rest: f32 = rest.map(|(value, other)| term(*value, *other)).sum();
    sums.iter().sum::<f32>() + rest
}

/// The largest value; NaN if any value is.
#[inline(always)]
pub fn largest(row: &[f32]) -> f32 {
    let larger = |one: f32, other: f32| match one >= other || one.is_nan() {
        true => one,
        false => other,
    };
    let (whole, rest) = row.as_chunks::<LANES>();
    let mut all = [f32::NEG_INFINITY; LANES];
    for values in whole {
        for (one, other) in all.iter_mut().zip(values) {
            *one = larger(*one, *other);
        }
    }
    let all = all.iter().chain(rest).copied();
    all.fold(f32::NEG_INFINITY, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_any_length_are_reduced() {
        for len in 0..40 {
            let row: Vec<f32> = (0..len).map(|place| ((place * 7) % 11) as f32).collect();
            assert_eq!(sum(&row, |value| value), row.iter().sum::<f32>());
            let places: Vec<f32> = (0..len).map(|place| place as f32).collect();
            let products = row.iter().zip(&places).map(|(one, other)| one * other);
            let expected: f32 = products.sum();
            assert_eq!(
                sum_of_pairs(&row, &places, |one, other| one * other),
                expected
            );
            let expected = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(largest(&row), expected);
            for place in 0..len {
                let mut row = row.clone();
                row[place] = f32::NAN;
                assert!(largest(&row).is_nan());
            }
        }
    }
}
