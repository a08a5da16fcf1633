//! The update of Adam.

use rayon::prelude::*;

use crate::{
    threads::{PIECE, on_all_threads},
    vectors::vectorized,
};

/// The coefficients of an update of Adam, with the bias corrections of both moments.
///
/// Source: D. Kingma and J. Ba, Adam: A method for stochastic optimization, 2014, end of section 2.
pub struct Step {
    /// The decays of the means of gradients and of squared gradients.
    pub betas: [f64; 2],
    /// The learning rate.
    pub rate: f64,
    /// What is added to the root of the second moment.
    pub epsilon: f64,
    /// The factor of weight decay.
    pub kept: f64,
}

impl Step {
    /// Updates a parameter and its moments in place, on all threads. All have the same length.
    pub fn update(
        &self,
        weights: &mut [f32],
        gradient: &[f32],
        [moment_1, moment_2]: [&mut [f32]; 2],
    ) {
        on_all_threads(weights.len(), || {
            let moments = moment_1
                .par_chunks_mut(PIECE)
                .zip(moment_2.par_chunks_mut(PIECE));
            weights
                .par_chunks_mut(PIECE)
                .zip(gradient.par_chunks(PIECE))
                .zip(moments)
                .for_each(|((weights, gradient), moments)| {
                    vectorized!(self.update_piece(weights, gradient, moments));
                });
        });
    }

    /// Updates a piece of a parameter, with its gradient and moments.
    #[inline(always)]
    fn update_piece(
        &self,
        weights: &mut [f32],
        gradient: &[f32],
        (moment_1, moment_2): (&mut [f32], &mut [f32]),
    ) {
        let [beta_1, beta_2] = self.betas.map(|beta| beta as f32);
        let [rest_1, rest_2] = self.betas.map(|beta| (1.0 - beta) as f32);
        let numbers = [self.rate, self.epsilon, self.kept];
        let [rate, epsilon, kept] = numbers.map(|number| number as f32);
        let moments = moment_1.iter_mut().zip(moment_2);
        for ((weight, gradient), (moment_1, moment_2)) in
            weights.iter_mut().zip(gradient).zip(moments)
        {
            *moment_1 = *moment_1 * beta_1 + gradient * rest_1;
            *moment_2 = *moment_2 * beta_2 + gradient * gradient * rest_2;
            *weight = *weight * kept - *moment_1 * rate / (moment_2.sqrt() + epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Step = Step {
        betas: [0.9, 0.999],
        rate: 0.01,
        epsilon: 1e-5,
        kept: 0.99,
    };

    /// A weight and its moments after the update, in 64 bits.
    fn updated(weight: f32, gradient: f32, moments: [f32; 2]) -> [f64; 3] {
        let [weight, gradient] = [weight, gradient].map(f64::from);
        let [first, second] = moments.map(f64::from);
        let first = first * 0.9 + gradient * 0.1;
        let second = second * 0.999 + gradient * gradient * 0.001;
        let weight = weight * 0.99 - first * 0.01 / (second.sqrt() + 1e-5);
        [weight, first, second]
    }

    #[test]
    fn each_weight_of_all_pieces_is_updated_by_its_own_gradient_and_moments() {
        let of = |factor: f32| -> Vec<f32> {
            let len = 2 * PIECE + 5;
            (0..len)
                .map(|place| (place as f32 * factor).sin())
                .collect()
        };
        let (weights, gradient, first) = (of(0.3), of(0.7), of(0.11));
        let second: Vec<f32> = of(0.05).iter().map(|value| value * value).collect();
        let mut changed = [weights.clone(), first.clone(), second.clone()];
        let [new, moment_1, moment_2] = &mut changed;
        STEP.update(new, &gradient, [moment_1, moment_2]);
        for place in 0..weights.len() {
            let moments = [first[place], second[place]];
            let expected = updated(weights[place], gradient[place], moments);
            let actual = changed.each_ref().map(|values| values[place]);
            for (actual, expected) in actual.into_iter().zip(expected) {
                let error = (f64::from(actual) - expected).abs();
                let limit = 1e-6 * expected.abs().max(1.0);
                assert!(error < limit, "{place}: {actual}, {expected}");
            }
        }
    }
}
