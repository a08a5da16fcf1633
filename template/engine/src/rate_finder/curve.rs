//! The loss over the learning rate, smoothed, and its steepest descent.

use crate::picture::rates::Point;

/// The updates of a sweep.
pub(crate) struct Curve(Vec<Point>);

/// Share of the updates before the first one that can be suggested: the first losses differ by their batches only.
///
/// Source: Lightning leaves out 10 of 100.
const LEFT_OUT: usize = 10;

impl Curve {
    /// The curve of learning rates and losses, smoothed over neighbours on both sides: with the weight `w` each
    /// neighbour has the `w`-fold weight of the next nearer one.
    ///
    /// An average of earlier losses alone, as in fastai and Lightning, lags behind, which moves the curve towards
    /// higher rates.
    pub fn new(losses: Vec<(f64, f64)>, weight: f64) -> Self {
        let finite = losses.iter().map(|(_, loss)| *loss);
        let finite: Vec<f64> = finite.take_while(|loss| loss.is_finite()).collect();
        let mut smoothed = smoothed(&finite, weight).into_iter();
        let points = losses.into_iter().map(|(rate, loss)| Point {
            rate,
            loss,
            smoothed: smoothed.next().unwrap_or(loss),
        });
        Curve(points.collect())
    }

    /// The updates, in order.
    pub fn points(&self) -> &[Point] {
        &self.0
    }

    /// The place of the lowest smoothed loss; `None` without finite losses.
    pub fn lowest(&self) -> Option<usize> {
        let finite = self.0.iter().enumerate();
        let finite = finite.filter(|(_, point)| point.smoothed.is_finite());
        let lowest = finite.min_by(|(_, one), (_, other)| one.smoothed.total_cmp(&other.smoothed));
        lowest.map(|(place, _)| place)
    }

    /// The place of the steepest descent of the smoothed loss over the logarithm of the learning rate, before its
    /// lowest value: the place `k` with the least `(s[k + 1] - s[k - 1]) / 2`, as places are equally far apart on that
    /// axis. `None` if the loss falls nowhere.
    ///
    /// Source: the suggestion of Lightning's finder, and `steep` of fastai's.
    pub fn steepest(&self) -> Option<usize> {
        let first = (self.0.len() / LEFT_OUT).max(1);
        let slope = |place: usize| self.0[place + 1].smoothed - self.0[place - 1].smoothed;
        let falls = (first..self.lowest()?).filter(|place| slope(*place) < 0.0);
        falls.min_by(|one, other| slope(*one).total_cmp(&slope(*other)))
    }
}

/// Each value averaged with its neighbours on both sides, whose weights decay by `weight` a place.
fn smoothed(values: &[f64], weight: f64) -> Vec<f64> {
    let one_sided = |values: &mut dyn Iterator<Item = f64>| -> Vec<f64> {
        let sum = |sum: &mut f64, value| {
            *sum = *sum * weight + value;
            Some(*sum)
        };
        values.scan(0.0, sum).collect()
    };
    let two_sided = |values: &[f64]| -> Vec<f64> {
        let left = one_sided(&mut values.iter().copied());
        let right = one_sided(&mut values.iter().rev().copied());
        let sides = left.into_iter().zip(right.into_iter().rev());
        // Both sides have the value itself.
        sides
            .zip(values)
            .map(|((left, right), value)| left + right - value)
            .collect()
    };
    let weights = two_sided(&vec![1.0; values.len()]);
    let sums = two_sided(values).into_iter();
    sums.zip(weights)
        .map(|(sum, weight)| sum / weight)
        .collect()
}

/// Whether a training has diverged that reaches the smoothed loss `loss` after the lowest one, `lowest`: four times as
/// much; of a negative loss, as of likelihoods, as far above it.
///
/// Source: fastai and Lightning.
pub(super) fn is_diverged(loss: f64, lowest: f64) -> bool {
    loss - lowest > 3.0 * lowest.abs()
}

/// An average of the losses so far with weights that decay by `weight` an update, which tells divergence.
pub(super) struct Smoother {
    weight: f64,
    sum: f64,
    weights: f64,
}

impl Smoother {
    pub fn new(weight: f64) -> Self {
        Smoother {
            weight,
            sum: 0.0,
            weights: 0.0,
        }
    }

    /// The average with the next loss.
    pub fn next(&mut self, loss: f64) -> f64 {
        self.sum = self.sum * self.weight + loss;
        self.weights = self.weights * self.weight + 1.0;
        self.sum / self.weights
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(losses: &[f64], weight: f64) -> Curve {
        let rate = |place: usize| 10_f64.powi(place as i32 - 6);
        let losses = losses.iter().enumerate();
        Curve::new(
            losses.map(|(place, loss)| (rate(place), *loss)).collect(),
            weight,
        )
    }

    fn smoothed_of(losses: &[f64], weight: f64) -> Vec<f64> {
        curve(losses, weight)
            .0
            .iter()
            .map(|point| point.smoothed)
            .collect()
    }

    #[test]
    fn smoothing_weighs_neighbours_on_both_sides() {
        assert_eq!(smoothed_of(&[3.0, 1.0, 2.0], 0.0), [3.0, 1.0, 2.0]);
        assert_eq!(smoothed_of(&[7.0; 5], 0.9), [7.0; 5]);
        // Weights 1, 1/2, 1/4 of the first, and 1/2, 1, 1/2 of the second.
        let smoothed = smoothed_of(&[4.0, 0.0, 8.0], 0.5);
        let expected = [(4.0 + 2.0) / 1.75, (2.0 + 4.0) / 2.0, (8.0 + 1.0) / 1.75];
        let near = smoothed
            .iter()
            .zip(expected)
            .all(|(one, other)| (one - other).abs() < 1e-12);
        assert!(near, "{smoothed:?}");
    }

    #[test]
    fn the_steepest_descent_is_before_the_lowest_loss() {
        let losses = [5.0, 5.0, 5.0, 4.0, 1.0, 0.5, 9.0, 2.0, 1.0];
        let found = curve(&losses, 0.0);
        assert_eq!(found.lowest(), Some(5));
        // (s[4] - s[2]) / 2 is -2, and (s[5] - s[3]) / 2 is -1.75; (s[8] - s[6]) / 2, -4, does not count.
        assert_eq!(found.steepest(), Some(3));
        assert_eq!(curve(&[1.0, 2.0, 3.0, 4.0], 0.0).steepest(), None);
        assert_eq!(curve(&[3.0, 3.0, 3.0, 3.0], 0.0).steepest(), None);
    }

    #[test]
    fn what_is_not_finite_ends_the_curve_and_does_not_count() {
        let found = curve(&[3.0, 2.0, 1.0, f64::NAN], 0.5);
        assert_eq!(found.lowest(), Some(2));
        assert!(found.points()[2].smoothed.is_finite());
        assert_eq!(curve(&[f64::INFINITY], 0.5).lowest(), None);
    }
    #[test]
    fn a_loss_far_above_the_lowest_one_has_diverged() {
        for (loss, lowest, expected) in [
            (4.1, 1.0, true),
            (3.9, 1.0, false),
            (-3.0, -4.0, false),
            (9.0, -4.0, true),
            (f64::INFINITY, 1.0, true),
        ] {
            assert_eq!(is_diverged(loss, lowest), expected, "{loss} after {lowest}");
        }
    }
}
