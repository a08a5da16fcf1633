//! The state of early stopping and of the time limit in a checkpoint.

use serde::{Deserialize, Serialize};

/// The state of early stopping and of the time limit in a checkpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoppingState {
    /// Seconds of training in all resumed runs, each up to its last checkpoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) seconds: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) early: Option<EarlyStopping>,
}

/// The state of early stopping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EarlyStopping {
    /// The best value of the metric so far, as a bit pattern, since decimal digits would round it.
    pub best: Option<u64>,
    /// Validations in a row without a better value.
    pub wait: usize,
}

impl EarlyStopping {
    /// The best value so far.
    pub fn best(&self) -> Option<f64> {
        self.best.map(f64::from_bits)
    }
}
