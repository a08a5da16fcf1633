//! Checks that all processes of a job are alike.

use anyhow::{Result, ensure};

use super::Workers;

/// Checks that all processes have the same `settings`.
///
/// # Errors
/// A setting differs; the message names the first one.
pub fn ensure_equal(workers: &dyn Workers, settings: &[(&str, String)]) -> Result<()> {
    let own = serde_json::to_vec(settings)?;
    let all = workers.all_gather("the comparison of settings", own)?;
    let mut all_settings = Vec::new();
    for bytes in &all {
        all_settings.push(serde_json::from_slice::<Vec<(String, String)>>(bytes)?);
    }
    for (worker, other) in all_settings.iter().enumerate() {
        for ((name, first), (_, value)) in all_settings[0].iter().zip(other) {
            ensure!(
                first == value,
                "{name} differs between workers: {first} on {}, {value} on {}. Start all with the \
                 same options and data",
                workers.name(0),
                workers.name(worker)
            );
        }
        ensure!(
            other.len() == all_settings[0].len(),
            "{} and {} run different programs",
            workers.name(0),
            workers.name(worker)
        );
    }
    Ok(())
}
