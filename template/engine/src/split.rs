//! The splits of the data.

/// A split of the data, with metrics of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// Training data, for updates of the parameters.
    Train,
    /// Validation data, evaluated after each epoch.
    Validation,
    /// Test data, evaluated after training.
    Test,
}

impl Split {
    /// The name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Validation => "validation",
            Split::Test => "test",
        }
    }
}
