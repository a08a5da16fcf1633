//! The metric that selects the best checkpoint.

/// The validation metric that selects the best checkpoint, and that `--patience` follows.
#[derive(Clone, Copy, Debug)]
pub struct Best {
    /// Name of the metric.
    pub metric: &'static str,
    /// Whether higher or lower values are better.
    pub goal: Goal,
}

/// The direction in which a metric improves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Higher values are better, as for an accuracy.
    Highest,
    /// Lower values are better, as for a loss.
    Lowest,
}

impl Goal {
    pub(crate) fn is_better(self, value: f64, than: f64) -> bool {
        match self {
            Goal::Highest => value > than,
            Goal::Lowest => value < than,
        }
    }
}

impl Best {
    pub(crate) fn is_better(self, value: f64, than: f64) -> bool {
        self.goal.is_better(value, than)
    }

    /// Whether `value` is better than another one by more than `change`.
    pub(crate) fn is_better_by(self, change: f64, value: f64, than: f64) -> bool {
        match self.goal {
            Goal::Highest => value - change > than,
            Goal::Lowest => value + change < than,
        }
    }
}
