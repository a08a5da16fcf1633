//! Vectorization of loops, and scalar functions that vectorize.

use std::f32::consts::{FRAC_2_SQRT_PI, LOG2_E, SQRT_2};

use pulp::{Arch, Simd, WithSimd};

/// Evaluates an expression with the vector instructions of this processor; called functions must be
/// inlined.
macro_rules! vectorized {
    ($work:expr) => {
        $crate::vectors::dispatch(
            #[inline(always)]
            || $work,
        )
    };
}
pub(crate) use vectorized;

/// Calls `work`, which must be inlined; used by `vectorized!`.
pub fn dispatch<R>(work: impl FnOnce() -> R) -> R {
    struct Work<F>(F);

    impl<R, F: FnOnce() -> R> WithSimd for Work<F> {
        type Output = R;

        #[inline(always)]
        fn with_simd<S: Simd>(self, _: S) -> R {
            (self.0)()
        }
    }

    Arch::new().dispatch(Work(work))
}

/// The exponential, within 2 units in the last place. Underflow gives a number below 1e-37 and overflow one
/// above 1e38; NaN is kept.
///
/// Source: `expf` of the Cephes library.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: the sum has an integer in its last bits
    let x = x.clamp(-87.0, 88.0);
    let shifted = x * LOG2_E + ROUND;
    let power = shifted - ROUND;
    let rest = x - power * 0.693_359_4 + power * 2.121_944_4e-4;
    let sum = 1.987_569_1e-4 * rest + 1.398_2e-3;
    let sum = sum * rest + 8.333_452e-3;
    let sum = sum * rest + 4.166_579_6e-2;
    let sum = sum * rest + 0.166_666_66;
    let sum = sum * rest + 0.5;
    let sum = sum * rest * rest + rest + 1.0;
    sum * f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23))
}

/// The error function, within 5e-7.
///
/// Source: the rational function of Eigen's `generic_fast_erf_float`.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    let square = x * x;
    let above = [
        -2.726_142_3e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506_4e-5,
        -7.349_906e-4,
        -2.954_6e-3,
        -1.609_603_3e-2,
    ];
    let below = [
        -1.456_607_2e-5,
        -2.133_740_6e-4,
        -1.682_827e-3,
        -7.373_329e-3,
        -1.426_474e-2,
    ];
    match x.abs() < 4.0 || x.is_nan() {
        true => x * polynomial(square, above) / polynomial(square, below),
        // Within half a unit in the last place.
        false => 1.0_f32.copysign(x),
    }
}

/// Evaluates a polynomial, with the coefficient of the highest power first.
#[inline(always)]
fn polynomial<const N: usize>(x: f32, factors: [f32; N]) -> f32 {
    let mut sum = 0.0;
    for factor in factors {
        sum = sum * x + factor;
    }
    sum
}

/// The cumulative distribution function and the density of the standard normal distribution at `x`.
#[inline(always)]
pub fn normal(x: f32) -> (f32, f32) {
    let density = FRAC_2_SQRT_PI / (2.0 * SQRT_2) * exp(-0.5 * x * x);
    (0.5 + 0.5 * erf(x / SQRT_2), density)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_that_of_the_library() {
        for number in -86_900..=87_900 {
            let x = number as f32 / 1_000.0;
            let expected = f64::from(x).exp();
            let error = (f64::from(exp(x)) - expected).abs() / expected;
            assert!(error < 2.4e-7, "exp({x}) is off by a share of {error}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 1e-37);
        assert!(exp(f32::INFINITY) > 1e38);
        assert!(exp(f32::NAN).is_nan());
    }

    #[test]
    fn the_error_function_has_its_values() {
        // From published tables.
        let known = [
            (0.0, 0.0),
            (0.1, 0.112_462_92),
            (0.5, 0.520_499_9),
            (1.0, 0.842_700_8),
            (2.0, 0.995_322_3),
            (3.0, 0.999_977_9),
            (3.999, 1.0),
            (4.0, 1.0),
            (9.0, 1.0),
            (1e30, 1.0),
        ];
        for (x, expected) in known {
            for (x, expected) in [(x, expected), (-x, -expected)] {
                let error = (erf(x) - expected).abs();
                assert!(error < 5e-7, "erf({x}) is off by {error}");
            }
        }
        assert!(erf(f32::NAN).is_nan());
    }
}
