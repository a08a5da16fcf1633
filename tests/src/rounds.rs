//! Measuring sides against each other on a machine with other things to do.

/// What each side gives in each of `rounds` rounds, in which all have their turn, sorted by side.
pub fn in_turn(rounds: usize, sides: &[impl Fn() -> f64]) -> Vec<Vec<f64>> {
    let mut measured = vec![Vec::new(); sides.len()];
    for _ in 0..rounds {
        for (side, measured) in sides.iter().zip(&mut measured) {
            measured.push(side());
        }
    }
    for values in &mut measured {
        values.sort_by(f64::total_cmp);
    }
    measured
}

/// The value in the middle, the upper one of two.
///
/// # Panics
/// There is none.
pub fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}
